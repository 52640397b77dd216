"""Lowering: from an ATen-level FX graph to a loop-level program, a file a family of operators."""

from fusec.lower.program import lower_graph

__all__ = ["lower_graph"]
