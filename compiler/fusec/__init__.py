"""fusec: a fusion compiler for PyTorch whose every stage can be read."""

__version__ = "0.1.0"
