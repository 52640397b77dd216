"""Calls that eager refuses: found before anything is compiled that would accept them."""
