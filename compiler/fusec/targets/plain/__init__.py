"""Plain C++: one loop nest a kernel, as on a board, for any compiler."""
