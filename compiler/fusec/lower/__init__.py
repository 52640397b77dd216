"""Lowering: from an ATen-level FX graph to a loop-level program, a file a family of operators.

An operator's rule (``@register(aten.name)``) says what one element of its result is; what it does
not cover it refuses with ``NotLowered("why")``, and ATen computes it, with that reason. To add one:
``docs/recipes/add-an-operator.md``.

**Products** are lowered twice: as the call of BLAS that eager would make, and as a body around a
``Dot`` (``matmul.py``), which the interpreter, the verifier and fusion treat like any other.

**Adding at computed places.** ``scatter/rules.py`` has the operators. Where the places are known
before anything runs (``ir/along.py`` computes what depends on one axis alone, ``definitions.py``
finds it through earlier steps), ``known_places.py`` there turns the addition round, so that each
element gathers; a table of few rows is a reduction for each row (``few_rows.py``); what is left
takes atomics.

**Symbolic sizes.** ``sizes.py`` turns torch's expressions into index expressions; what has no form
there is guarded to be what it is. Kernels hold for every size; how they are cut up is decided by
the size at hand, which a ``Symbol`` has as its ``hint`` (in Triton, ``known`` in
``targets/triton/plan/choice.py``). Rows that a softmax or a norm reads more than once are guarded
to be of 16,384 elements at most, where those at hand are (``graph/simplify/short_rows.py``): a
``Symbol`` then has a bound. Sizes that a graph was promised (``torch._check``) are checked by
``promises.py``.

Where results have gaps in eager, ``gaps.py`` lays them out so.
"""

from fusec.lower.program import lower_graph

__all__ = ["lower_graph"]
