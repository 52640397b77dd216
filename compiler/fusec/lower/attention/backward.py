"""The gradients of ``flex_attention``: two bodies, each a kernel; captured tensors have a third.

The gradient of the queries goes along the keys, that of keys and values along the queries that see
them, of all heads that share them.  Both compute the weights again, from the sums that forward has
kept; the first one also keeps for the second what a row's weights have in common::

    common = sum(out * gradient)
    weight = exp2(score_mod(score) * log2(e) - sums)
    of_score = joint(score, weight * (dot(gradient, value) - common))
    of_query = dot(of_score, key) * scale
    of_key = dot(of_score, query) * scale
    of_value = dot(weight, gradient)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, const, dot, reduce
from fusec.ir.walk import rewrite
from fusec.lower.attention.block_masks import BlockMask
from fusec.lower.attention.forward import (
    F32,
    HIGHER,
    LOG2E,
    AttentionLoops,
    Scores,
    at,
    call_by_role,
    call_lists_by_role,
    positions,
    require_kernel,
    scores_of,
)
from fusec.lower.attention.score_functions import Scattered, call_all, scalar
from fusec.lower.higher_order import Subgraph
from fusec.lower.matmul import float32_precision
from fusec.lower.registry import register
from fusec.lower.scatter.steps import combining_dtype, fill, finished
from fusec.lower.values import Lowering, NotLowered, ResultMeta, TensorValue, dense_meta


@dataclass(frozen=True)
class _Given:
    """What both kernels read.

    Attributes:
        query: The forward's operand; likewise the others.
        key: Likewise.
        value: Likewise.
        gradient: Of the result.
        sums: The log2 of each row's sum.
        out: The forward's result.
        gradient_of_sums: Of the rows' sums, where those have one.
        score_mod: The user's function.
        joint: Its gradient, given that of its result.
        scale: What products are times.
        score_buffers: Captured tensors.
        mask_buffers: Likewise of the mask.
    """

    query: TensorValue
    key: TensorValue
    value: TensorValue
    gradient: TensorValue
    sums: TensorValue
    out: TensorValue
    gradient_of_sums: TensorValue | None
    score_mod: Subgraph
    joint: Subgraph
    scale: float
    score_buffers: Sequence[object]
    mask_buffers: Sequence[object]


@register(HIGHER.flex_attention_backward)
def flex_attention_backward(
    lowering: Lowering,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    out: TensorValue,
    sums: TensorValue,
    gradient: TensorValue | None,
    gradient_of_sums: TensorValue | None,
    score_mod: Subgraph,
    joint: Subgraph,
    block_mask: Sequence[object],
    scale: float,
    kernel_options: dict[str, object],
    score_buffers: Sequence[object] = (),
    mask_buffers: Sequence[object] = (),
) -> tuple[object, ...]:
    """Return the gradients of queries, keys, values and captured tensors."""
    if gradient is None:
        raise NotLowered("nothing but the rows' sums has a gradient")
    require_kernel(lowering, query, key, value, gradient)
    if key.shape[0] != query.shape[0]:
        raise NotLowered("all batches share the keys")
    query, key, value, gradient = (lowering.realize(each) for each in (query, key, value, gradient))
    roles = {"query": query, "key": key, "value": value, "gradient": gradient}
    call_by_role(lowering, {**roles, "out": out, "log2_of_sums": sums})
    sums, out = lowering.realize(sums), lowering.realize(out)
    given = _Given(
        query,
        key,
        value,
        gradient,
        sums,
        out,
        gradient_of_sums,
        score_mod,
        joint,
        scale,
        score_buffers,
        mask_buffers,
    )
    mask = BlockMask.of(block_mask)
    call_lists_by_role(lowering, mask)
    of_query, common = _of_queries(lowering, given, mask)
    of_key, of_value = _of_keys(lowering, given, mask, common)
    return of_query, of_key, of_value, _of_captured(lowering, given, mask, common)


def _new_buffer(lowering: Lowering, meta: ResultMeta, name: str) -> Buffer:
    """Return a new buffer that is called by what it is."""
    hint, lowering.hint = lowering.hint, name
    buffer = lowering.new_buffer(meta)
    lowering.hint = hint
    return buffer


def _common(given: _Given, loops: AttentionLoops) -> Node:
    """Return the sum of a row's result times its gradient."""
    row = (at(loops.batch), at(loops.head), at(loops.query))
    place = (*row, at(loops.width))
    product = ops.binary("mul", given.out.compute(place), given.gradient.compute(place))
    total = reduce("sum", product, (loops.width,), F32)
    if given.gradient_of_sums is not None:
        # sums are in base 2
        own = ops.cast(given.gradient_of_sums.at(row), F32)
        total = ops.binary("sub", total, ops.binary("mul", own, const(1 / math.log(2), F32)))
    return total


@dataclass(frozen=True)
class _Weights:
    """A weight, and gradients, at one query and one key.

    Attributes:
        weight: The weight.
        of_score: The gradient of its score before the scale.
        captured: Those of captured tensors; None where one has none.
    """

    weight: Node
    of_score: Node
    captured: tuple[Scattered | None, ...]


def _weights(
    lowering: Lowering, given: _Given, loops: AttentionLoops, scores: Scores, common: Node
) -> _Weights:
    """Return the weight of a score, and the score's gradient.

    Args:
        lowering: Of the operator.
        given: What is read.
        loops: The loops.
        scores: The scores.
        common: What is taken from the gradient of each weight of a row.
    """
    row = (at(loops.batch), at(loops.head), at(loops.query))
    plain = scores.modified is scores.score and given.scale > 0
    base = scores.product if plain else scores.modified
    factor = const(given.scale * LOG2E if plain else LOG2E, F32)
    sums = given.sums.at(row)
    # a row of which nothing is kept has no weights, and no infinity to be taken from another one
    reference = ops.binary("maximum", sums, const(torch.finfo(F32).min, F32))
    exponent = ops.binary("sub", ops.binary("mul", base, factor), reference)
    nothing = const(0, F32)
    weight = ops.unary("exp2", exponent)
    if scores.kept is not None:
        weight = ops.where(scores.kept, weight, nothing)
    gradient = given.gradient.at((*row, at(loops.width)))
    key_row = (at(loops.batch), _shared_head(loops, given), at(loops.key), at(loops.width))
    of_weight = dot(gradient, given.value.at(key_row), (loops.width,), F32, float32_precision())
    of_modified = ops.binary("mul", weight, ops.binary("sub", of_weight, common))
    device, dtype = given.query.device, given.query.dtype
    places = positions(lowering, loops, device)
    values = [
        scalar(lowering, scores.score, dtype, device),
        *places,
        scalar(lowering, of_modified, dtype, device),
        *given.score_buffers,
    ]
    of_score, *others = call_all(lowering, given.joint, values)
    captured: list[Scattered | None] = []
    for each in others[len(places) :]:
        if each is not None and not isinstance(each, Scattered):
            raise NotLowered("the gradient of a captured tensor is a whole tensor at each score")
        captured.append(each)
    if not isinstance(of_score, TensorValue):
        raise NotLowered("a function of scores has no gradient")
    found = ops.cast(of_score.compute(()), F32)
    if scores.kept is not None and found is not of_modified:
        found = ops.where(scores.kept, found, nothing)
    return _Weights(weight, found, tuple(captured))


def _heads(given: _Given) -> tuple[int, int]:
    """Return how many heads queries have, and keys."""
    heads, shared = given.query.shape[1].constant, given.key.shape[1].constant
    assert heads is not None
    assert shared is not None
    return heads, shared


def _shared_head(loops: AttentionLoops, given: _Given) -> Expr:
    heads, shared = _heads(given)
    return at(loops.head) // (heads // shared)


def _scores(lowering: Lowering, given: _Given, mask: BlockMask) -> tuple[AttentionLoops, Scores]:
    """Return loops over queries and keys, and the scores that they compute once more."""
    count = Expr.of(1) if mask.partial is None else mask.partial[1].shape[-1]
    loops = AttentionLoops.of(given.query, given.key, given.value, count)
    scores = scores_of(
        lowering,
        loops,
        given.query,
        given.key,
        given.score_mod,
        mask,
        given.scale,
        given.score_buffers,
        given.mask_buffers,
    )
    return loops, scores


def _of_queries(
    lowering: Lowering, given: _Given, mask: BlockMask
) -> tuple[TensorValue, TensorValue]:
    """Emit the gradient of the queries; return it, and what a row's weights have in common."""
    loops, scores = _scores(lowering, given, mask)
    common = _common(given, loops)
    weights = _weights(lowering, given, loops, scores, common)
    column = Symbol("c", "axis", given.query.shape[3])
    place = (at(loops.batch), _shared_head(loops, given), at(loops.key), at(column))
    left = ops.cast(weights.of_score, given.key.dtype)
    total = dot(left, given.key.at(place), (loops.key,), F32, float32_precision())
    found = ops.binary("mul", total, const(given.scale, F32))
    row = (at(loops.batch), at(loops.head), at(loops.query), at(column))
    buffer = _new_buffer(lowering, lowering.meta(0), "of_query")
    store = Store(buffer.name, row, lowering.round(found, given.query.dtype))
    reduced: tuple[Symbol, ...] = (column, loops.key, loops.depth, loops.width)
    if mask.partial is not None:
        reduced = (*reduced, loops.block)
    meta = dense_meta(given.query.shape[:3], F32, given.query.device)
    kept = _new_buffer(lowering, meta, "common")
    stores: tuple[Store, ...] = (store, Store(kept.name, row[:3], common))
    if lowering.wanted is not None and 0 not in lowering.wanted:  # a captured tensor's alone is
        stores, reduced = stores[1:], (loops.width,)
    lowering.emit(Body((loops.batch, loops.head, loops.query), reduced, stores))
    return lowering.from_buffer(buffer), lowering.from_buffer(kept)


def _of_keys(
    lowering: Lowering, given: _Given, mask: BlockMask, common: TensorValue
) -> tuple[TensorValue, TensorValue]:
    """Emit the gradients of keys and values."""
    turned = mask.turned()
    loops, scores = _scores(lowering, given, turned)
    kept = common.at((at(loops.batch), at(loops.head), at(loops.query)))
    weights = _weights(lowering, given, loops, scores, kept)
    heads, shared = _heads(given)
    head, query_head = loops.head, at(loops.head)
    summed: tuple[Symbol, ...] = (loops.query,)
    values: tuple[Node, ...] = (weights.weight, weights.of_score)
    if heads != shared:
        # a head of queries is one of those that share a head of keys
        head = Symbol("h", "axis", given.key.shape[1])
        member = Symbol("member", "axis", Expr.of(heads // shared))
        query_head = at(head) * (heads // shared) + at(member)
        summed = (member, loops.query)
        values = rewrite(values, {loops.head: query_head}, ops.decided)
    weight, of_score = (ops.cast(each, given.query.dtype) for each in values)
    depth = Symbol("c", "axis", given.query.shape[3])
    width = Symbol("c", "axis", given.value.shape[3])
    query_row = (at(loops.batch), query_head, at(loops.query))
    precision = float32_precision()
    right = given.query.at((*query_row, at(depth)))
    of_key = dot(of_score, right, summed, F32, precision)
    of_key = ops.binary("mul", of_key, const(given.scale, F32))
    right = given.gradient.at((*query_row, at(width)))
    of_value = dot(weight, right, summed, F32, precision)
    row = (at(loops.batch), at(head), at(loops.key))
    stores, results = [], []
    found = (("of_key", of_key, depth), ("of_value", of_value, width))
    for number, (name, node, column) in enumerate(found, 1):
        buffer = _new_buffer(lowering, lowering.meta(number), name)
        value = lowering.round(node, given.key.dtype)
        stores.append(Store(buffer.name, (*row, at(column)), value))
        results.append(lowering.from_buffer(buffer))
    reduced: tuple[Symbol, ...] = (depth, width, *summed, loops.depth, loops.width)
    if turned.partial is not None:
        reduced = (*reduced, loops.block)
    lowering.emit(Body((loops.batch, head, loops.key), reduced, tuple(stores)))
    return results[0], results[1]


def _of_captured(
    lowering: Lowering, given: _Given, mask: BlockMask, common: TensorValue
) -> tuple[TensorValue | None, ...]:
    """Emit the gradients of captured tensors: a kernel that adds to all of them."""
    loops, scores = _scores(lowering, given, mask)
    kept = common.at((at(loops.batch), at(loops.head), at(loops.query)))
    found = _weights(lowering, given, loops, scores, kept).captured
    if not any(found):
        return (None,) * len(given.score_buffers)
    metas = lowering.results[-len(found) :]
    targets: list[TensorValue | None] = []
    stores = []
    for each, meta in zip(found, metas, strict=True):
        targets.append(None)
        if each is None or meta is None:
            continue
        with lowering.making(meta):
            dtype = combining_dtype(lowering, "add")
            hint, lowering.hint = lowering.hint, "of_captured"
            zero: Node = const(0, dtype)
            target = fill(lowering, replace(meta, dtype=dtype), lambda index, zero=zero: zero)  # type: ignore[misc]
            lowering.hint = hint
        assert target.ref is not None
        targets[-1] = target
        for place, value in each.parts:
            if scores.kept is not None:
                value = ops.where(scores.kept, value, const(0, value.dtype))
            stores.append(Store(target.ref.buffer, place, ops.cast(value, dtype), "add"))
    axes = (loops.batch, loops.head, loops.query, loops.key)
    reduced: tuple[Symbol, ...] = (loops.depth, loops.width)
    if mask.partial is not None:
        reduced = (*reduced, loops.block)
    lowering.emit(Body(axes, reduced, tuple(stores)))
    results: list[TensorValue | None] = []
    for made, meta in zip(targets, metas, strict=True):
        if made is None or meta is None:
            results.append(None)
            continue
        with lowering.making(meta):
            results.append(finished(lowering, made))
    return tuple(results)


__all__ = ["flex_attention_backward"]
