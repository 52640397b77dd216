"""A backward graph for calls in which some of the gradients that it takes were not asked for.

Computed from zeros, the gradient of ``log(x)`` at 0 is 0 times infinity, which is NaN, and so is
the sum of it and of a gradient that was asked for.  In eager there is nothing to add.  So what
depends on gradients that are missing alone is left out, and of a sum the rest is left.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Set

import torch
from torch import fx
from torch.utils import _pytree as pytree

_ADD = torch.ops.aten.add.Tensor


def copied(module: fx.GraphModule) -> fx.GraphModule:
    """Return a graph as it is now, before passes change it."""
    kept = copy.copy(module)
    kept.graph = copy.deepcopy(module.graph)
    return kept


def asks_in_part(module: fx.GraphModule, missing: Set[int], tangents: int) -> bool:
    """Whether one of autograd's functions that users write gets some of its gradients, not all.

    It is given zeros for the others then, of which it may make anything; one that gets none is not
    run.

    Args:
        module: As it was captured.
        missing: Which gradients of its results are, as numbers in order.
        tangents: How many there may be.
    """
    parts = [each for each in module.modules() if isinstance(each, fx.GraphModule)]
    if not any(_is_users(node) for each in parts for node in each.graph.nodes):
        return False
    (output,) = module.graph.find_nodes(op="output")
    results = [n for n in pytree.tree_leaves(output.args) if isinstance(n, fx.Node)]
    if not all(isinstance(node.meta.get("example_value"), torch.Tensor) for node in results):
        return True
    results = [node for node in results if node.meta["example_value"].requires_grad]
    if len(results) != tangents:
        return True  # who knows which is of which
    asked = {n for i, n in enumerate(results) if i not in missing}
    for reached in _reached_by_functions(module, {each: {each} for each in results}):
        gets = {bool(asked & each) for each in reached if each}
        if len(gets) > 1:
            return True
    return False


def _is_users(node: fx.Node) -> bool:
    """Whether a node is one of autograd's functions that users write."""
    return "autograd_function_apply" in str(node.target)


def _reached_by_functions(
    module: fx.GraphModule, ends: dict[fx.Node, set[fx.Node]]
) -> Iterator[list[set[fx.Node]]]:
    """Yield for each function, in graphs within the graph as well, what follows from its results.

    Args:
        module: A graph.
        ends: The results of the outermost graph that follow from nodes of this one.
    """

    def reached(node: fx.Node) -> set[fx.Node]:
        return {end for each in _after(node) for end in ends.get(each, ())}

    for node in module.graph.nodes:
        if _is_users(node):
            yield [reached(branch) for branch in node.users]
            continue
        for given in node.all_input_nodes:
            inner = getattr(module, str(given.target), None) if given.op == "get_attr" else None
            if isinstance(inner, fx.GraphModule):
                yield from _reached_by_functions(inner, _inner_ends(inner, node, reached))


def _inner_ends(
    inner: fx.GraphModule, call: fx.Node, reached: Callable[[fx.Node], set[fx.Node]]
) -> dict[fx.Node, set[fx.Node]]:
    """Return what follows from each result of a graph that a node calls."""
    (output,) = inner.graph.find_nodes(op="output")
    picked = [user for user in call.users if user.target is operator.getitem]
    ends: dict[fx.Node, set[fx.Node]] = {}
    for i, result in enumerate(pytree.tree_leaves(output.args)):
        if isinstance(result, fx.Node):
            users = [user for user in picked if user.args[1] == i] if picked else [call]
            ends.setdefault(result, set()).update(*map(reached, users))
    return ends


def _after(node: fx.Node) -> set[fx.Node]:
    """Return a node and all that is computed from it."""
    found, waiting = {node}, [node]
    while waiting:
        new = set(waiting.pop().users) - found
        found |= new
        waiting += new
    return found


def without_gradients(
    module: fx.GraphModule, missing: Set[int], reached: int
) -> fx.GraphModule | None:
    """Return a backward graph that takes some of its gradients for none.

    Args:
        module: As torch's partitioner made it; not changed.
        missing: Which of its gradients, as numbers in order.
        reached: As bits, those of its results that are zeros where they depend on nothing else:
            functions of autograd's that users write are given zeros for what is missing.

    Returns:
        A graph that takes the same inputs, and returns None for the others of those;
        None where that cannot be said.
    """
    if not missing:
        return None
    changed = copied(module)
    graph = changed.graph
    taken = [n for n in graph.find_nodes(op="placeholder") if n.name.startswith("tangents")]
    absent = {taken[i] for i in missing}
    depends = set(taken)
    for node in list(graph.nodes):
        given = [each for each in node.all_input_nodes if each in depends]
        if node.op in ("placeholder", "output") or not given:
            continue
        if not _is_computed(node):
            return None
        lacking = [each for each in given if each in absent]
        if not _is_tensor(node) and lacking:
            return None  # a size of a gradient, say
        depends.add(node)
        if len(lacking) == len(given):
            absent.add(node)
        elif lacking:
            rest = _rest_of_sum(node, lacking)
            if rest is None:
                _give_zeros(graph, node, lacking)
            else:
                node.replace_all_uses_with(rest)
    (output,) = graph.find_nodes(op="output")
    values = list(output.args[0])
    for i, value in enumerate(values):
        if value in absent:
            values[i] = _zeros(graph, output, value) if reached >> i & 1 else None
    output.args = (type(output.args[0])(values),)
    graph.eliminate_dead_code()
    changed.recompile()
    return changed


def _is_computed(node: fx.Node) -> bool:
    """Whether a node does nothing but compute its result from its inputs."""
    if node.op != "call_function" or node.is_impure():
        return False
    schema = getattr(node.target, "_schema", None)
    return schema is None or not schema.is_mutable


def _is_tensor(node: fx.Node) -> bool:
    values = pytree.tree_leaves(node.meta.get("val"))
    return bool(values) and all(v is None or isinstance(v, torch.Tensor) for v in values)


def _rest_of_sum(node: fx.Node, lacking: list[fx.Node]) -> fx.Node | None:
    """Return the term of a sum of two that there is; None where it is no such sum."""
    if node.target is not _ADD or node.kwargs or len(node.args) != 2:
        return None
    (rest,) = [each for each in node.args if each not in lacking]
    if not isinstance(rest, fx.Node):
        return None
    mine, its = node.meta["val"], rest.meta["val"]
    same = mine.shape == its.shape and mine.dtype == its.dtype and mine.stride() == its.stride()
    return rest if same else None


def _give_zeros(graph: fx.Graph, node: fx.Node, lacking: list[fx.Node]) -> None:
    for each in lacking:
        node.replace_input_with(each, _zeros(graph, node, each))


def _zeros(graph: fx.Graph, before: fx.Node, value: fx.Node) -> fx.Node:
    with graph.inserting_before(before):
        zeros = graph.call_function(torch.ops.aten.zeros_like.default, (value,))
    zeros.meta = copy.copy(value.meta)
    return zeros


__all__ = ["asks_in_part", "copied", "without_gradients"]
