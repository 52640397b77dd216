"""Which nodes of a graph share memory, by the storages of their fake tensors."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves


def storages(node: fx.Node) -> list[StorageWeakRef]:
    """Return the storages of a node's tensors."""
    found = []
    for value in tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor):
            with suppress(NotImplementedError, RuntimeError):  # sparse tensors have none
                found.append(StorageWeakRef(value.untyped_storage()))
    return found


def makers_of_shared_results(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that make memory which several results are, or one result is a view of.

    In eager whoever writes to one of the results sees it in the others.
    """
    (output,) = graph.find_nodes(op="output")
    results = [each for each in tree_leaves(output.args[0]) if isinstance(each, fx.Node)]
    times = Counter(storage for each in results for storage in storages(each))
    makers: dict[StorageWeakRef, fx.Node] = {}
    for node in graph.nodes:
        for storage in storages(node):
            makers.setdefault(storage, node)
    return {
        makers[storage]
        for each in results
        for storage in storages(each)
        if times[storage] > 1 or makers[storage] is not each
    }


__all__ = ["makers_of_shared_results", "storages"]
