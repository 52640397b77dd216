"""Products of float32 matrices that were half precision a moment before, on a GPU.

Attention that ATen takes apart (its bias wants a gradient, say) widens queries and keys, scales
them and multiplies them in float32, without tensor cores.  A product of two halves is exact in
float32, and BLAS adds up in float32 whatever it multiplies: so the halves themselves are
multiplied, with a result in float32, and it is scaled afterwards, which rounds less often.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import fx
from torch._guards import detect_fake_mode

from fusec.devices import is_gpu
from fusec.graph.choices import stays_a_product
from fusec.graph.facts.insertion import caller
from fusec.graph.facts.joint_graph import moves_elements

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)
_PRODUCTS = {aten.mm.default: aten.mm.dtype, aten.bmm.default: aten.bmm.dtype}
_COPIES = (aten.clone.default, aten._unsafe_view.default)  # to other places, as views show them
_SCALES = (aten.mul.Tensor, aten.mul.Scalar)


@dataclass(frozen=True)
class _Widened:
    """An operand in float32.

    Attributes:
        source: The halves that it was.
        moves: How they were laid out differently, first to last.
        scale: What they were multiplied by.
    """

    source: fx.Node
    moves: tuple[fx.Node, ...]
    scale: float


def multiply_halves(module: fx.GraphModule) -> int:
    """Have BLAS multiply what was half precision, in place; return how many products that are.

    Args:
        module: A functional graph of ATen operators with fake tensors in ``meta["val"]``.
    """
    changed = 0
    for node in list(module.graph.nodes):
        if node.target not in _PRODUCTS or not _fits(node):
            continue
        left, right = (_widened(operand) for operand in node.args)
        if left is None or right is None:
            continue
        if left.source.meta["val"].dtype != right.source.meta["val"].dtype:
            continue
        with module.graph.inserting_before(node):
            call = caller(module.graph, node)
            operands = [_moved(module.graph, operand) for operand in (left, right)]
            made = call(_PRODUCTS[node.target], *operands, torch.float32)
            scale = left.scale * right.scale
            if scale != 1.0:
                made = call(aten.mul.Tensor, made, scale)
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)
        changed += 1
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return changed


def _fits(node: fx.Node) -> bool:
    value = node.meta["val"]
    if not is_gpu(value.device) or torch.version.hip is not None or value.dtype != torch.float32:
        return False
    left, right = (operand.meta["val"] for operand in node.args)  # type: ignore[union-attr]
    sizes = (*left.shape, right.shape[-1])
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return False
    return stays_a_product(sizes)


def _widened(operand: object) -> _Widened | None:
    """Return which halves an operand was, and how it follows from them; None if from none."""
    moves: list[fx.Node] = []
    scale = 1.0
    while isinstance(operand, fx.Node):
        inputs = operand.all_input_nodes
        if not inputs:
            return None
        (source, *others) = inputs
        if operand.target is aten._to_copy.default:
            value = source.meta["val"]
            if value.dtype not in _HALF or value.device != operand.meta["val"].device:
                return None
            found = _Widened(source, tuple(reversed(moves)), scale)
            return found if _can_move(found) else None
        if operand.target in _COPIES or moves_elements(operand):
            moves.append(operand)
        elif operand.target in _SCALES and isinstance(operand.args[1], (int, float)):
            scale *= operand.args[1]
        else:
            return None
        if others or not math.isfinite(scale):
            return None
        operand = source
    return None


def _can_move(operand: _Widened) -> bool:
    """Whether the halves can be laid out so; they may have gaps, which a conversion closes."""
    made = operand.source.meta["val"]
    fake = detect_fake_mode([made])
    assert fake is not None
    try:
        with fake:
            for move in operand.moves:
                made = move.target(made, *move.args[1:], **move.kwargs)  # type: ignore[operator]
    except (RuntimeError, ValueError):  # fake tensors' own formulas raise the second
        return False
    return True


def _moved(graph: fx.Graph, operand: _Widened) -> fx.Node:
    made = operand.source
    for move in operand.moves:
        made = caller(graph, move)(move.target, made, *move.args[1:], **move.kwargs)
    return made


__all__ = ["multiply_halves"]
