"""From the text of a kernel to something to call: Triton, its compiler, its interpreter."""
