"""What calls of a captured graph do beside returning something: updates, modes that they switch.

TorchDynamo hands over what a user wrote: ``x.add_(1)``, whose result nobody reads, is an update all
the same.  ``fx.Graph.eliminate_dead_code`` would remove it, and a pass that computes something
later than it stands would compute it of other numbers.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

_IN_PLACE = frozenset(
    getattr(operator, name)
    for name in "setitem delitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor".split()
)
# Called as if they were in place, as their names would be words of Python otherwise.
_NAMED_ALIKE = frozenset((operator.and_, operator.or_, operator.not_, operator.is_))


def written_by(node: fx.Node) -> set[fx.Node]:
    """Return the tensors that a node may write into, directly or by way of views."""
    target = node.target
    name = target if node.op == "call_method" else getattr(target, "__name__", "_")
    if node.op not in ("call_function", "call_method") or target in _NAMED_ALIKE:
        todo = []
    elif isinstance(target, torch._ops.OpOverload):
        todo = node.all_input_nodes if target._schema.is_mutable else []
    elif isinstance(target, torch._ops.OperatorBase):
        todo = node.all_input_nodes  # a region of its own; nobody knows
    elif target in _IN_PLACE or str(name).endswith("_"):
        many = bool(node.args) and isinstance(node.args[0], (list, tuple))
        todo = node.all_input_nodes if many else node.all_input_nodes[:1]
    else:
        out = node.kwargs.get("out")
        todo = [each for each in node.all_input_nodes if out is not None]
    found: set[fx.Node] = set()
    while todo:
        each = todo.pop()
        if each not in found:
            found.add(each)
            todo += each.all_input_nodes[:1]  # what a view is of comes first
    return found


def may_wait(first: fx.Node, last: fx.Node) -> bool:
    """Whether nodes from one on may as well be computed where a later one is.

    Between the two nothing is written to, and no mode is switched: autograd's, autocast's.
    """
    node = first.next
    while node is not last:
        if node.op == "call_module" or written_by(node):
            return False
        if node.op == "call_function" and node.is_impure():
            return False
        node = node.next
    return True


def erase_unused(graph: fx.Graph, node: fx.Node) -> None:
    """Erase a node that nobody reads, and what only it was computed from; none of it updates."""
    todo = [node]
    while todo:
        node = todo.pop()
        if not node.users and node.op.startswith("call") and not node._erased:
            todo += node.all_input_nodes
            graph.erase_node(node)


__all__ = ["erase_unused", "may_wait", "written_by"]
