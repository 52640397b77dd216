"""C++ from a text to a loaded library: which compiler, with which flags, and what it said.

Kernels of the targets in C++ are built here, and so are the parts of the compiler that are C++
themselves (``call/native``). It knows no kernel: a text, its flags, a place in the store.
"""
