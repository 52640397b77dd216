"""Loop-level IR: index expressions, value graphs, bodies, programs, and their interpretations.

A ``Body`` is a set of loops (``axes``, and ``reduce_axes`` that reductions run over) with stores.
What a store writes is a graph of immutable, interned ``Node``s, recorded once by ordinary Python
functions over symbolic indices; a ``Reduce`` has one value a row, a ``Scan`` one for each position
along a loop, which runs in order. A ``Load`` names a buffer and one index expression a dimension;
the layout comes in only when text is written. A store that *updates* (adds, multiplies, takes the
maximum, puts at a computed place, or writes only some elements) is a scatter; its body is never
joined with its readers. A store may also *sum*: ``parts[row // 64, column]`` gets the sum of all
rows of a piece.

Fusion is substitution: a load of another body's result is replaced by the value itself. The
printer, the reference interpreter (slow and obviously right, the oracle of the tests), the
verifier, C++ and Triton are readings of the same graph.

``bounds.py`` says what a value can be, from the loops' bounds and the types: comparisons, checks
and the wrapping of computed indices that it decides go away while a body is recorded, and once
more when fusion has put the index into the body that uses it (``schedule/fold_bounds.py``).
``along.py`` computes what depends on one axis alone.

An index expression (``index.py``) is a polynomial (``polynomial.py``) over loops, sizes and their
quotients and remainders, whose ranges decide what simplifies. ``program.py`` has the list of steps,
kernels to write and operators to call, that a whole graph becomes.

Equal kernels are built once: ``equality.py`` writes a body without its names, and ``pipeline.py``
finds by it, before anything is written, which kernels of a graph (the layers of a model) have the
same text. They launch one build, and each keeps a source of its own to read and to edit.
"""
