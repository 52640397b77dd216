"""Operands of random types, sizes and layouts: refused where eager does, and right elsewhere."""
