"""Cell source to a function that is fused, and its run in the notebook."""
