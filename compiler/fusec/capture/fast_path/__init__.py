"""Calls without the wrappers of TorchDynamo and AOTAutograd, where they have nothing to do.

``direct.py`` asks AOTAutograd's own record, and the code that it generated, whether its wrappers
have anything to do round a graph but what an ``Epilogue`` does: copy back what was updated, make
views of inputs anew. Then they are left out; operators that are called where autocast is on run
with it off (``call/autocast.py``), as they would within. ``recorded.py`` asks the same of a graph
with gradients (of torch 2.11's wrappers and of later ones), whose forward then saves and hands out
in fewer steps, and whose backward goes straight to its kernels where a call asks for nothing
special. ``capture/shortcut.py`` keeps *entries* for ``fusec.compile`` and ``%%fuse``:
TorchDynamo's guards (``capture/guards/tree.py``, whole or as cheaper equal checks;
``capture/guards/sizes.py`` for symbolic sizes) with TorchDynamo's compiled code
(``compiled_code.py``). A call that fits an entry never enters TorchDynamo; every other call does,
as before.
"""
