"""A call of a compiled graph: what is checked, what runs, what is handed out."""
