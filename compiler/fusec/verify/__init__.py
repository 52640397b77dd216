"""Checking a kernel before it is used: in a worker process first, then against references."""
