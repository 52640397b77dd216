"""C++ with OpenMP: the emitter and the maths that its kernels use."""
