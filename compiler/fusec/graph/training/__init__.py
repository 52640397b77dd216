"""Passes over joint graphs: what forward keeps for backward, and what backward computes again.

Forward and backward are divided by torch's partitioner. Before it sees the joint graph, what it
could only keep as a whole is taken apart:

- ``log_softmax.py``: a log-softmax follows from its input and two numbers a row.
- ``rematerialize.py``: what relu and its like were given follows from a norm's input and
  statistics (``norm_formula.py``), which backward reads anyway; neither a mask nor the norm's
  result is kept for it.
- ``narrow_saved.py``: backward widens once more what autocast widened, so that the residual stream
  of a network is kept in half precision.
- ``graph/simplify/extremes.py``: what is compared with its own greatest or least elements is
  computed once, in forward, and read; computed again it might be off by a last place, and equal
  none (``Program.once`` holds kernels to it).
- ``embedding_gradients.py``: rows of a gradient are added to a product's result where it lies.

Behind the partitioner, ``rematerialize_inputless.py``: what follows from no input is computed again
in backward, which knows then what it is.
"""
