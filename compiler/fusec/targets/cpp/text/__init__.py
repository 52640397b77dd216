"""Text of a kernel file: expressions, reductions, scans, types, lines and what they came from."""
