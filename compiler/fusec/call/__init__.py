"""A call of a compiled graph: what is checked, what runs, what is handed out.

A call goes through as little as it can. ``codegen/host_program.py`` writes the host program of a
graph as Python; ``native_program.py`` turns a graph that is kernels only into one native call
(outputs are tensors, what only kernels see shares one block of memory), and kernels that stand
together between calls of ATen likewise. The way from Python to here is as short:
``capture/fast_path/__init__.py``. ``make bench-calls`` measures it.

Before a kernel starts, ``input_check.py`` (natively ``native/inputs.cpp``) compares the sizes,
strides, types and devices of inputs with what was compiled, in nanoseconds; guards have done so as
well, but can be skipped. ``results.py`` does it for what operators returned, whose sizes may only
have been promised (``lower/promises.py``), and ``memory/readable.py`` sees that a tensor has memory
that a kernel can read.

Tensors of 1 MiB or more that are allocated in a call on the CPU, by it or by ATen's operators, come
from a pool (``huge_pages.py``, ``native/memory.cpp``): the C library would give their memory back,
and the system clears every page of it anew. The block of what only kernels see is not from the
pool; from 4 MiB on it is in huge pages.

What is native is in ``native/``: C++ files that know Python's C interface, DLPack and the CUDA
driver's prototypes, nothing of torch but for the pool and ``native/readable.cpp``; they are built
once a machine in the background. Without a compiler or Python's headers everything runs as Python.
"""
