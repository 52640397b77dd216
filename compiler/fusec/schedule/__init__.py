"""Which computations share a kernel, and how its loops run.

Pointwise results are computed where they are read (``inline.py``); then pairs become one kernel,
the pair that saves most memory traffic first (``fuse.py``). Every pair that did and did not has a
reason. The heuristics are in ``choices.py`` and its siblings; none affects correctness.

**Rows and columns at once.** ``row_and_column.py`` gives kernels that go along rows the sums that
another kernel would take down the columns of the same data (the gradients of a norm's weight and
bias, the bias of the linear layer below it), and lets one small kernel add up the pieces.
``choices_sums.rows_of_piece`` says how many rows a piece has, by sizes alone, so that results are
the same in every run; where sums do not pay, the two kernels stay apart, with the reason.

**Matrix products.** The option ``matmul`` says how one runs: ``extern`` BLAS, ``template`` the
kernel, ``small`` (the default) the kernel for products on a GPU that are over before BLAS would
have been called (``choices_products.py``), ``auto`` what is faster: ``tune/products.py`` schedules
the graph with all products as kernels, has ``tune/products_race.py`` time each one, with its
epilogue, against BLAS and separate kernels on the GPU at hand, puts those that lose back, and
keeps the result in the disk cache. What fuses with a product, and what does not, is decided in
``fuse.py`` and ``inline.py`` with reasons as ever: elementwise work after it, reductions of its
rows where a tile is as wide as a row (softmax, norms), and before it what costs next to nothing or
reads fewer bytes (quantized weights). ``products.py`` joins, with a load standing in for the
product, and makes products of a vector sums, which go the way of all reductions.

**In place.** What a graph updates (an optimizer's step, running statistics) is returned by
AOTAutograd's functional graph and copied back, all of a kind by one operator
(``call/updates.py``). ``in_place.py`` lets the kernel write into the input where nobody can tell
the difference; the copy then has nothing to do. ``overwrite.py`` has large results written over
what their kernel is the last to read, element by element: an activation behind a convolution needs
no memory of its own. ``sink_conversions.py`` has weights converted not long before they are needed,
so that they are not all there at once. ``redundant_copies.py`` adds rows of a gradient where a
product's result lies.
"""

from fusec.schedule.plan import Schedule, products_of, schedule_program, small_products

__all__ = ["Schedule", "products_of", "schedule_program", "small_products"]
