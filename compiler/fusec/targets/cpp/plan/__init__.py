"""What is decided before a kernel is written: every heuristic, and the passes over a row."""
