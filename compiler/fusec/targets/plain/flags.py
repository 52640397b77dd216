"""What plain kernels are compiled with: nothing of one processor, no OpenMP."""

# Signed integers wrap, as eager's do; a product and a sum are rounded one by one.
FLAGS = ("-std=c++17", "-O2", "-fwrapv", "-ffp-contract=off", "-shared")

__all__ = ["FLAGS"]
