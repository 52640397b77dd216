"""Where a candidate runs: processes that are thrown away, and what they watch."""
