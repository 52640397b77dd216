"""Passes that simplify: cse, foreach, masks, seeds, short rows."""
