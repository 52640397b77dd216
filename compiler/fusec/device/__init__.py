"""A compiled part on a GPU: plans of steps, launches in a row, CUDA graphs."""
