"""Attention as formulas have it is attention: ``softmax(q @ k.T * scale) @ v``, causal or not.

Written so, eager keeps all scores in memory, and so would kernels for the products and the softmax.
On a GPU the call of ATen's attention takes its place, the fastest there is where each query sees
all keys, or those up to its own: a mask that says so and comes from no input is known here.
Scores are not rounded to half precision in between then; where a user asks for eager's roundings,
and where something else reads scores or weights, all stays as it is written.  So it does in
deterministic mode, in which gradients of some of ATen's attentions raise.
"""

from __future__ import annotations

import copy
import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from fusec.devices import is_gpu
from fusec.graph.facts.captured import erase_unused, may_wait
from fusec.graph.facts.notes import say_of_captured
from fusec.graph.simplify.attention_masks import kind_of, known_value

_PRODUCTS = frozenset({operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm"})
_SOFTMAXES = frozenset({torch.softmax, F.softmax, "softmax"})
_DIVISIONS = frozenset({operator.truediv, torch.div, torch.true_divide, "div"})
_MULTIPLICATIONS = frozenset({operator.mul, torch.mul, "mul"})
_TRANSPOSES = frozenset({torch.transpose, torch.swapaxes, "transpose", "swapaxes"})
_FILLS = frozenset({torch.masked_fill, "masked_fill"})
_SUMS = frozenset({operator.add, torch.add, "add"})
_LOWEST = -1e30  # a score beside which nothing is left of a weight
_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})
DEEPEST = 256  # a head of ATen's fast kernels


@dataclass(frozen=True)
class _Written:
    """Attention as it was found: its tensors, what products are times, whether it is causal."""

    query: fx.Node
    key: fx.Node
    value: fx.Node
    scale: float
    causal: bool


def attend_at_once(module: fx.GraphModule, *, interpreted: bool) -> fx.GraphModule:
    """Return a captured graph that calls attention where it was written out.

    Args:
        module: As TorchDynamo captured it; not changed, but for what is said of its nodes.
        interpreted: Whether all kernels are Triton's, whatever the device.
    """
    found = {node: _written(node, interpreted) for node in module.graph.nodes}
    for node, written in found.items():
        between = "" if written is not None else _between(node, interpreted)
        if between:
            say_of_captured(node, f"left as written: {between} changes scores before their softmax")
    if not any(found.values()):
        return module
    copies: dict[fx.Node, fx.Node] = {}
    changed = copy.copy(module)
    changed.graph = fx.Graph()
    changed.graph.output(changed.graph.graph_copy(module.graph, copies))
    for node, written in found.items():
        if written is not None:
            _replace(changed.graph, node, written, copies)
    changed.recompile()
    return changed


def _replace(
    graph: fx.Graph, node: fx.Node, written: _Written, copies: dict[fx.Node, fx.Node]
) -> None:
    product = copies[node]
    given = [copies[each] for each in (written.query, written.key, written.value)]
    flat = _shown(node).dim() == 3
    with graph.inserting_before(product):
        if flat:
            given = [graph.call_method("unsqueeze", (each, 0)) for each in given]
        result = graph.call_function(
            F.scaled_dot_product_attention,
            tuple(given),
            {"scale": written.scale, "is_causal": written.causal},
        )
        result.meta = {k: v for k, v in product.meta.items() if k != "example_value"}
        if flat:
            result = graph.call_method("squeeze", (result, 0))
        # A product lies row by row; attention may lie as its queries do.
        result = graph.call_method("contiguous", (result,))
        result.meta = dict(product.meta)
    product.replace_all_uses_with(result)
    erase_unused(graph, product)
    copies[node] = result  # which another attention may read


def _written(node: fx.Node, interpreted: bool) -> _Written | None:
    """Return the attention whose result a node is, or None."""
    if not _is_product(node):
        return None
    weights, value = node.args
    if not isinstance(weights, fx.Node) or not isinstance(value, fx.Node):
        return None
    softmax = _before(weights)
    if softmax is None or not _is_over_rows(softmax):
        return None
    scores, causal = _unmasked(softmax.args[0])
    scale, product = _scaled(scores)
    if product is None or not _is_product(product) or len(product.users) != 1:
        return None
    query, turned = product.args
    key = _turned(turned)
    if key is None or not isinstance(query, fx.Node):
        return None
    more, plain = _scaled(query, inner=True)
    first = product
    if plain is not None:
        first, query, scale = query, plain, scale * more
        while plain not in first.all_input_nodes:
            (first,) = first.all_input_nodes
    if not may_wait(first, node):
        return None
    tensors = [_shown(each) for each in (query, key, value)]
    results = [_shown(each) for each in (product, node)]
    if any(each is None for each in (*tensors, *results)) or not _fit(
        tensors, results, interpreted
    ):
        return None
    return _Written(query, key, value, scale, causal)


def _unmasked(node: Any) -> tuple[Any, bool]:
    """Return scores before a mask, and whether that is the causal one; others stay where they are.

    What takes a score's place must be so low that nothing is left of its weight.
    """
    if not isinstance(node, fx.Node) or len(node.users) != 1 or node.kwargs:
        return node, False
    given = node.args
    if _calls(node, _FILLS) and len(given) == 3:
        scores, mask, low, inverted = given[0], given[1], given[2], True
    elif node.target is torch.where and len(given) == 3:
        mask, scores, low = given
        inverted = False
        if not isinstance(scores, fx.Node):
            scores, low, inverted = low, scores, True
    elif _calls(node, _SUMS) and len(given) == 2:
        scores, mask, low, inverted = *given, -math.inf, False
    else:
        return node, False
    if not isinstance(mask, fx.Node) or not isinstance(scores, fx.Node):
        return node, False
    if not isinstance(low, (int, float)) or low > _LOWEST:
        return node, False
    shown, value = _shown(scores), known_value(mask)
    if value is None or shown is None or tuple(value.shape[-2:]) != tuple(shown.shape[-2:]):
        return node, False
    if (value.dtype == torch.bool) is _calls(node, _SUMS):
        return node, False  # truth values that are added are ones; numbers choose nothing
    kind = kind_of(~value if inverted else value)
    return (scores, kind == "causal") if kind else (node, False)


def _between(node: fx.Node, interpreted: bool) -> str:
    """Return what stands between scores and their softmax, in attention that is left for it."""
    weights = node.args[0] if _calls(node, _PRODUCTS) and node.args else None
    softmax = _before(weights) if isinstance(weights, fx.Node) else None
    if softmax is None or not _is_over_rows(softmax):
        return ""
    _, changed = _scaled(softmax.args[0])
    if changed is None or _calls(changed, _PRODUCTS) or not changed.op.startswith("call_"):
        return ""
    if not any(_calls(_scaled(each)[1], _PRODUCTS) for each in changed.all_input_nodes):
        return ""
    shown = _shown(node)
    there = shown is not None and (is_gpu(shown.device) or interpreted)
    return getattr(changed.target, "__name__", str(changed.target)) if there else ""


def _calls(node: object, targets: frozenset[Any]) -> bool:
    return isinstance(node, fx.Node) and node.op.startswith("call_") and node.target in targets


def _is_product(node: fx.Node) -> bool:
    return _calls(node, _PRODUCTS) and len(node.args) == 2 and not node.kwargs


def _shown(node: fx.Node) -> Any:
    found = node.meta.get("example_value")
    return found if isinstance(found, torch.Tensor) else None


def _before(node: fx.Node) -> fx.Node | None:
    """Return the softmax that weights come from, by way of conversions and idle dropouts."""
    while len(node.users) == 1:
        if _calls(node, _SOFTMAXES):
            return node
        is_cast = node.op == "call_method" and node.target == "to" and len(node.args) == 2
        if not (is_cast and node.args[1] in _DTYPES) and not _is_idle(node):
            return None
        (node,) = node.all_input_nodes
    return None


def _is_idle(node: fx.Node) -> bool:
    """Whether this is a dropout that drops nothing."""
    if node.target is not F.dropout:
        return False
    given = {**dict(zip(("input", "p", "training"), node.args, strict=False)), **node.kwargs}
    return given.get("training", True) is False or bool(given.get("p", 0.5) == 0)


def _is_over_rows(node: fx.Node) -> bool:
    given = {**dict(zip(("input", "dim"), node.args, strict=False)), **node.kwargs}
    shown = _shown(node)
    if shown is None or len(node.args) not in (1, 2) or "out" in given:
        return False
    wide = given.get("dtype") in (None, torch.float32)
    return wide and given.get("dim") in (-1, shown.dim() - 1)


def _scaled(node: Any, inner: bool = False) -> tuple[float, fx.Node | None]:
    """Return by which number a node is scaled, and what is; likewise 1 and the node itself."""
    scale = 1.0
    while isinstance(node, fx.Node) and len(node.users) == 1 and len(node.args) == 2:
        if node.kwargs:
            break  # rounded to whole numbers, perhaps
        left: Any
        right: Any
        left, right = node.args
        if _calls(node, _MULTIPLICATIONS) and isinstance(left, (int, float)):
            left, right = right, left
        number = isinstance(right, (int, float)) and not isinstance(right, bool)
        if not number or not 1e-6 < abs(right) < 1e6:
            break
        if _calls(node, _DIVISIONS):
            scale /= right
        elif _calls(node, _MULTIPLICATIONS):
            scale *= right
        else:
            break
        node = left
    if inner and scale == 1.0:
        return 1.0, None
    return scale, node if isinstance(node, fx.Node) else None


def _turned(node: Any) -> fx.Node | None:
    """Return what a node is with its last two dimensions exchanged."""
    if not isinstance(node, fx.Node):
        return None
    shown = _shown(node)
    if shown is None:
        return None
    if node.target is getattr and node.args[1] == "mT":
        return node.args[0] if isinstance(node.args[0], fx.Node) else None
    if not _calls(node, _TRANSPOSES) or len(node.args) != 3:
        return None
    first, second = (d % shown.dim() if isinstance(d, int) else -1 for d in node.args[1:])
    if {first, second} != {shown.dim() - 1, shown.dim() - 2}:
        return None
    return node.args[0] if isinstance(node.args[0], fx.Node) else None


def _fit(tensors: list[Any], results: list[Any], interpreted: bool) -> bool:
    """Whether ATen's attention computes the same of tensors: their types, devices and sizes."""
    query, key, value = tensors
    if any(each.dtype != query.dtype for each in (*tensors, *results)):
        return False
    there = is_gpu(query.device) or interpreted
    if not there or query.dtype not in _DTYPES or query.dim() not in (3, 4):
        return False
    if any(each.dim() != query.dim() or each.device != query.device for each in tensors):
        return False
    same = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    depths = [each.shape[-1] for each in tensors]
    known = all(isinstance(depth, int) for depth in depths)
    return same and known and 0 < min(depths) == max(depths) <= DEEPEST


__all__ = ["attend_at_once"]
