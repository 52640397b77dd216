"""What is decided before a kernel is written: every heuristic, the tiles, the tunables."""
