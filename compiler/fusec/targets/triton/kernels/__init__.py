"""Kernels, a file a kind: pointwise, reductions, matrix products."""
