"""Tuning: measuring honestly, and searching a kernel's tunables."""
