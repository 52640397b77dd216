"""Ways to move less, and to wait less: prefetch, staging, nontemporal stores, transposed reads."""
