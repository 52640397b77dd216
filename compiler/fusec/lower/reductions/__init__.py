"""Reductions, scans, and the norms that are made of them."""
