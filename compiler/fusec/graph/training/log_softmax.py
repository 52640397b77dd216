"""What backward needs of a log-softmax is its input and two numbers a row, not its result.

In one operator the partitioner can only keep the result, which is as large as the input: for a
language model the logits once more, written by forward for nothing else.  Taken apart, backward
computes it again from the input while it reads it.
"""

from __future__ import annotations

import torch
from torch import fx

from fusec.graph.facts.insertion import caller

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


def open_log_softmax(module: fx.GraphModule) -> int:
    """Take the log-softmaxes of a joint graph apart, in place; return how many there were."""
    found = [n for n in module.graph.nodes if n.target is aten._log_softmax.default and _fits(n)]
    for node in found:
        with module.graph.inserting_before(node):
            result = _opened(module.graph, node)
        node.replace_all_uses_with(result)
        module.graph.erase_node(node)
    return len(found)


def _fits(node: fx.Node) -> bool:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value = source.meta["val"]
    sizes = [s for s in value.shape if isinstance(s, int)]
    # eager's result is row-major, where what it is taken apart into lies as the input does
    lies_alike = str(value.stride()) == str(node.meta["val"].stride())
    return value.ndim > 0 and 0 not in sizes and lies_alike


def _opened(graph: fx.Graph, node: fx.Node) -> fx.Node:
    x, dim, _ = node.args
    assert isinstance(x, fx.Node)

    call = caller(graph, node)
    # as eager computes it: in float32, from the largest, rounded once
    wide = x
    if x.meta["val"].dtype in _HALF:
        wide = call(aten._to_copy.default, x, dtype=torch.float32)
    shifted = call(aten.sub.Tensor, wide, call(aten.amax.default, wide, [dim], True))
    total = call(aten.sum.dim_IntList, call(aten.exp.default, shifted), [dim], True)
    result = call(aten.sub.Tensor, shifted, call(aten.log.default, total))
    wanted = node.meta["val"].dtype
    if result.meta["val"].dtype != wanted:
        result = call(aten._to_copy.default, result, dtype=wanted)
    return result


__all__ = ["open_log_softmax"]
