"""Products of half precision on a GPU that are returned in float32: BLAS writes them so.

Gradients of weights under autocast: eager rounds each to half precision, then widens it with a
kernel of its own, which reads and writes it once more.  BLAS adds up in float32 anyway.
"""

from __future__ import annotations

import torch
from torch import fx

from fusec.devices import is_gpu
from fusec.graph.choices import stays_a_product
from fusec.graph.facts.insertion import caller
from fusec.graph.facts.joint_graph import moves_elements
from fusec.graph.facts.notes import NOTES

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)


def ask_for_wide_results(module: fx.GraphModule) -> int:
    """Have products write float32 where nothing else is made of them, in place; return how many.

    Args:
        module: A graph of ATen operators with fake tensors in ``meta["val"]``.
    """
    (output,) = module.graph.find_nodes(op="output")
    changed, tried = 0, False
    for node in module.graph.find_nodes(op="call_function", target=aten._to_copy.default):
        if not _is_only(node, output) or not _widens(node):
            continue
        views: list[fx.Node] = []
        source = node.args[0]
        while moves_elements(source) and len(source.users) == 1:
            views.append(source)
            source = source.args[0]
        if source.target is not aten.mm.default or len(source.users) != 1 or not _fits(source):
            continue
        tried = True
        with module.graph.inserting_before(source):
            made = caller(module.graph, source)(aten.mm.dtype, *source.args, torch.float32)
        if NOTES in source.meta:
            made.meta[NOTES] = source.meta[NOTES]
        for view in reversed(views):
            with module.graph.inserting_before(view):
                made = caller(module.graph, view)(view.target, made, *view.args[1:], **view.kwargs)
        wanted = node.meta["val"]
        if made.meta["val"].stride() == wanted.stride():
            node.replace_all_uses_with(made)
            changed += 1
    if tried:  # what is of no use any more, or did not lie as it must
        module.graph.eliminate_dead_code()
        module.recompile()
    return changed


def _is_only(node: fx.Node, output: fx.Node) -> bool:
    return list(node.users) == [output]


def _widens(node: fx.Node) -> bool:
    wide, narrow = node.meta["val"], node.args[0].meta["val"]  # type: ignore[union-attr]
    return bool(
        wide.dtype == torch.float32
        and narrow.dtype in _HALF
        and wide.device == narrow.device
        and wide.layout == narrow.layout
    )


def _fits(product: fx.Node) -> bool:
    left, right = (operand.meta["val"] for operand in product.args)  # type: ignore[union-attr]
    if not is_gpu(left.device) or torch.version.hip is not None:
        return False
    known = [size for size in (*left.shape, right.shape[1]) if isinstance(size, int)]
    return stays_a_product(known)


__all__ = ["ask_for_wide_results"]
