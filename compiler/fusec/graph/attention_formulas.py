"""``flex_attention`` where it has no kernel of its own: the formulas that torch has for it.

On a CPU torch runs them operator by operator.  As a part of the graph, scores are a product by
BLAS, and what the user's functions make of them, with the softmax, is a kernel.  (On a CPU torch
refuses inputs whose gradients are wanted.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.flex_attention import sdpa_dense
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fusec.graph.decompositions import decomposition_table
from fusec.graph.regions import inline

aten = torch.ops.aten
_ATTENTION = torch.ops.higher_order.flex_attention
_PASSED_ON = ("stack_trace", "nn_module_stack", "original_aten")  # of what a node is told


def write_attention_out(module: fx.GraphModule, has_kernel: Callable[[str], bool]) -> int:
    """Replace attention by what it computes; return how often.

    Args:
        module: Changed in place.
        has_kernel: Whether attention has a kernel on a kind of device.
    """
    calls = [
        node
        for node in module.graph.find_nodes(op="call_function", target=_ATTENTION)
        if not has_kernel(node.args[0].meta["val"].device.type)
    ]
    changed = sum(_write_out(module, call) for call in calls)
    if changed:
        module.graph.eliminate_dead_code()
    return changed


def _write_out(module: fx.GraphModule, call: fx.Node) -> bool:
    leaves, shape = pytree.tree_flatten(call.args)
    functions = {each: _function(module, each) for each in leaves if isinstance(each, fx.Node)}
    given = [node for node, function in functions.items() if function is None]

    def formulas(*values: Any) -> list[Any]:
        named = {**functions, **dict(zip(given, values, strict=True))}
        arguments = [named[x] if isinstance(x, fx.Node) else x for x in leaves]
        return list(sdpa_dense(*pytree.tree_unflatten(arguments, shape)))

    with torch.no_grad():
        values = [node.meta["val"] for node in given]
        traced = make_fx(formulas, decomposition_table())(*values)  # type: ignore[arg-type]
    if not _alike(traced, call):
        return False
    _clean(traced.graph)
    for node in traced.graph.nodes:
        node.meta |= {key: call.meta[key] for key in _PASSED_ON if key in call.meta}
    inline(module, call, traced, given)
    return True


def _clean(graph: fx.Graph) -> None:
    """Take out what no graph of AOTAutograd's has: conversions of numbers, needless copies."""
    for node in list(graph.nodes):
        source = node.args[-1] if node.target is aten.copy_.default else node.args and node.args[0]
        if node.target is aten._to_copy.default and not isinstance(source, fx.Node):
            floating = node.kwargs["dtype"].is_floating_point
            node.replace_all_uses_with(float(source) if floating else int(source))
        elif node.target in (aten.clone.default, aten.copy_.default) and _lie_alike(node, source):
            node.replace_all_uses_with(source)
        elif node.target is aten.copy_.default:  # into new memory, laid out as queries are
            node.target = aten.copy.default
            continue
        else:
            continue
        graph.erase_node(node)


def _lie_alike(*nodes: fx.Node) -> bool:
    one, two = (node.meta["val"] for node in nodes)
    return (tuple(one.shape), one.stride()) == (tuple(two.shape), two.stride())


def _function(module: fx.GraphModule, node: fx.Node) -> fx.GraphModule | None:
    """Return the traced function that an argument is, if it is one."""
    found = getattr(module, str(node.target), None) if node.op == "get_attr" else None
    return found if isinstance(found, fx.GraphModule) else None


def _alike(traced: fx.GraphModule, call: fx.Node) -> bool:
    """Whether the formulas give tensors of the kinds that the graph was traced with."""
    (output,) = traced.graph.find_nodes(op="output")
    made = [node.meta["val"] for node in output.args[0]]
    return all(
        (one.dtype, tuple(one.shape), one.stride()) == (two.dtype, tuple(two.shape), two.stride())
        for one, two in zip(made, call.meta["val"], strict=True)
    )


__all__ = ["write_attention_out"]
