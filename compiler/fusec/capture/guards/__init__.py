"""TorchDynamo's guards: in words, as a tree that is cheaper to check, on symbolic sizes."""
