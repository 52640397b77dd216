"""Tuning: what may be chosen in a kernel, the search for the best of it, records of what won."""
