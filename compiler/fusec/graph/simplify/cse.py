"""Equal computations of a graph are done once.

Torch's partitioner has a pass for this too, but that one imports all of TorchInductor's lowering
for two small helpers, which takes a second or two.  This one takes fewer operators to be equal: it
tells 0.0 from -0.0, and leaves alone what is not an operator of torch's own.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch import fx

from fusec.graph.facts.storages import storages

_NAMESPACES = frozenset({"aten", "prims"})
# Their values are whatever was in memory; merging them would make two results one.
_UNDEFINED = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
)
_PLAIN = (str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def merge_common(graph: fx.Graph) -> int:
    """Let the first of equal computations stand for the others; return how many are gone.

    Results of the graph and what shares memory with them stay as they are: two results that are
    equal are two tensors.

    Args:
        graph: Functional, but for copies into its inputs; changed in place.
    """
    kept = _shares_memory_with_results(graph)
    known: dict[Hashable, fx.Node] = {}
    removed = 0
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if _may_change_memory(node):
            known.clear()  # what is computed from here on may read something else
            continue
        if node in kept or not _is_pure(node):
            continue
        key = _key(node)
        if key is None:
            continue
        first = known.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
            removed += 1
    return removed


def _may_change_memory(node: fx.Node) -> bool:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.is_mutable
    # Arithmetic on sizes and picking one of several results change nothing; of anything else
    # nobody knows.
    return getattr(target, "__module__", "") not in ("_operator", "math")


def _is_pure(node: fx.Node) -> bool:
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in _NAMESPACES:
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or "unbacked_bindings" in node.meta:
        return False
    return target._opname not in _UNDEFINED


def _key(node: fx.Node) -> Hashable | None:
    """Return what is equal for equal computations; None where it cannot be told."""
    try:
        arguments = (_frozen(node.args), _frozen(node.kwargs))
    except TypeError:
        return None
    return (node.target, arguments)


def _frozen(value: Any) -> Hashable:
    """Return a hashable form that tells 1 from 1.0 and from True, and 0.0 from -0.0."""
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(each) for each in value)
    if isinstance(value, dict):
        return tuple((name, _frozen(each)) for name, each in value.items())
    if value is None or isinstance(value, (fx.Node, *_PLAIN)):
        return value
    if isinstance(value, slice):
        return ("slice", _frozen((value.start, value.stop, value.step)))
    if type(value) in (bool, int, float, complex):
        return (type(value), repr(value))
    raise TypeError


def _shares_memory_with_results(graph: fx.Graph) -> set[fx.Node]:
    results = {
        storage
        for node in graph.find_nodes(op="output")
        for each in node.all_input_nodes
        for storage in storages(each)
    }
    return {node for node in graph.nodes if not results.isdisjoint(storages(node))}


__all__ = ["merge_common"]
