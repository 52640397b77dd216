"""Text of a kernel file: statements, expressions, indices, helpers, names, lines."""
