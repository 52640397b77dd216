"""Shapes of maths with a cheaper form, taken where half precision hides the difference."""

from __future__ import annotations

from fusec.codegen.patterns import ONE_PLUS, use_one_plus
from fusec.codegen.triton.relaxed import relaxed_nodes
from fusec.ir.body import Body


def use_patterns(body: Body) -> Body:
    """Return ``body`` with ``1 + erf`` and ``1 + tanh`` as single operations, where they may be."""
    relaxed = relaxed_nodes(body)
    # positions and indices are never relaxed, so that no expression changes
    return use_one_plus(body, ONE_PLUS, lambda node: node in relaxed)
