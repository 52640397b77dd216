"""Triton: from a body to a file that a person can read, edit, and run without fusec.

``plan/choices.py`` decides, ``plan/tiling.py`` makes the tile, ``kernels/`` writes a kind each.

Pointwise bodies are ``flat``, or ``tiled``: turned over where memory disagrees about the fastest
axis, and rows of columns where something depends on one axis alone; or ``rows``, taken one by one
by a loop, where elements are gathered. Loads of every other element, two of which take neighbors,
are one (``plan/pairs.py``); so are stores, where an image is enlarged and ``plan/phases.py`` has
cut its results into those that lie at one place between the elements, which share loads and need
no arithmetic for places.

Reductions are ``persistent`` (rows in registers), ``looped``, or ``split`` over programs that
share a row and leave their parts in scratch memory, combined in a fixed order, without atomics
(``kernels/split_reductions.py``), or ``crossed``: rows and columns at once, where a program holds
its rows and its sums in registers (``kernels/row_and_column.py``). What loops would read a row
twice for is carried along: ``rewrite/online_softmax.py`` has sums of exponentials with their
maximum and squared distances with their mean. Rows that are not one stretch of memory are walked
part by part (``Choice.walked``), so that a channel's weight is loaded once and memory is read in
whole lines. Rows of half precision that begin anywhere (a vocabulary of 50257) are looped over
from the last multiple of 16 bytes before them, in whole groups of 16 bytes
(``plan/unaligned_rows.py``). ``plan/eviction.py`` says how long the cache keeps what is loaded.

Products: ``templates/matmul.py.j2`` has the loops of the four ways to compute one (a program a
tile; programs that stay, fed by tensor descriptors; programs that share a sum; tiles of whole
rows), the first and the third also of the transposed product where there are few rows;
``kernels/matmul.py`` fills in what the bodies say, ``plan/choices_matmul.py`` chooses tiles.

Symbolic sizes: ``launch`` decides between positions of 32 and 64 bits; ``tiling.times_reach``
bounds those that are compared, as the edges of a window are. Where a row's length has a bound,
``launch`` makes tiles for rows of each call's length, held in registers (``Choice.sized``).

Attention (``lower/attention/forward.py``, ``backward.py``) is a body with two products, one
below the other, made of the nodes that everything is made of: whether a key's block is in the
block mask is an ``any`` over its list, so that the interpreter, the verifier and equality know
what it means. The user's functions are lowered by the same rules, element by element
(``Lowering.inline``). ``targets/triton/plan/choices_attention.py`` and ``attention_gradients.py``
take such bodies apart again; ``kernels/attention.py`` and ``attention_gradients.py`` fill two
templates, whose loops walk runs of neighboring blocks, those that are kept whole without the
mask; ``kernels/attention_warpgroups.py`` and ``attention_gradients_warpgroups.py`` write the same
in Gluon where ``plan/choices_warpgroups.py`` says that it pays;
``rewrite/score_patterns.py`` has cheaper forms for scores. Few queries of heads that share
keys are put into one tile, and several programs share the keys.
"""
