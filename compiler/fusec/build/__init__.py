"""Builds of any target: many at once, and what they leave to look at."""
