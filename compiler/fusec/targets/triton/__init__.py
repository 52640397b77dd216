"""Triton: from a body to a file that a person can read, edit, and run without fusec."""
