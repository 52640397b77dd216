"""Builds of any target: many at once, and what they leave to look at.

``make bench-compile`` prints what a compilation takes beside TorchInductor's; every result has a
line with each stage's share. What keeps it short:

- ``%load_ext`` imports next to nothing; ``fuselab/session/warm_up.py`` imports the compiler and
  draws a first figure between cells, never beside one.
- ``pipeline.emit`` writes the kernels that have to be built first and hands each to ``queue.py``,
  whose compilers run while the others are written, Triton's in processes of its own, a kernel each
  (``targets/triton/toolchain/pool.py``; at most 16, ``FUSEC_TRITON_WORKERS=0`` for none).
- The backward part of what runs on a GPU is compiled by a thread while the forward part runs for
  the first time (``capture/background.py``).
- ``graph/simplify/cse.py`` merges equal computations of a joint graph where torch's own pass would
  import all of TorchInductor's lowering; ``capture/dynamo/quiet_dynamo.py`` leaves out
  TorchDynamo's timing of its guards, a tenth of a small function's compilation.
- ``verify/trials/references.py`` keeps what edits of one kernel are held against.

What is left is TorchDynamo and AOTAutograd: four fifths of a large graph.
"""
