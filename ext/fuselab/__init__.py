"""Fuselab: write, see, edit and tune fused kernels in a notebook."""

__version__ = "0.1.0"
