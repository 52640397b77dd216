"""Passes about products of matrices: precision, alignment, bias, library.

Products run in the libraries that ATen calls, and these passes see to it that the libraries get
what they are fast at; each says so in the reason of the extern call.

- ``widened_halves.py``: processors that multiply half precision more slowly than float32 (timed
  once a machine, ``half_speed.py``) get such products in float32, and what was rounded only to be
  multiplied is not rounded.
- ``products_of_halves.py``: what was half precision a moment before is multiplied as such on a GPU,
  with a result in float32.
- ``alignment.py``: products of half precision on a GPU whose rows are no multiples of 16 bytes are
  padded.
- ``bias.py`` leaves a product's bias, and that of a convolution on a GPU, to the kernel that reads
  the result, and its gradient to the one that computes what is summed up.
- ``onednn.py``: float32 products go to oneDNN on AMD's processors, where MKL takes twice as long
  (``graph/choices.py``).
- ``wide_results.py``: BLAS writes float32 where nothing else is made of a half-precision product.

Products that are kernels of our own are told of in ``schedule/__init__.py``.
"""
