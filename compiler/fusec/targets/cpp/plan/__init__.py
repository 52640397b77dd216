"""What is decided of a C++ kernel before it is written: C++ decides first, writes second.

``targets/cpp/plan/choose.py`` makes a ``LoopPlan`` of a body: a frozen value with the kind of
loops and everything else that is to be decided of them, each decision with its reason
(``explain``, and the stage *emit*, show them). Nothing in ``plan/`` writes text; ``Facts``
(``facts.py``) is what decisions go by. A file decides one thing: ``pointwise.py``, ``rows.py`` (a
row at a time in passes, long rows in pieces, rows that also add to sums of the columns),
``columns.py`` (columns side by side, short rows turned over), ``scatter.py`` plan kinds of loops;
``threads.py`` says how threads share them, ``cache_blocks.py`` which loops go by a few cache
lines, ``prefetch.py`` what is asked of the memory before it is needed, ``staging.py`` what goes
through arrays a block or a short row at a time (float16, rounding to bfloat16, random words),
``nontemporal.py`` what is written past the caches, ``loop_tables.py`` what only the innermost
loop decides, ``row_reuse.py`` which rows several rows of the result are made from,
``deinterleave.py`` which rows are put apart into even and odd elements, ``interleave.py`` which
costly loops take four vectors side by side, ``moderate_angles.py`` where sines and remainders have
a quick form, ``split_ranges.py`` where loops are cut because a condition changes,
``scan_passes.py`` how running sums go by vectors, ``tiles.py`` what is turned over; ``axes.py``
leaves out loops of one turn and splits an axis that is several in one. The heuristics that they
ask are all in ``choices.py``. ``loops``, ``memory`` and ``vector`` write what the plan says, a file
a technique; a test sees to it that they ask no heuristic.

What a plan says can be asked for otherwise (``plan/wanted.py``): a kind of loops, a technique
left out, a size, as in ``loops="softmax: rows prefetch=0 ROWS=4"`` of ``Options``, of
``reschedule`` and, as ``LoopOverride``, of ``inspect/whatif.py``. ``tune/plan_search.py`` tries
what a plan's alternatives are worth. What is not possible stays as it was, and the plan says so.

**A tree of loops, tried and not kept.** Pointwise nests were written once more as a tree of loops
and statements, with threads, blocks, prefetch, staging, interleaving and both forms of sines as
passes over it, and one printer (at 4c7e840; 120 of the 168 nests of 702 kernels went that way,
with the same text but for the order of two constants in 23 of them). It took 191 lines of code
where the writers that it replaced take 201, without tables, row reuse, deinterleaving and short
rows, which the 201 have: not shorter. The reason is what it would have to be for rows as well: a
pass runs before anything has a name, so the first position of a block, its marks and its arrays
are known only when the tree is printed, and each pass becomes closures over a record of names to
come; which values get a name hangs on what is open around them (``Scope.compute``), which only
the printer knows. A ``with`` statement round what is inside says the same in the order in which
it is read. What passes over a tree were to give, techniques that can be seen, left out and put in
another order, is what the plan gives.
"""
