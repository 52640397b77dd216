"""The golden C++ kernels with other compilers and for other machines: ``make compilers``."""
