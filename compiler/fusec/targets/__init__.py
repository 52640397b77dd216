"""Languages that kernels are written in, a folder a target."""
