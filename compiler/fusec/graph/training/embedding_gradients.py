"""Gradients of a table that is used twice: rows are added to the other gradient where it lies.

A language model's embedding is often its last layer's weight as well.  Its gradient is a matrix
product plus the rows that the embedding's gradient adds up; ATen makes a table of zeros for those,
as large as the product's result, and adds the two.  Here the rows are added to the product's result
itself, so that only they are touched.
"""

from __future__ import annotations

import torch
from torch import fx

aten = torch.ops.aten
_PUTS = (aten.index_put.default, aten._unsafe_index_put.default)
_FILLED = (aten.full.default, aten.new_full.default, aten.full_like.default)
_ZEROS = (aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default)


def add_rows_in_place(module: fx.GraphModule) -> int:
    """Let rows be added to the tensor that their sum would be added to; return how often.

    ``x + zeros.index_put(rows, values, accumulate=True)`` becomes ``x.index_put(...)``.  It is the
    same sum in another order.

    Args:
        module: Functional, with fake tensors in ``meta["val"]``; changed in place.
    """
    changed = 0
    for node in module.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        if node.kwargs or not all(isinstance(arg, fx.Node) for arg in node.args):
            continue
        first, second = node.args
        pairs = ((first, second), (second, first))
        fit = next((p for p in pairs if first is not second and _may_join(node, *p)), None)
        if fit is None:
            continue
        whole, put = fit
        with module.graph.inserting_before(node):
            made = module.graph.call_function(put.target, (whole, *put.args[1:]), put.kwargs)
        made.meta = {**put.meta, "val": node.meta["val"]}
        node.replace_all_uses_with(made)
        changed += 1
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return changed


def _may_join(total: fx.Node, whole: fx.Node, put: fx.Node) -> bool:
    if put.target not in _PUTS or len(put.users) != 1 or put.args[3:] != (True,):
        return False
    found = [node.meta.get("val") for node in (total, whole, put)]
    values = [value for value in found if isinstance(value, torch.Tensor)]
    if len(values) != len(found):
        return False
    same = all(
        (v.shape, v.stride(), v.dtype) == (values[0].shape, values[0].stride(), values[0].dtype)
        for v in values
    )
    # halves would be rounded once less; a GPU's atomics are best left to a table of their own
    return (
        same
        and values[0].dtype in (torch.float32, torch.float64)
        and values[0].device.type == "cpu"
        and _is_zero(put.args[0])
    )


def _is_zero(node: object) -> bool:
    if not isinstance(node, fx.Node):
        return False
    filled = node.target in _FILLED and node.args[-1] in (0, 0.0, False)
    return filled or node.target in _ZEROS


__all__ = ["add_rows_in_place"]
