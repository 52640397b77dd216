"""From the text of a kernel to a loaded library: the compiler, its flags, the build."""
