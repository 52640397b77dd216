"""The inputs of a captured graph: names, lists, numbers, shared memory."""
