"""Data to matplotlib figures: pure functions, no pyplot, no global state."""
