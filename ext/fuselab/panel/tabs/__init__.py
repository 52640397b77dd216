"""The tabs of the panel, a file a tab, and the parts that stand in them."""
