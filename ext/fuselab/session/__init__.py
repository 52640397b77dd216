"""What a notebook has fused: cells, kernels, edits and their history, tuning runs."""
