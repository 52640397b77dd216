"""A compiled graph and its parts: what a user holds, calls, edits, checks and tunes."""
