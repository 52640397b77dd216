"""Build, load and launch kernels."""
