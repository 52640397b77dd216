"""Tensors of zeros without memory, which forward gradients are made of, become plain zeros.

Where a function's input has no tangent, torch's forward mode computes with such a tensor
(``_efficientzerotensor``).  Kernels cannot read it, and some operators do not compute with it: a
product with it is zero, also of infinity and NaN, and a sum with it is the other operand, also of
a negative zero.  Others take plain zeros instead.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._guards import detect_fake_mode

from fusec.graph.facts.insertion import caller

aten = torch.ops.aten

_MADE = aten._efficientzerotensor.default
# With one operand such a tensor, so is the result.
_PRODUCTS = frozenset((aten.mul, aten.dot, aten.vdot, aten.linalg_cross))
_QUOTIENTS = frozenset((aten.div, aten.true_divide))  # where it is what is divided
_SUMS = frozenset((aten.add, aten.sub))
# What these are taken apart into is as if the user had called it.
_TAKEN_APART = _PRODUCTS | _QUOTIENTS | _SUMS


def write_zeros_out(module: fx.GraphModule) -> int:
    """Put plain zeros where tensors without memory are; return for how many nodes.

    Args:
        module: A functionalized graph.
    """
    zeros: set[fx.Node] = set()
    changed = 0
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is _MADE:
            _allocate(node)
            zeros.add(node)
            changed += 1
            continue
        if not zeros.intersection(node.all_input_nodes):
            continue
        if _is_view(node):
            zeros.add(node)
        elif _as_asked(node) and _without_computing(node, zeros):
            changed += 1
            if _packet(node) not in _SUMS:
                zeros.add(node)
    return changed


def _allocate(node: fx.Node) -> None:
    """Make a tensor of zeros one that has memory."""
    value = node.meta["val"]
    fake = detect_fake_mode(value)
    assert fake is not None
    node.target, node.args = aten.full.default, (node.args[0], 0)
    with fake:
        node.meta["val"] = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )


def _without_computing(node: fx.Node, zeros: set[fx.Node]) -> bool:
    """Change operands so that the result is what it is without computing; whether it is such."""
    packet, args = _packet(node), list(node.args)
    first, second = args[0] in zeros, args[1] in zeros
    if packet in _SUMS:
        if second:  # however it is multiplied
            node.kwargs = {}
        # adding it to any number, a negative zero too, leaves that number
        sign = 0.0 if second and packet is aten.sub else -0.0
        place = 1 if second else 0
        args[place] = _filled(node, args[place], sign)
    elif packet in _PRODUCTS or (packet in _QUOTIENTS and first):
        fill = 1.0 if packet in _QUOTIENTS else 0.0
        for place, known in enumerate((first, second)):
            if not known:
                args[place] = _filled(node, args[place], fill)
    else:
        return False
    node.args = tuple(args)
    return True


def _filled(node: fx.Node, operand: fx.node.Argument, fill: float) -> fx.node.Argument:
    """Return an operand of the same kind, all of whose elements are one number."""
    if not isinstance(operand, fx.Node) or not isinstance(operand.meta["val"], torch.Tensor):
        return int(fill) if isinstance(operand, int) else fill
    dtype = operand.meta["val"].dtype
    exact = dtype.is_floating_point or dtype.is_complex
    with node.graph.inserting_before(node):
        call = caller(node.graph, like=node)
        made: fx.Node = call(aten.full_like.default, operand, fill if exact else int(fill))
    return made


def _as_asked(node: fx.Node) -> bool:
    """Whether a node is what was called, or what one such operator is taken apart into."""
    original = node.meta.get("original_aten")
    return original is None or getattr(original, "overloadpacket", original) in _TAKEN_APART


def _packet(node: fx.Node) -> object:
    return getattr(node.target, "overloadpacket", node.target)


def _is_view(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    first = node.target._schema.arguments[0].alias_info
    return first is not None and not first.is_write


__all__ = ["write_zeros_out"]
