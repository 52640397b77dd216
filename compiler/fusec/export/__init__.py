"""Exports: a kernel's text in use as a file that runs without fuselab.

``forms.py`` has the table of forms; the magics, the panel's buttons and ``Kernel.export`` read it.
``standalone.py`` writes the kernel and a function that calls it, ``operator.py`` an operator of
torch. To add one: ``docs/recipes/add-an-export-form.md``.
"""
