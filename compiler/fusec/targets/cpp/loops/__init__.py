"""Loop nests, a file a kind: pointwise, rows, columns, short rows, scatter."""
