"""Where cross-entropy of a linear layer's results is computed in parts: within a budget of bytes.

What is looked for, in a graph as TorchDynamo captured it, is a loss whose logits nobody else reads.
Between the two may stand what leaves rows as they are: conversions to float32, views, some of the
rows taken.
"""

from __future__ import annotations

import copy
import inspect
import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from fusec.graph.facts.captured import erase_unused, may_wait
from fusec.graph.facts.notes import say_of_captured
from fusec.graph.losses.linear_cross_entropy import linear_cross_entropy, rows_of_part

_LINEAR = frozenset({F.linear, torch._C._nn.linear})
_PRODUCTS = frozenset({operator.matmul, torch.matmul, torch.mm, "matmul", "mm"})
_VIEWS = frozenset({"view", "reshape", "flatten", torch.reshape, torch.flatten})
_SAME = frozenset({"contiguous"})
_TYPES = (torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class _Loss:
    """A loss with its linear layer.

    Attributes:
        rows: What the layer is given.
        weight: Columns by inputs, or inputs by columns where ``turned``.
        bias: The layer's, if any.
        between: What stands between the layer and the loss, the first first.
        target: The right columns.
        given: What the loss is told besides.
        wide: Whether logits are converted to float32.
        logits: The layer's result.
    """

    rows: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    turned: bool
    between: tuple[fx.Node, ...]
    target: fx.Node
    given: dict[str, Any]
    wide: bool
    logits: torch.Tensor


def compute_in_parts(module: fx.GraphModule, budget: int) -> fx.GraphModule:
    """Return a captured graph in which large logits are computed in parts.

    Args:
        module: As TorchDynamo captured it; not changed, but for what is said of its nodes.
        budget: Bytes that logits may take at a time.
    """
    found: dict[fx.Node, _Loss] = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is F.cross_entropy:
            loss = _loss(node)
            if isinstance(loss, str):
                say_of_captured(_origin(node), f"whole, whatever the budget: {loss}")
            elif _bytes(loss) > budget:
                found[node] = loss
    if not found:
        return module
    copies: dict[fx.Node, fx.Node] = {}
    changed = copy.copy(module)
    changed.graph = fx.Graph()
    changed.graph.output(changed.graph.graph_copy(module.graph, copies))
    for node, loss in found.items():
        _replace(changed.graph, node, loss, budget, copies)
    changed.recompile()
    return changed


def _replace(
    graph: fx.Graph, node: fx.Node, loss: _Loss, budget: int, copies: dict[fx.Node, fx.Node]
) -> None:
    old = copies[node]
    width = _shown(loss.rows).shape[-1]
    with graph.inserting_before(old):
        x = copies[loss.rows]
        for each in loss.between:
            if each.target is operator.getitem:
                x = graph.call_function(operator.getitem, (x, _copied(each.args[1], copies)))
        x = graph.call_method("reshape", (x, -1, width))
        weight = copies[loss.weight]
        if loss.turned:
            weight = graph.call_method("t", (weight,))
        bias = None if loss.bias is None else copies[loss.bias]
        new = graph.call_function(
            linear_cross_entropy,
            (x, weight, bias, copies[loss.target]),
            {**loss.given, "wide": loss.wide, "budget": budget},
        )
    new.meta = dict(old.meta)
    shape = loss.logits.shape
    columns, itemsize = shape[-1], loss.logits.dtype.itemsize
    rows = math.prod(shape[:-1])
    if isinstance(rows, int) and isinstance(columns, int):
        step = rows_of_part(rows, columns, itemsize, budget)
        say_of_captured(
            new,
            f"{step} of {rows} rows at a time: {_text(step * columns * itemsize)} of logits, not "
            f"{_text(rows * columns * itemsize)}; the budget is {_text(budget)}",
        )
    old.replace_all_uses_with(new)
    erase_unused(graph, old)
    copies[node] = new


def _text(count: int) -> str:
    unit = next((n for n in (30, 20, 10) if count >= 1 << n), 0)
    name = {30: "GiB", 20: "MiB", 10: "KiB", 0: "bytes"}[unit]
    return f"{count / (1 << unit):.4g} {name}"


def _origin(node: fx.Node) -> fx.Node:
    """Return the layer that a loss's logits come from; the loss itself where there is none."""
    found = node.args[0] if node.args else node.kwargs.get("input")
    while isinstance(found, fx.Node):
        if _layer(found) is not None:
            return found
        found = found.args[0] if _leaves_rows(found) else None
    return node


def _copied(index: Any, copies: dict[fx.Node, fx.Node]) -> Any:
    return fx.node.map_arg(index, lambda each: copies[each])


def _bytes(loss: _Loss) -> int:
    return int(math.prod(loss.logits.shape)) * loss.logits.dtype.itemsize


def _loss(node: fx.Node) -> _Loss | str:
    """Return a loss with the layer whose results it is of; or why it has none to be merged with."""
    bound = inspect.signature(F.cross_entropy).bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    told = bound.arguments
    logits, target = told["input"], told["target"]
    if told["reduction"] not in ("mean", "sum") or told["reduce"] is not None:
        return "a loss for each row is asked for, whose gradients backward alone knows"
    if told["size_average"] is not None or told["weight"] is not None:
        return "columns have weights"
    numbers = told["ignore_index"], told["label_smoothing"]
    if not all(isinstance(each, (int, float)) for each in numbers):
        return "a number of the loss is computed"
    shown, right = _shown(logits), _shown(target)
    if shown is None or right is None or right.dtype != torch.int64 or shown.dim() != 2:
        return "the targets are not one column for each row"
    between: list[fx.Node] = []
    wide = False
    while isinstance(logits, fx.Node) and len(logits.users) == 1:
        layer = _layer(logits)
        if layer is not None:
            rows, weight, bias, turned = layer
            value = _shown(logits)
            if not may_wait(logits, node):
                return "between the layer and its loss tensors are updated, or modes switched"
            if value.dtype not in _TYPES:
                return "gradients of half precision have no room before the loss is scaled"
            given = {
                "ignored": numbers[0],
                "smoothing": float(numbers[1]),
                "mean": told["reduction"] == "mean",
            }
            kept = tuple(reversed(between))
            return _Loss(rows, weight, bias, turned, kept, target, given, wide, value)
        if not _leaves_rows(logits):
            return "what stands between is not a linear layer"
        if between and between[-1].target is operator.getitem and logits.target in _VIEWS:
            return "rows are taken after they were laid anew"
        wide |= _is_widened(logits)
        between.append(logits)
        logits = logits.args[0]
    return "logits are read elsewhere" if isinstance(logits, fx.Node) else "there is no layer"


def _layer(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node | None, bool] | None:
    """Return what a linear layer is given, its weight and bias, and whether that is turned."""
    if node.op not in ("call_function", "call_method"):
        return None
    x: Any
    weight: Any
    bias: Any
    if node.target in _LINEAR:
        bound = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | dict(node.kwargs)
        x, weight, bias, turned = bound["input"], bound["weight"], bound.get("bias"), False
    elif node.target in _PRODUCTS and len(node.args) == 2:
        x, weight, bias, turned = *node.args, None, True
    else:
        return None
    shapes = [_shown(each) for each in (x, weight)]
    if any(each is None for each in shapes) or shapes[1].dim() != 2:
        return None
    # a product of two types is none; autocast converts both
    alike = bias is None or isinstance(bias, fx.Node)
    return (x, weight, bias, turned) if alike else None


def _leaves_rows(node: fx.Node) -> bool:
    """Whether a node's rows are some of its argument's, or all, converted perhaps."""
    if node.op not in ("call_function", "call_method") or not node.args:
        return False
    before, after = _shown(node.args[0]), _shown(node)
    if before is None or after is None or before.dim() == 0 or after.dim() == 0:
        return False
    if not _same(before.shape[-1], after.shape[-1]):
        return False
    if node.target in _VIEWS or node.target in _SAME or _is_widened(node):
        return True
    if node.target is not operator.getitem:
        return False
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    plain = all(each is Ellipsis or isinstance(each, slice) for each in index)
    # slices of the last dimension would take columns
    last = index[-1]
    whole = last is Ellipsis or last == slice(None) or len(index) < before.dim()
    return plain and whole and (Ellipsis not in index[:-1] or last == slice(None))


def _same(a: Any, b: Any) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a == b


def _is_widened(node: fx.Node) -> bool:
    if node.op != "call_method":
        return False
    to = node.target == "to" and node.args[1:] == (torch.float32,) and not node.kwargs
    return to or (node.target == "float" and len(node.args) == 1)


def _shown(node: Any) -> Any:
    found = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None


__all__ = ["compute_in_parts"]
