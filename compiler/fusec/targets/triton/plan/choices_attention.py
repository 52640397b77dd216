"""Attention taken apart, and every heuristic of its kernels with its reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, FloorDiv, Symbol
from fusec.ir.node import Cast, Const, Dot, Load, Node, Op, Reduce
from fusec.ir.program import Settings
from fusec.ir.walk import free_axes, walk
from fusec.machine import current_machine
from fusec.targets.triton.plan.choice import Choice, Knob, known, power_of_two, sms

# Scores that the user's functions make this large, in place of infinity, need exact arithmetic.
LARGE = 1e30


@dataclass(frozen=True)
class Listed:
    """A list of blocks of keys for each block of queries.

    Attributes:
        count: How many there are.
        place: Each.
        rows: Queries of a block.
        columns: Keys of a block.
        entry: The axis along a list.
    """

    count: Load
    place: Load
    rows: int
    columns: int
    entry: Symbol


@dataclass(frozen=True)
class Attention:
    """A body that computes attention, taken apart.

    Attributes:
        batch: Its loop, None where there is one batch.
        head: Likewise.
        row: The loop over queries.
        key: The loop over keys.
        depth: The loop over what a query and a key are multiplied along.
        width: The loop along a value.
        query: What is read of the queries, keys and values.
        keys: Likewise.
        values: Likewise.
        product: The product of query and key.
        weighted: The product of weights and values.
        modified: The score.
        mask: Which scores are kept, within blocks that are kept in part; None for all.
        partial: Blocks that are kept in part; None where there are no blocks.
        full: Blocks that are kept whole.
        factor: What the score is times before two is raised to it.
        result: Where the result goes, the log2 of the rows' sums, the rows' mosts.
        sums: Likewise, or None.
        mosts: Likewise, or None.
    """

    batch: Symbol | None
    head: Symbol | None
    row: Symbol
    key: Symbol
    depth: Symbol
    width: Symbol
    query: Load
    keys: Load
    values: Load
    product: Dot
    weighted: Dot
    modified: Node
    mask: Node | None
    partial: Listed | None
    full: Listed | None
    factor: float
    result: Store
    sums: Store | None
    mosts: Store | None

    @property
    def masked(self) -> Node | None:
        """Which scores are kept in blocks that are kept in part, or where there are no blocks."""
        return self.mask

    @property
    def sizes(self) -> tuple[Expr, Expr]:
        """The numbers of queries and of keys."""
        return size_of(self.row), size_of(self.key)

    @property
    def pairs(self) -> Expr:
        """The number of heads of all batches."""
        found = Expr.of(1)
        for axis in (self.batch, self.head):
            found = found * size_of(axis)
        return found

    @property
    def careful(self) -> bool:
        """Whether scores may be so large that their multiples are infinite."""
        nodes = walk((self.modified,), Reduce)
        numbers = (n.value for n in nodes if isinstance(n, Const))
        if any(math.isfinite(n) and abs(n) >= LARGE for n in numbers):
            return True
        # a bias of its own for each score, or each key, may be a mask of such numbers
        free = free_axes((self.modified,))
        loads = [n for n in nodes if isinstance(n, Load) and n.dtype.is_floating_point]
        places = {self.key} if self.query.index[2].constant == 0 else {self.key, self.row}
        return any(not free[load].isdisjoint(places) for load in loads)

    @property
    def quick(self) -> bool:
        """Whether the weights are rounded to half precision, which hides the scores' last bits."""
        return self.weighted.args[0].dtype.itemsize == 2


def size_of(axis: Symbol | None) -> Expr:
    """Return the extent of a loop; 1 where there is none."""
    return Expr.of(1) if axis is None or axis.size is None else axis.size


def match_attention(body: Body) -> Attention:
    """Return the parts of a body that computes attention, as ``lower/attention`` made it."""
    weighted = next(p for p in body.products if any(isinstance(n, Dot) for n in walk(p.args[:1])))
    (product,) = (p for p in body.products if p is not weighted)
    exponent = _inner(weighted.args[0])
    assert isinstance(exponent, Op)
    assert exponent.name == "exp2"
    scaled = exponent.args[0].args[0]
    masked, factor = scaled.args
    assert isinstance(factor, Const)
    modified, mask = masked, None
    if isinstance(masked, Op) and masked.name == "where" and _is_nothing(masked.args[2]):
        mask, modified, _ = masked.args
    partial, full, mask = parts_of_mask(mask)
    (key,), (depth,) = weighted.axes, product.axes
    lists = {each.entry for each in (partial, full) if each is not None}
    (width,) = (a for a in body.reduce_axes if a not in {key, depth} | lists)
    *outer, row = body.axes
    batch, head = (axis if axis.size != 1 else None for axis in outer)
    query, keys = product.args
    values = weighted.args[1]
    assert isinstance(query, Load)
    assert isinstance(keys, Load)
    assert isinstance(values, Load)
    result = sums = mosts = None
    for store in body.stores:
        below = walk((store.value,))
        if weighted in below:
            result = store
        elif any(isinstance(n, Op) and n.name == "log2" for n in below):
            sums = store
        else:
            mosts = store
    assert result is not None
    return Attention(
        batch,
        head,
        row,
        key,
        depth,
        width,
        query,
        keys,
        values,
        product,
        weighted,
        modified,
        mask,
        partial,
        full,
        float(factor.value),
        result,
        sums,
        mosts,
    )


def parts_of_mask(mask: Node | None) -> tuple[Listed | None, Listed | None, Node | None]:
    """Return the lists of blocks that are kept in part, and whole; and the mask in the former."""
    partial = full = None
    if isinstance(mask, Op) and mask.name == "logical_or" and isinstance(mask.args[0], Reduce):
        full, mask = _listed(mask.args[0]), mask.args[1]
    if isinstance(mask, Reduce):
        partial, mask = _listed(mask), None
    elif isinstance(mask, Op) and mask.name == "logical_and" and isinstance(mask.args[0], Reduce):
        partial, mask = _listed(mask.args[0]), mask.args[1]
    return partial, full, mask


def group_heads(body: Body) -> Body:
    """Return a body whose rows are those of all heads that share keys, where each has few.

    Tensor cores multiply 16 rows at least; of one query a head there would be one.
    """
    found = match_attention(body)
    head, rows = found.head, found.sizes[0].constant
    shared = _sharing(found)
    if head is None or head.size is None or rows is None or shared == 1 or rows > FEW_QUERIES:
        return body
    for each in (found.partial, found.full):
        if each is not None and (
            head in {s for e in each.place.index for s in e.symbols()} or rows > each.rows
        ):
            return body
    assert head.size.constant is not None
    group = Symbol("h", "axis", Expr.of(head.size.constant // shared))
    row = Symbol("row", "axis", Expr.of(rows * shared))
    first = Expr.of(0) if group.size == 1 else Expr.of(group) * shared
    moves = {head: first + Expr.of(row) // rows, found.row: Expr.of(row) % rows}
    return body.moved((body.axes[0], group, row), body.reduce_axes, moves)


def _sharing(found: Attention) -> int:
    """Return how many heads of queries read one head of keys."""
    if found.head is None or found.head.size is None:
        return 1
    place = found.keys.index[1]
    heads = found.head.size.constant
    assert heads is not None
    if place.constant is not None:
        return heads
    return min(_divisor(place), heads) if _divides(place) else 1


def _inner(node: Node) -> Node:
    return node.args[0] if isinstance(node, Cast) else node


def _is_nothing(node: Node) -> bool:
    return isinstance(node, Const) and node.value == -math.inf


def _listed(node: Reduce) -> Listed:
    """Return the list that a search for a block goes through."""
    there, same = node.args[0].args
    count, (place, column) = there.args[1], same.args
    (entry,) = node.axes
    assert isinstance(count, Load)
    assert isinstance(place, Load)
    return Listed(count, place, _divisor(count.index[2]), _columns(column), entry)


def _columns(node: Node) -> int:
    """Return the constant in a position of data, which is 0 where there is one block."""
    return _divisor(node.exprs()[0]) if node.exprs() else 1 << 30


def _divides(expr: Expr) -> bool:
    return any(isinstance(atom, FloorDiv) for monomial in expr.terms for atom in monomial)


def _divisor(expr: Expr) -> int:
    """Return the constant in ``position // constant``; very large where all are in one block."""
    for monomial in expr.terms:
        for atom in monomial:
            if isinstance(atom, FloorDiv) and atom.divisor.constant is not None:
                return atom.divisor.constant
    return 1 << 30


_MEANINGS = {
    "BLOCK_M": ((16, 32, 64, 128), "queries of a tile"),
    "BLOCK_N": ((16, 32, 64, 128), "keys of a tile"),
    "GROUP_H": ((1, 2, 4, 8, 16, 32), "heads whose rows come together"),
    "SPLITS": ((1, 2, 4, 8, 16, 32, 64), "programs that share the keys of a row"),
    "NUM_WARPS": ((2, 4, 8), "warps a program, 32 threads each"),
    "NUM_STAGES": ((1, 2, 3, 4), "steps of the loop that are loaded ahead"),
}


def choose_attention(
    found: Attention, buffers: Mapping[str, Buffer], settings: Settings = ()
) -> Choice:
    """Decide the tunables of attention.

    Args:
        found: The attention.
        buffers: By name.
        settings: Values of tunables, where a measurement knows better than the rules.
    """
    rows, keys = (known(size) for size in found.sizes)
    depth = max(known(size_of(found.depth)), known(size_of(found.width)))
    values = _defaults(found, rows, depth)
    blocks = [each for each in (found.partial, found.full) if each is not None]
    kind = "attention"
    if rows <= FEW_QUERIES and _splits(found, rows, keys) > 1:
        kind = "shared attention"
        values["SPLITS"] = _splits(found, rows, keys)
    values |= dict(settings)
    knobs = make_knobs(values, [b.rows for b in blocks], [b.columns for b in blocks])
    return Choice(kind, (), knobs=knobs)


def make_knobs(
    values: Mapping[str, int], rows: Sequence[int], columns: Sequence[int]
) -> tuple[Knob, ...]:
    """Return tunables; tiles divide the blocks of the mask.

    Args:
        values: By name.
        rows: Queries of a block.
        columns: Keys of a block.
    """
    found = []
    for name, wanted in values.items():
        choices, meaning = _MEANINGS[name]
        sizes = {"BLOCK_M": rows, "BLOCK_N": columns}.get(name)
        value = wanted
        if sizes is not None:
            choices = tuple(c for c in choices if all(size % c == 0 for size in sizes))
            value = max((c for c in choices if c <= wanted), default=choices[0])
        found.append(Knob(name, value, choices, meaning))
    return tuple(found)


FEW_QUERIES = 64


def _splits(found: Attention, rows: int, keys: int) -> int:
    """Return how many programs share the keys of a row, where there are too few rows."""
    programs = known(found.pairs) * -(-rows // FEW_QUERIES)
    wanted = min(2 * sms() // max(programs, 1), keys // 256)
    return min(power_of_two(wanted + 1) // 2, 64) if wanted > 1 else 1


def _defaults(found: Attention, rows: int, depth: int) -> dict[str, int]:
    """Return tunables for a head's depth: what fits into registers and shared memory."""
    half = found.query.dtype.itemsize == 2
    if not half:
        sizes = (64, 32, 4, 2) if depth <= 64 else (32, 32, 4, 2)
    elif depth <= 64:
        sizes = (128, 64, 4, 3)
    elif depth <= 128:
        sizes = (64, 64, 4, 3)
    else:
        sizes = (64, 64, 4, 2)
    block_m, block_n, warps, stages = sizes
    few = max(power_of_two(rows), 16)
    if few < block_m:
        block_m, warps = few, 4
    row = depth * found.query.dtype.itemsize
    block_m, block_n, stages = fitted(block_m, block_n, stages, row, row)
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "GROUP_H": 8,
        "NUM_WARPS": warps,
        "NUM_STAGES": stages,
    }


def fitted(own: int, over: int, stages: int, own_row: int, row: int) -> tuple[int, int, int]:
    """Return tiles and stages that fit into the shared memory of the machine's GPU.

    Args:
        own: A program's own rows.
        over: Rows of a step of its loop, of each of two tensors.
        stages: Steps that are loaded ahead.
        own_row: Bytes of one of its own rows, in all tensors.
        row: Bytes of a row of each tensor that the loop runs over.
    """
    room = current_machine().gpu.shared * 7 // 8  # the rest is for turning tiles
    while own * own_row + 2 * stages * over * row > room:
        if stages > 2:
            stages -= 1
        elif over > 32:
            over //= 2
        elif own > 32:
            own //= 2
        elif stages > 1:
            stages = 1
        elif over > 16:
            over //= 2
        elif own > 16:
            own //= 2
        else:
            break
    return own, over, stages


__all__ = [
    "Attention",
    "Listed",
    "choose_attention",
    "fitted",
    "group_heads",
    "make_knobs",
    "match_attention",
    "parts_of_mask",
    "size_of",
]
