"""Calls that eager refuses, or alone can make, and of which tracing leaves nothing to see.

``x.mul_(1.5)`` of integers, or ``out=`` of another type: fake tensors let some of them pass, and a
functional graph converts without a word.  Losses that tracing takes apart before it asks us.
A graph that has such a call runs in eager, which raises there: eager has been asked, with small
tensors, or a rule says so, so that "may" is the word in what is shown.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from fusec.devices import CPU
from fusec.graph.facts.autocast_regions import converting
from fusec.graph.refusals.asked import raises_for, refuses_types
from fusec.graph.refusals.custom_updates import updates_what_it_reads
from fusec.graph.refusals.each import updates_what_it_updated
from fusec.graph.refusals.lossy_views import updates_lossy_view
from fusec.graph.refusals.numbers import has_odd_number, raises_in_eager
from fusec.graph.refusals.operand_types import refuses_operands
from fusec.graph.refusals.shapes import refused_write, same_shape, traced_value, traced_values

aten = torch.ops.aten
# In place, with a result of the type that the operands have in common.
_IN_PLACE = frozenset(("mul_", "multiply_", "__imul__", operator.imul))

_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float64)
# The types that a CPU has them for.
_TYPES: dict[object, tuple[torch.dtype, ...]] = {
    F.multi_margin_loss: _FLOATS,
    F.multilabel_margin_loss: _FLOATS,
    F.hardshrink: _FLOATS + _HALVES,
    torch.hardshrink: _FLOATS + _HALVES,
    "hardshrink": _FLOATS + _HALVES,
    # Traced as pooling in two dimensions, which has more types.
    F.max_pool1d: _FLOATS + _HALVES,
    torch.max_pool1d: _FLOATS + _HALVES,
    # Traced as a product and a sum, which nothing refuses where it is empty.
    torch.linalg.vecdot: _FLOATS + _HALVES + (torch.complex64, torch.complex128),
    # Traced as comparisons, which have all types.
    F.one_hot: (torch.int64,),
}
_REAL = tuple(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not dtype.is_complex
)
_LOGARITHMS = (torch.xlogy, torch.special.xlogy, torch.special.xlog1py, "xlogy", "xlogy_")
_TYPES |= dict.fromkeys(_LOGARITHMS, _REAL)
# Nothing is promoted: fake tensors do not say so.
_ALIKE = frozenset((torch.heaviside, "heaviside", "heaviside_", torch.addmv, "addmv"))
_DIVIDED = frozenset((torch.addcdiv, "addcdiv", "addcdiv_"))
# They change a setting of torch, and tracing would do that once, when it traces.
_SETTINGS = frozenset(
    (
        torch._C._set_check_sparse_tensor_invariants,
        torch._C._set_deterministic_algorithms,
        torch.backends.cuda.enable_flash_sdp,
        torch.backends.cuda.enable_math_sdp,
        torch.backends.cuda.enable_mem_efficient_sdp,
        torch.set_autocast_cache_enabled,
        torch.set_autocast_dtype,
        torch.set_autocast_enabled,
        torch.set_default_dtype,
        torch.set_deterministic_debug_mode,
        torch.set_float32_matmul_precision,
        torch.set_warn_always,
    )
)
# How often a tensor was updated: a functional graph updates it once, at its end.
_VERSIONS = frozenset(
    ("prims._tensor_version.default", "prims._unsafe_set_version_counter.default")
)
_INDEX_ADD = frozenset(("index_add", "index_add_", torch.index_add))


def refused_call(module: fx.GraphModule) -> str:
    """Return which call of a captured graph eager refuses, or an empty string."""
    converted = converting(module.graph)
    for node in module.graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        if node.target in _IN_PLACE and _is_too_wide(node):
            return f"{node.name} has a result that its tensor cannot hold"
        if node.kwargs.get("out") is not None and _refuses_out(node):
            return f"{node.name} writes into a tensor that cannot take its result"
        if node.target in _TYPES and _has_no_kernel(node):
            return f"{node.name} is of a type that has no kernel"
        if node.target in _ALIKE and len(set(_types((node.args, node.kwargs)))) > 1:
            return f"{node.name} is of tensors of different types"
        if node.target in _DIVIDED and _divides_integers(node):
            return f"{node.name} divides integers"
        if has_odd_number(node) and raises_in_eager(node):
            return f"{node.name} has a number that its tensors cannot hold"
        refused = refused_write(node)
        if refused:
            return refused
        converts = node in converted
        if refuses_operands(node, converts=converts) or (not converts and refuses_types(node)):
            return f"{node.name} is of types that have no kernel"
    return ""


def left_to_eager(module: fx.GraphModule) -> str:
    """Return which call of a captured graph eager alone computes as it should, or an empty string.

    Tracing takes some apart into what computes something else.
    """
    for node in module.graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        if node.target in _SETTINGS:
            return f"{node.name} changes a setting of torch"
        if str(node.target) in _VERSIONS:
            return f"{node.name} asks for or sets how often a tensor was updated"
        if (places := _written(node)) and _resizes(node, places):
            return f"{node.name} gives the tensor that it writes into another size"
        if node.target is F.multilabel_margin_loss and _decomposes_margins_wrongly():
            return f"{node.name} is a loss that this torch takes apart wrongly"
        if node.target is F.multi_margin_loss and _is_of_one_row(node):
            return f"{node.name} is a loss of one row, to which torch's tracing gives another shape"
        if node.target in _INDEX_ADD and _scales_bools(node):
            return f"{node.name} adds bools times a number, which only ATen's kernel knows how to"
        if updates_what_it_reads(node):
            return f"{node.name} updates memory that it reads by another argument"
        if updates_what_it_updated(node):
            return f"{node.name} updates or reads a tensor of a list that it has updated before"
    return updates_lossy_view(module)


def _is_too_wide(node: fx.Node) -> bool:
    target, *others = (traced_value(arg) for arg in node.args)
    if not isinstance(target, torch.Tensor) or not others:
        return False
    if not isinstance(others[0], (torch.Tensor, int, float, complex)):
        return False
    return not torch.can_cast(torch.result_type(target, others[0]), target.dtype)


def _refuses_out(node: fx.Node) -> bool:
    rest = {name: value for name, value in node.kwargs.items() if name != "out"}
    return raises_for(node, (node.args, rest), records=torch.is_grad_enabled())


def _written(node: fx.Node) -> list[str]:
    """Return the names of the arguments that a call writes its results into."""
    if isinstance(node.target, torch._ops.OpOverload):
        given = [each for each in node.target._schema.arguments if each.kwarg_only]
        return [each.name for each in given if each.alias_info and each.alias_info.is_write]
    return ["out"] if node.kwargs.get("out") is not None else []


def _resizes(node: fx.Node, names: list[str]) -> bool:
    """Whether results have other sizes than what they are written into: eager resizes it."""
    rest = {name: value for name, value in node.kwargs.items() if name not in names}
    args, kwargs = traced_values((node.args, rest))
    given = [node.kwargs.get(name) for name in names]
    places = tree_leaves(traced_values(given))
    fake = next((each.fake_mode for each in places if isinstance(each, FakeTensor)), None)
    target: Any = getattr(node.target, "overloadpacket", node.target)
    if fake is None or isinstance(target, str):
        return False
    try:
        with fake, torch.no_grad():
            results = tree_leaves(target(*args, **kwargs))
    except Exception:
        return False  # has no form without it, or is refused
    return any(
        not same_shape(made.shape, place.shape)
        for made, place in zip(results, places, strict=False)
        if isinstance(made, torch.Tensor) and isinstance(place, torch.Tensor)
    )


def _has_no_kernel(node: fx.Node) -> bool:
    values = map(traced_value, (*node.args, *node.kwargs.values()))
    given = next((each for each in values if isinstance(each, torch.Tensor)), None)
    if given is None or given.device.type != "cpu":
        return False
    return given.dtype not in _TYPES[node.target]


@functools.cache
def _decomposes_margins_wrongly() -> bool:
    """Whether torch's decomposition, which tracing cannot avoid, is another loss: that of 2.11."""
    rule = torch._decomp.decomposition_table.get(aten.multilabel_margin_loss_forward.default)
    with unset_fake_temporarily(), torch.device(CPU), torch.no_grad():
        x, target = torch.arange(8).reshape(2, 4) / 8, torch.tensor([[0, 1, -1, 0]] * 2)
        wanted = F.multilabel_margin_loss(x, target)
        return rule is not None and not torch.allclose(rule(x, target, 1)[0], wanted)


def _is_of_one_row(node: fx.Node) -> bool:
    target = node.args[1] if len(node.args) > 1 else node.kwargs.get("target")
    value = traced_value(target)
    return isinstance(value, torch.Tensor) and value.dim() == 0


def _scales_bools(node: fx.Node) -> bool:
    scaled = len(node.args) > 4 or "alpha" in node.kwargs
    return scaled and next(_types((node.args, node.kwargs)), None) == torch.bool


def _divides_integers(node: fx.Node) -> bool:
    types = list(_types((node.args, node.kwargs)))[1:3]
    return len(types) == 2 and not any(d.is_floating_point or d.is_complex for d in types)


def _types(values: object) -> Iterator[torch.dtype]:
    for leaf in tree_leaves(values):
        value = traced_value(leaf)
        if isinstance(value, torch.Tensor):
            yield value.dtype


__all__ = ["left_to_eager", "refused_call"]
