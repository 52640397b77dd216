"""Function to FX graph: TorchDynamo and AOTAutograd, and what the user sees of them."""
