"""Special functions, as expressions of elementary ones."""
