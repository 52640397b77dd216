"""Kernel text from bodies: C++ with OpenMP, Triton."""
