"""Exports: what leaves fuselab and runs without it."""
