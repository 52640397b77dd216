"""Plans of reductions that run beside each other: columns, and short rows turned over."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

import torch

from fusec.ir.body import Store
from fusec.ir.checks import is_check
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Cast, Load, Node, Op, Reduce, Scan
from fusec.report import counted
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.cache_blocks import in_blocks
from fusec.targets.cpp.plan.facts import Facts, cost, extent, is_even, points
from fusec.targets.cpp.plan.interleave import mark_type
from fusec.targets.cpp.plan.loop_plan import Columns, InnerLoop, LoopConstant, RowPass
from fusec.targets.cpp.plan.pointwise import note_loop
from fusec.targets.cpp.plan.prefetch import busiest_pass, column_requests
from fusec.targets.cpp.plan.row_passes import RowSteps, plan_steps
from fusec.targets.cpp.plan.staging import Staging, staged, staged_row
from fusec.targets.cpp.plan.threads import plan_sharing


def column_axis(facts: Facts, *, forced: bool) -> Symbol | None:
    """Return the outer axis along which to vectorize, where that beats the reduced axes.

    Args:
        facts: What decisions go by.
        forced: Whether it need not beat them.
    """
    reads = [load for load in facts.body.loads() if facts.free[load] & set(facts.body.reduce_axes)]
    votes: dict[Symbol, int] = {}
    both: set[Symbol] = set()  # along which a load is contiguous as well as along the last axis
    last = facts.body.reduce_axes[-1]
    for load in reads:
        buffer = facts.buffers[load.buffer]
        offset = buffer.offset(load.index)
        along = [
            axis
            for axis in (*facts.body.axes, last)
            if offset.is_affine_in(axis) and offset.coefficient(axis) == 1
        ]
        both |= set(along) if last in along else set()
        for axis in along:
            # an index that is found once a row weighs little beside what it finds
            sizes = (extent(each) for each in facts.free[load])
            times = prod(size or choices.UNKNOWN_EXTENT for size in sizes)
            votes[axis] = votes.get(axis, 0) + times * buffer.dtype.itemsize
    own = votes.pop(last, 0)
    if not votes:
        return None
    best = max(votes, key=lambda axis: votes[axis])
    beside = all(best in facts.free[n] for n in facts.nodes if isinstance(n, Reduce | Scan))
    width = extent(best)
    fills = not own or width is None or width >= choices.LEAST_COLUMNS
    window = best in both and len(facts.body.reduce_axes) == 1 and votes[best] == own
    pays = votes[best] > own or (window and choices.is_short_window(extent(last)))
    return best if beside and (forced or (pays and fills)) else None


def plan_columns(facts: Facts, column: Symbol) -> Columns:
    """Return the passes over tiles of columns, whose reductions run along ``column``."""
    body = facts.body
    steps = plan_steps(facts, keep=False)
    count, rows = extent(column), points(body.reduce_axes)
    scans = body.scans()
    width = choices.SCAN_COLUMNS if scans else choices.tile_columns(count, rows)
    tile = _tile(facts, column, width, choices.COLUMN_CHOICES)
    others = [axis for axis in body.axes if axis is not column]
    tiles = 1 if tile.whole else None if count is None else -(-count // width)
    outer = points(others)
    units = None if tiles is None or outer is None else tiles * outer
    work = points(body.axes + body.reduce_axes)
    ordered = all(not n.kind.startswith("arg") for s in steps.passes for n in s.reductions)
    may = facts.may_thread and ordered and not scans and facts.allows("split_rows")
    pieces = None
    if may and choices.split_rows(units, work, rows):
        value = facts.wanted.size("PIECES", choices.PIECES, choices.PIECE_CHOICES)
        meaning = "parts of the rows for threads to share"
        pieces = LoopConstant("PIECES", value, choices.PIECE_CHOICES, meaning)
        facts.note(
            "pieces",
            f"{value} of the rows",
            f"{counted(units or 0, 'tile')} would not keep threads busy",
        )
    return _columns(facts, column, steps, tile, (), pieces=pieces)


def short_row_axis(facts: Facts, *, forced: bool) -> Symbol | None:
    """Return the outer axis along which to put rows beside each other, where that pays.

    Args:
        facts: What decisions go by.
        forced: Whether it need not pay.
    """
    body = facts.body
    if not body.axes or len(body.reduce_axes) != 1 or not facts.may_thread:
        return None
    if facts.updated or facts.checked or body.scans():
        return None
    column, point = body.axes[-1], body.reduce_axes[0]
    count, rows = extent(point), extent(column)
    if count is None or not 2 <= count <= choices.TURNED_TILE // choices.TURNED_ROWS_LEAST:
        return None
    if not forced and not choices.may_turn_rows(count, rows, cost(facts.nodes)):
        return None
    reductions = [node for node in facts.nodes if isinstance(node, Reduce)]
    if any(n.kind.startswith("arg") or column not in facts.free[n] for n in reductions):
        return None
    loads = turned_over(facts, column)
    every = [load for load in body.loads() if is_of_both(facts.free[load], column, point)]
    stores = [store for store in body.stores if is_of_both(axes_of(store), column, point)]
    if not loads or len(loads) != len(every):
        return None
    if not all(row_step(facts, s.buffer, s.index, column) is not None for s in stores):
        return None
    return column if all(store.mode == "set" for store in stores) else None


def plan_short_rows(facts: Facts, column: Symbol) -> Columns:
    """Return the passes over tiles of short rows that are turned over."""
    (point,) = facts.body.reduce_axes
    count = extent(point)
    assert count is not None
    steps = plan_steps(facts)
    width = choices.turned_rows(count)
    tile = _tile(facts, column, width, choices.TURNED_ROWS_CHOICES)
    reason = f"rows of {count} are turned over, where vectors are full"
    facts.note("tile", f"{tile.size.value} rows", reason)
    return _columns(facts, column, steps, tile, turned_over(facts, column), turned=True)


class _Tile:
    """How wide a tile of columns is.

    Attributes:
        size: As a tunable.
        whole: Whether it has all columns.
        even: Whether all tiles are full.
    """

    def __init__(self, size: LoopConstant, count: int | None) -> None:
        self.size = size
        self.whole = count is not None and count <= size.value
        self.even = count is not None and count % size.value == 0


def _tile(facts: Facts, column: Symbol, width: int, among: Sequence[int]) -> _Tile:
    count = extent(column)
    meaning = "columns side by side"
    even = count is not None and count % width == 0
    fitting = tuple(n for n in among if not even or (count or 0) % n == 0)
    if count is None or count > width:
        width = facts.wanted.size("COLUMNS", width, fitting)
    return _Tile(LoopConstant("COLUMNS", width, fitting, meaning), count)


def _columns(
    facts: Facts,
    column: Symbol,
    steps: RowSteps,
    tile: _Tile,
    loads: Collection[Load],
    *,
    pieces: LoopConstant | None = None,
    turned: bool = False,
) -> Columns:
    """Return the plan of tiles.

    Args:
        facts: What decisions go by.
        column: What vectors run along.
        steps: The passes.
        tile: How wide a tile is.
        loads: What is found turned over.
        pieces: Into how many parts the rows are cut.
        turned: Whether the columns are rows.
    """
    if not turned:
        of = "all of them" if tile.whole else f"{tile.size.value} side by side"
        facts.note("tile", of, f"running results of {column.name} stay in the first-level cache")
    passes, held = [], set[Node]()
    for number, step in enumerate(steps.passes):
        held.update(held_columns(facts, step.before, column))
        there: set[Node] = set(loads)
        if turned:
            kept = [node for node in steps.kept if not isinstance(node, Load)]
            there.update(node for node in kept if steps.first[node] < number)
        passes.append(_pass(facts, steps, number, column, tile, held | there, turned=turned))
        held.update(step.reductions)
    sharing = plan_sharing(facts)
    # Where the memory would be idle, the pass asks for the tile to come.
    busiest = busiest_pass(steps) if turned and any(s.loops for s in steps.passes) else -1
    return Columns(
        column, sharing, steps, tuple(passes), tile.size, tile.whole, tile.even, pieces, busiest
    )


def _pass(
    facts: Facts,
    steps: RowSteps,
    number: int,
    column: Symbol,
    tile: _Tile,
    known: Collection[Node],
    *,
    turned: bool,
) -> RowPass:
    step = steps.passes[number]
    full = tile.whole or tile.even
    loop = InnerLoop(column)
    if step.loops and facts.may_thread:
        wanted = [n.args[0] for n in step.reductions] + [s.value for s in step.stores]
        nodes = facts.closure(wanted, {*facts.fixed(column), *known})
        marks = ""
        if full and not facts.checked and facts.allows("interleave"):
            marks = mark_type(nodes)
        width = max(extent(column) or 1, 1) if tile.whole else None
        asks = facts.allows("prefetch")
        requests = column_requests(facts, steps, number, column, width) if asks else ()
        inside = [node for node in facts.nodes if column in facts.free[node]]
        blocks, staging = bool(requests) and in_blocks(column, inside), Staging()
        if not turned and choices.has_half_vectors():
            if in_blocks(column, inside):
                staging = Staging(staged(facts, column, inside, ()).loads)
                blocks = blocks or bool(staging)
            elif tile.whole:
                staging = Staging(staged_row(facts, column, inside, ()).loads)
        even = full and is_even(column)
        loop = InnerLoop(column, blocks, even, requests, staging, marks=marks)
        note_loop(facts, loop)
    return RowPass(step, loop, _row_chunk(facts, step.reductions))


def _row_chunk(facts: Facts, reductions: Sequence[Reduce]) -> int | None:
    """Return how many steps of the outermost reduced axis one float sum runs over."""
    if not any(node.kind == "sum" and node.dtype.is_floating_point for node in reductions):
        return None
    outer, *rest = facts.body.reduce_axes
    inner = points(rest) or max(choices.ROW_CHUNK // 16, 1)
    chunk = max(1, choices.ROW_CHUNK // inner)
    size = extent(outer)
    return None if size is not None and size <= chunk else chunk


def held_columns(facts: Facts, before: Sequence[Node], column: Symbol) -> list[Node]:
    """Return what a later loop needs of every column: it is held in an array.

    Loads are done again.

    Args:
        facts: What decisions go by.
        before: What is computed between two passes.
        column: What vectors run along.
    """
    group, held = set(before), list[Node]()
    for node in before:
        users = facts.users.get(node, [])
        if column not in facts.free[node] or all(user in group for user in users):
            continue
        again = isinstance(node, Load) and node.buffer not in facts.updated
        if isinstance(node, Load | Op | Cast) and not again and not is_check(node):
            held.append(node)
    return held


# -- short rows --------------------------------------------------------------------------------


def turned_over(facts: Facts, column: Symbol) -> list[Load]:
    """Return the loads that go through an array, of rows along ``column``."""
    point = facts.body.reduce_axes[0]
    return [
        load
        for load in facts.body.loads()
        if load.mask is None
        and is_of_both(facts.free[load], column, point)
        and row_step(facts, load.buffer, load.index, column) is not None
    ]


def is_of_both(axes: Collection[Symbol], column: Symbol, point: Symbol) -> bool:
    """Whether something lies along a row, and is another one in each row."""
    return column in axes and point in axes


def axes_of(store: Store) -> set[Symbol]:
    """Return the axes that the place of a store depends on."""
    return {symbol for expr in store.index for symbol in expr.symbols()}


def row_step(facts: Facts, buffer: str, index: tuple[Expr, ...], column: Symbol) -> Expr | None:
    """Return how far apart rows are in memory; None where they are not contiguous rows."""
    (point,) = facts.body.reduce_axes
    held = facts.buffers[buffer]
    # Conversion of float16 is no vector code inside of a loop.
    if held.dtype == torch.float16 or held.dtype.is_complex:
        return None
    offset = held.offset(index)
    if any(s.kind == "indirect" for s in offset.symbols()):
        return None
    if not (offset.is_affine_in(point) and offset.is_affine_in(column)):
        return None
    step = offset.coefficient(column)
    if offset.coefficient(point) != 1 or {point, column} & set(step.symbols()):
        return None
    return step


__all__ = [
    "axes_of",
    "column_axis",
    "held_columns",
    "is_of_both",
    "plan_columns",
    "plan_short_rows",
    "row_step",
    "short_row_axis",
    "turned_over",
]
