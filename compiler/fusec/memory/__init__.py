"""Tensors' memory: whether it can be read, how it is copied, what it holds before it is written."""
