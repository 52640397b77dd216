"""Ahead of time: signatures of calls, and compiled calls that another process takes up.

``signatures.py`` writes down what calls are like; ``record.py`` collects them from real runs.
An *artefact* is a compiled call in the store on disk: its guards as a table (``guard_table.py``,
read off TorchDynamo's tree by ``guard_reader.py``), the code that TorchDynamo made of the function
(``code_object.py``), and the graph's host program with its kernels (``compiled/written.py``).
``artefact.py`` writes one and takes one up; ``guard_check.py`` holds it against a call.  Nothing is
pickled: all is JSON and text, and a reference to an object of a library is its name.
"""
