"""``flex_attention``: attention whose scores and masks are functions that the user wrote.

It becomes one body: scores, a product of matrices; what the user's functions make of them; the
softmax of each row; and the product with the values.  Whether a key's block is in the block mask is
a part of it, so that the body says by itself what the kernel computes::

    score = dot(query[b, h, q], key[b, h, kv])
    kept = listed as full or (listed in part and mask_mod(b, h, q, kv))
    weight = exp2(where(kept, score_mod(score * scale, ...), -inf) * log2(e) - the row's most)
    out = dot(weight, value[b, h, kv]) / sum(weight)

``targets/triton/kernels/attention.py`` takes it apart again.  Where something has no form here,
torch's own operator runs; on a CPU the graph has its formulas (``attention_formulas.py``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, const, dot, index_value, reduce
from fusec.lower.attention.block_masks import BlockMask
from fusec.lower.attention.score_functions import Elements, call, number_of, scalar
from fusec.lower.higher_order import Subgraph
from fusec.lower.matmul import PRODUCT_DTYPES, float32_precision
from fusec.lower.registry import register
from fusec.lower.sizes import specialize
from fusec.lower.values import (
    Lowering,
    NotLowered,
    TensorValue,
)

HIGHER = torch.ops.higher_order
LOG2E = math.log2(math.e)
F32 = torch.float32
MASK_PARTS = 10  # of a block mask's tuple at least: lengths, lists, sizes of blocks, the function


@dataclass(frozen=True)
class Scores:
    """The scores of attention, at one query and one key.

    Attributes:
        product: The product of query and key.
        score: It times the scale.
        modified: What ``score_mod`` made of it, in float32.
        kept: Whether the mask keeps it; None where it keeps all.
    """

    product: Node
    score: Node
    modified: Node
    kept: Node | None

    @property
    def masked(self) -> Node:
        """The score, minus infinity where it is not kept."""
        if self.kept is None:
            return self.modified
        return ops.where(self.kept, self.modified, const(-math.inf, F32))


@dataclass(frozen=True)
class AttentionLoops:
    """The loops of attention: batch, head, query, key, and the depths of keys and of values."""

    batch: Symbol
    head: Symbol
    query: Symbol
    key: Symbol
    depth: Symbol
    width: Symbol
    block: Symbol

    @staticmethod
    def of(
        query: TensorValue, key: TensorValue, value: TensorValue, blocks: Expr
    ) -> AttentionLoops:
        """Return fresh loops over tensors of these sizes."""
        sizes = (*query.shape[:3], key.shape[2], query.shape[3], value.shape[3], blocks)
        names = ("b", "h", "q", "kv", "d", "e", "block")
        return AttentionLoops(
            *(Symbol(n, "axis", size) for n, size in zip(names, sizes, strict=True))
        )


def at(axis: Symbol) -> Expr:
    """Return where a loop is."""
    return Expr.of(0) if axis.size == 1 else Expr.of(axis)


@register(HIGHER.flex_attention)
def flex_attention(
    lowering: Lowering,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    score_mod: Subgraph,
    block_mask: Sequence[object],
    scale: float,
    kernel_options: dict[str, object],
    score_buffers: Sequence[object] = (),
    mask_buffers: Sequence[object] = (),
) -> tuple[TensorValue | None, ...]:
    """Return the attention's result, the log2 of each row's sum, and each row's most."""
    require_kernel(lowering, query, key, value)
    query, key, value = (lowering.realize(each) for each in (query, key, value))
    mask = BlockMask.of(block_mask)
    call_by_role(lowering, {"query": query, "key": key, "value": value})
    call_lists_by_role(lowering, mask)
    loops = AttentionLoops.of(
        query, key, value, Expr.of(1) if mask.partial is None else _count(mask)
    )
    scores = scores_of(
        lowering, loops, query, key, score_mod, mask, scale, score_buffers, mask_buffers
    )
    # the scale goes with the change of base where nothing stands between
    plain = scores.modified is scores.score and scale > 0
    raw = Scores(scores.product, scores.product, scores.product, scores.kept) if plain else scores
    factor = const(scale * LOG2E if plain else LOG2E, F32)
    most = ops.binary("mul", reduce("max", raw.masked, (loops.key,), F32), factor)
    empty = ops.binary("eq", most, const(-math.inf, F32))
    reference = ops.where(empty, const(0, F32), most)
    exponent = ops.binary("sub", ops.binary("mul", raw.masked, factor), reference)
    weight = ops.unary("exp2", exponent)
    total = reduce("sum", weight, (loops.key,), F32)
    nothing = ops.binary("eq", total, const(0, F32))
    outer = (batch_of(loops, value), head_of(loops, query, value), at(loops.key), at(loops.width))
    right = value.at(outer)
    left = ops.cast(weight, value.dtype)
    weighted = dot(left, right, (loops.key,), F32, float32_precision())
    divisor = ops.where(nothing, const(1, F32), total)
    # exp2(inf - inf) is no number, where the sum of exponentials is infinite
    unbounded = ops.binary("eq", most, const(math.inf, F32))
    logarithm = ops.where(
        unbounded, const(math.inf, F32), ops.binary("add", most, ops.unary("log2", total))
    )
    found = (
        lowering.round(ops.binary("truediv", weighted, divisor), query.dtype),
        ops.where(nothing, const(-math.inf, F32), logarithm),
        most,
    )
    return _store_results(lowering, loops, found, with_blocks=mask.partial is not None)


def _store_results(
    lowering: Lowering, loops: AttentionLoops, found: Sequence[Node], *, with_blocks: bool
) -> tuple[TensorValue | None, ...]:
    """Store the attention's result and, where they are wanted, what is known of each row."""
    row = (at(loops.batch), at(loops.head), at(loops.query))
    places = ((*row, at(loops.width)), row, row)
    stores: list[Store] = []
    results: list[TensorValue | None] = []
    hint = lowering.hint
    for number, (node, place) in enumerate(zip(found, places, strict=True)):
        if number and lowering.wanted is not None and number not in lowering.wanted:
            results.append(None)
            continue
        lowering.hint = (hint, "log2_of_sums", "most_of_rows")[number]
        buffer = lowering.new_buffer(lowering.meta(number))
        stores.append(Store(buffer.name, place, node))
        results.append(lowering.from_buffer(buffer))
    axes = (loops.batch, loops.head, loops.query)
    reduced: tuple[Symbol, ...] = (loops.width, loops.key, loops.depth)
    if with_blocks:
        reduced = (*reduced, loops.block)
    lowering.hint = hint
    lowering.emit(Body(axes, reduced, tuple(stores)))
    return tuple(results)


def specialize_heads(graph: fx.Graph) -> None:
    """Guard the number of heads, and their depths, to be what they are: kernels are for those."""
    for node in graph.nodes:
        if node.target not in (HIGHER.flex_attention, HIGHER.flex_attention_backward):
            continue
        for each in node.args[:3]:
            tensor = each.meta.get("val") if isinstance(each, fx.Node) else None
            if isinstance(tensor, torch.Tensor) and tensor.dim() == 4:
                specialize(tensor.shape[1])
                specialize(tensor.shape[3])
        masks = [each for each in node.args if isinstance(each, tuple) and len(each) > MASK_PARTS]
        for each in masks[0][-3:-1] if masks else ():
            if isinstance(each, fx.Node) and isinstance(each.meta.get("val"), torch.SymInt):
                specialize(each.meta["val"])


def require_kernel(lowering: Lowering, *tensors: TensorValue) -> None:
    """Raise where attention of these tensors has no kernel of ours.

    Raises:
        NotLowered: With the reason.
    """
    query, key, value = tensors[:3]
    if not lowering.can(query.device).attention:
        raise NotLowered("attention has a kernel on a GPU alone")
    if query.dtype not in PRODUCT_DTYPES or any(t.dtype != query.dtype for t in tensors):
        raise NotLowered("attention's kernel multiplies one type: float16, bfloat16 or float32")
    if any(size.constant == 0 for each in tensors for size in each.shape):
        raise NotLowered("attention over no elements")
    heads, shared = query.shape[1].constant, key.shape[1].constant
    if heads is None or shared is None or heads % shared:
        raise NotLowered("the number of heads is not known")
    if any(t.shape[3].constant is None for t in (query, value)):
        raise NotLowered("the depth of a head is not known")
    if key.shape[0] != query.shape[0] and key.shape[0] != 1:
        raise NotLowered("there are fewer keys than batches")


_UNNAMED = re.compile(r"(primals|tangents|alias|detach|getitem|arg|flex_attention)_?\d*(_\d+)?")
_LISTS = (
    "kv_counts kv_blocks full_kv_counts full_kv_blocks "
    "q_counts q_blocks full_q_counts full_q_blocks"
).split()


def call_by_role(lowering: Lowering, tensors: dict[str, TensorValue | None]) -> None:
    """Name tensors that the user has no name for by what they are to attention."""
    for name, tensor in tensors.items():
        if tensor is None or tensor.ref is None:
            continue
        buffer = lowering.buffers[tensor.ref.buffer]
        if _UNNAMED.fullmatch(buffer.hint):
            lowering.buffers[buffer.name] = replace(buffer, hint=name)


def call_lists_by_role(lowering: Lowering, mask: BlockMask) -> None:
    """Name the lists of blocks likewise."""
    pairs = (mask.partial, mask.full, mask.partial_queries, mask.full_queries)
    lists = [each for pair in pairs for each in pair or (None, None)]
    call_by_role(lowering, dict(zip(_LISTS, lists, strict=True)))


def batch_of(loops: AttentionLoops, tensor: TensorValue) -> Expr:
    """Return where a batch is in a tensor that all batches may share."""
    return Expr.of(0) if tensor.shape[0].constant == 1 else at(loops.batch)


def head_of(loops: AttentionLoops, query: TensorValue, key: TensorValue) -> Expr:
    """Return the head of keys that a head of queries reads; several may share one."""
    heads, shared = query.shape[1].constant, key.shape[1].constant
    assert heads is not None
    assert shared is not None
    return at(loops.head) // (heads // shared)


def scores_of(
    lowering: Lowering,
    loops: AttentionLoops,
    query: TensorValue,
    key: TensorValue,
    score_mod: Subgraph,
    mask: BlockMask,
    scale: float,
    score_buffers: Sequence[object],
    mask_buffers: Sequence[object],
) -> Scores:
    """Return the scores of attention as the user's functions make them."""
    left = query.at((at(loops.batch), at(loops.head), at(loops.query), at(loops.depth)))
    where = (batch_of(loops, key), head_of(loops, query, key), at(loops.key), at(loops.depth))
    product = dot(left, key.at(where), (loops.depth,), F32, float32_precision())
    score = ops.binary("mul", product, const(scale, F32))
    places = positions(lowering, loops, query.device)
    given = scalar(lowering, score, query.dtype, query.device)
    modified = call(lowering, score_mod, [given, *places, *score_buffers])
    held = call(lowering, mask.mask, [*places, *mask_buffers])
    kept: Node | None = ops.cast(held, torch.bool)
    if isinstance(kept, ops.Const) and kept.value:
        kept = None
    if mask.partial is not None:
        kept = ops.logical_and(listed(loops, mask, mask.partial), kept)
        assert kept is not None
        if mask.full is not None:
            kept = ops.binary("logical_or", listed(loops, mask, mask.full), kept)
    return Scores(product, score, ops.cast(modified, F32), kept)


def _count(mask: BlockMask) -> Expr:
    """Return how many blocks a list of ``mask`` has room for."""
    assert mask.partial is not None
    count = mask.partial[1].shape[-1]
    if mask.full is not None and mask.full[1].shape[-1] != count:
        raise NotLowered("the lists of the mask's blocks have different lengths")
    return count


def listed(loops: AttentionLoops, mask: BlockMask, lists: tuple[TensorValue, TensorValue]) -> Node:
    """Return whether the key's block is among those listed for the query's, or the other way."""
    counts, places = lists
    outer = tuple(
        Expr.of(0) if size.constant == 1 else at(axis)
        for axis, size in zip((loops.batch, loops.head), counts.shape, strict=False)
    )
    own, other = at(loops.query) // mask.rows, at(loops.key) // mask.columns
    if mask.by_keys:
        own, other = other, own
    row = (*outer, own)
    entry = index_value(at(loops.block), counts.dtype)
    there = ops.binary("lt", entry, counts.at(row))
    column = index_value(other, places.dtype)
    same = ops.binary("eq", places.at((*row, at(loops.block))), column)
    return reduce("any", ops.binary("logical_and", there, same), (loops.block,), torch.bool)


def positions(lowering: Lowering, loops: AttentionLoops, device: torch.device) -> list[TensorValue]:
    """Return batch, head, query and key as the integers that a function is given."""
    found = []
    for axis in (loops.batch, loops.head, loops.query, loops.key):
        found.append(number_of(index_value(at(axis), torch.int32), device))
    return found


__all__ = ["Elements", "flex_attention"]
