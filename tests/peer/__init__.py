"""Somebody else's test files, run with our backend in the place of the one that they name."""
