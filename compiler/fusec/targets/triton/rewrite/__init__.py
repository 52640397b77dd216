"""Bodies written otherwise before they are planned: online sums, unpacked operands, scores."""
