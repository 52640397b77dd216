"""C++ with OpenMP: the emitter and the maths that its kernels use.

``emit.py`` makes the file. A kind of loop nest has a file in ``loops/``: pointwise; rows, one at a
time, in passes; rows that also add to sums of the columns; columns side by side; many short rows
side by side; long rows in parts; scatters. What they share:

- ``plan/cache_blocks.py`` cuts the innermost loop into blocks of a few cache lines, keeping a
  result a lane; ``memory/prefetch.py`` says what a block asks the memory for before it is needed.
- ``memory/loop_tables.py`` keeps what only the innermost loop decides; ``loops/row_reuse.py``
  keeps rows that several rows of the result are made from, and hands them on.
- ``memory/staging.py`` converts float16, rounds to bfloat16 and draws random words, a block or a
  short row at a time; ``memory/deinterleave.py`` puts the even and the odd elements of a row into
  an array each, for windows that move by two.
- ``split_ranges.py`` splits loops where a condition changes; ``nontemporal.py`` writes past the
  caches what is larger than they are and quickly computed; tiles are turned over where memory
  disagrees about the fastest axis.
- ``vector/moderate_angles.py`` gives a block a quick form where its angles or quotients are
  moderate; ``vector/interleave.py`` has costly loops take four vectors side by side;
  ``loops/running_sums.py`` adds up running sums by vectors.

``plan/`` decides, with every heuristic in ``plan/choices.py``; ``fusec/toolchain`` builds.

A kernel reads so: first what it computes and its loops; the functions that it calls stand in a
block at the end, each behind those that it needs, under the name of a header that the text
includes near its top (``fusec/helper_block.py``). Compilers, and exported files, get the block
where it is included, with the lines numbered as they are in the text.

The maths is told of in ``mathlib/README.md``.
"""
