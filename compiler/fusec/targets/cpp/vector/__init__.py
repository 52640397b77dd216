"""Ways to keep vector units busy: interleaved loops, quick forms of functions, running sums."""
