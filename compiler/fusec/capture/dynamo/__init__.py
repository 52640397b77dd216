"""What TorchDynamo does beside capturing: breaks, guards of its own, calls it skips, slips."""
