"""FX graph to simpler FX graph: decompositions, and the passes in order.

``pipeline.py`` is the only place that imports passes. An entry of its table says for which form of
a graph a pass is (as captured, the joint graph of training, inference, forward and backward after
the split, any part that is lowered next), when it applies, what must stand before it, and what it
is good for; some are ``required``, with the reason why results would be wrong without them.
``capture/backend.py`` calls ``run_passes`` once for each form. The report, ``--without``, the
Fusion tab and the tests that leave each pass out follow from the table:
``docs/recipes/add-a-pass.md``.

After each pass that changed something ``verifier.py`` asks every operator again what it returns,
where the verifier is on. ``choices.py`` has the heuristics; none of them affects correctness.
"""
