"""Calls without the wrappers of TorchDynamo and AOTAutograd, where they have nothing to do."""
