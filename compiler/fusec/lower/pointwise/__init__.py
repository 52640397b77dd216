"""Operators of single elements."""
