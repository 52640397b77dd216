"""Packages: compiled programs with their kernels, in one file that can be checked and shipped.

``write.py`` makes one: ``capture.py`` runs a function and finds the graph that it became,
``programs.py`` writes that down as JSON, ``host_text.py`` as C++, ``binaries.py`` builds it for
each processor. ``load.py`` runs one on torch's tensors; ``runtime/`` does all of that which needs
no torch: ``pip install fuselab[runtime]``, or ``fuselab-runtime``, which is made of the same files.
"""
