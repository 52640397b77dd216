"""Attention masks that are known before anything runs say what they mean.

A model that is traced builds its masks from positions, where in eager it would find that none is
needed: ``transformers`` does so.  A mask that comes from no input is computed here, once, while
compiling.  If it lets everything through, it goes; if it is the causal one, the call says so.
Either way ATen takes its fastest kernel, as it does in eager, and does not take attention apart.
"""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fusec.graph.facts.captured import erase_unused, written_by

# Elements; larger masks are left alone, since making one takes time and memory.
_LARGEST = 2**27
_POSITIONAL = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")

# What a mask may be made by: the same result every time, and nothing else changed.
_FUNCTIONS = frozenset(
    getattr(module, name)
    for module, names in (
        (operator, "add sub mul truediv floordiv mod neg invert and_ or_ xor"),
        (operator, "eq ne lt le gt ge getitem"),
        (torch, "arange ones zeros full eye diff where tril triu cumsum"),
        (torch, "logical_and logical_or logical_not logical_xor bitwise_and bitwise_or"),
        (torch, "eq ne lt le gt ge add sub mul div abs ones_like zeros_like full_like"),
    )
    for name in names.split()
)
_METHODS = frozenset(
    (
        "expand expand_as unsqueeze squeeze view reshape transpose permute contiguous t to type"
        " bool int long float half bfloat16 new_ones new_zeros new_full cumsum tril triu"
        " masked_fill logical_and logical_or logical_not eq ne lt le gt ge add sub mul div abs"
        " neg clone"
    ).split()
)


def simplify_attention_masks(module: fx.GraphModule) -> fx.GraphModule:
    """Return a captured graph whose attention calls have no mask that says nothing.

    Args:
        module: As TorchDynamo captured it; not changed.
    """
    if not any(_has_mask(node) for node in module.graph.nodes):
        return module
    meanings: dict[fx.Node, str | None] = {}
    for node in module.graph.nodes:
        if _has_mask(node):
            mask = _arguments(node)["attn_mask"]
            if mask not in meanings:
                meanings[mask] = _meaning(mask)
    if not any(meanings.values()):
        return module
    copies: dict[fx.Node, fx.Node] = {}
    changed = copy.copy(module)
    changed.graph = fx.Graph()
    changed.graph.output(changed.graph.graph_copy(module.graph, copies))
    for node in module.graph.nodes:
        if _has_mask(node) and (meaning := meanings[_arguments(node)["attn_mask"]]):
            call = copies[node]
            given = {**_arguments(call), "attn_mask": None, "is_causal": meaning == "causal"}
            call.args, call.kwargs = (), given
    for mask in meanings:
        erase_unused(changed.graph, copies[mask])
    changed.recompile()
    return changed


def _has_mask(node: fx.Node) -> bool:
    if node.target is not F.scaled_dot_product_attention:
        return False
    given = _arguments(node)
    return isinstance(given.get("attn_mask"), fx.Node) and given.get("is_causal", False) is False


def _arguments(node: fx.Node) -> dict[str, Any]:
    return {**dict(zip(_POSITIONAL, node.args, strict=False)), **node.kwargs}


def _meaning(mask: fx.Node) -> str | None:
    """Return ``all`` or ``causal`` for a mask that is known to be that."""
    value = known_value(mask)
    return None if value is None else kind_of(value)


def known_value(mask: fx.Node) -> torch.Tensor | None:
    """Return what a mask is, where it comes from no input; else None."""
    shown = mask.meta.get("example_value")
    if not isinstance(shown, torch.Tensor) or shown.dim() < 2:
        return None
    if not all(isinstance(n, int) for n in shown.shape) or not 0 < shown.numel() <= _LARGEST:
        return None
    makers = _makers(mask)
    if makers is None:
        return None
    with unset_fake_temporarily(), torch.no_grad():
        values: dict[fx.Node, Any] = {}
        for node in makers:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            if node.op == "call_method":
                values[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        found: torch.Tensor = values[mask]
        return found


def _makers(mask: fx.Node) -> list[fx.Node] | None:
    """Return all that a mask is made by, in order; None if an input or more has a part in it."""
    found = {mask}
    for node in reversed(mask.graph.nodes):
        if node in found:
            if not _is_repeatable(node):
                return None
            found.update(node.all_input_nodes)
    if any(not found.isdisjoint(written_by(node)) for node in mask.graph.nodes):
        return None
    return [node for node in mask.graph.nodes if node in found]


def _is_repeatable(node: fx.Node) -> bool:
    shown = node.meta.get("example_value")
    sizes = shown.shape if isinstance(shown, torch.Tensor) else ()
    if not all(isinstance(n, int) for n in sizes):
        return False
    if node.op == "call_method":
        return node.target in _METHODS
    return node.op == "call_function" and node.target in _FUNCTIONS and "out" not in node.kwargs


def kind_of(mask: torch.Tensor) -> str | None:
    """Return ``all`` or ``causal`` for a mask that is that: of what is let through, or added."""
    allowed = mask
    if mask.dtype != torch.bool:
        allowed = mask == 0  # what is added to the scores
        if not bool((allowed | (mask == -torch.inf)).all()):
            return None
    if bool(allowed.all()):
        return "all"
    rows, columns = allowed.shape[-2:]
    if rows != columns:
        return None
    causal = torch.ones(rows, columns, dtype=torch.bool, device=allowed.device).tril()
    return "causal" if bool((allowed == causal).all()) else None


__all__ = ["kind_of", "known_value", "simplify_attention_masks"]
