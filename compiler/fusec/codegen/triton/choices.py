"""Every heuristic of the Triton back end, each a function with its reason.

The figures are for an H200 (132 SMs, 64 K registers and 2048 threads an SM, 16-byte accesses,
4.2 TB/s); they carry over to its neighbors.  For comparison, TorchInductor keeps rows of up to
1024 elements in registers and loops over longer ones; a row of 32 K still fits, and reading it
once instead of two or three times is what the reductions' speed is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusec.codegen.passes import plan_passes
from fusec.codegen.triton.online import carry_online
from fusec.codegen.triton.tiling import by_stride, strides_of
from fusec.ir.body import Body, Buffer
from fusec.ir.index import Expr, Symbol, product
from fusec.ir.node import Load, Reduce, Scan, free_axes, indirect_nodes

SMS = 132
UNKNOWN_SIZE = 8192  # what a symbolic size is taken for
PERSISTENT_LIMIT = 16384  # elements of a row in registers, with two programs an SM
ONCE_LIMIT = 8192  # the same for rows that a loop, too, would read only once
SHORT_COLUMN = 64  # elements that one thread goes through by itself
FEW_PARTS = 512  # elements that a program of a few columns takes in one or two steps
SMALL_PARTS = 1 << 22  # elements in all that lie in the L2, being a kernel's latest results
KEPT_IN_L2 = 24 << 20  # bytes that surely stay in the L2 between two passes of a kernel
TILE_SIDE = 32


@dataclass(frozen=True)
class Knob:
    """A tunable constant of the text: its value, what is worth trying, what it means."""

    name: str
    value: int
    choices: tuple[int, ...]
    meaning: str


@dataclass(frozen=True)
class Choice:
    """How a body becomes kernels.

    Attributes:
        kind: ``scalar``, ``flat``, ``tiled``, ``persistent``, ``looped``, ``split``, or
            ``crossed``: rows and columns at once.
        groups: The independent axes of each outer dimension, slowest first.
        reduced: The reduced axes, slowest first.
        inner_last: Whether the reduced dimension is the contiguous one, the tile's last.
        scalar_rows: Whether a program takes one row, so that the row is a scalar.
        knobs: The tunables.
        row_block: The fixed width of a persistent row; 0 otherwise.
        walked: Reduced axes, not among ``reduced``, whose positions a loop takes one by one.
    """

    kind: str
    groups: tuple[tuple[Symbol, ...], ...]
    reduced: tuple[Symbol, ...] = ()
    inner_last: bool = True
    scalar_rows: bool = False
    knobs: tuple[Knob, ...] = ()
    row_block: int = 0
    walked: tuple[Symbol, ...] = ()


def known(size: Expr) -> int:
    """Return a size, or a guess where it is symbolic."""
    value = size.constant
    if value is not None:
        return value
    guess = size.evaluate(lambda s: UNKNOWN_SIZE)
    assert isinstance(guess, int)
    return max(guess, 1)


def power_of_two(value: int) -> int:
    """Return the smallest power of two that is not below ``value``."""
    return 1 << max(value - 1, 0).bit_length()


def warps(value: int) -> Knob:
    """Return the tunable for the threads of a program."""
    return Knob("NUM_WARPS", value, (1, 2, 4, 8, 16, 32), "warps a program, 32 threads each")


def stages() -> Knob:
    """Return the tunable for the steps whose loads are under way at once."""
    return Knob("NUM_STAGES", 1, (1, 2, 3, 4), "steps of the loop that are loaded ahead")


def choose(body: Body, buffers: Mapping[str, Buffer], strategy: str = "") -> Choice:
    """Decide how ``body`` becomes kernels.

    Args:
        body: What to compute.
        buffers: By name.
        strategy: ``persistent``, ``looped`` or ``split`` where the caller knows better than the
            rules (a measurement, a test); it is taken where it is possible.
    """
    if body.sums:
        return choose_crossed(body)
    if body.reduce_axes:
        choice = choose_reduction(body, buffers, strategy)
        # A scan's next element needs the one before, so programs do not share a row.
        if choice.kind == "split" and (body.scans() or overwrites_row_values(body)):
            return choose_reduction(body, buffers, "looped")
        return choice
    return choose_pointwise(body, buffers)


# -- without reductions -------------------------------------------------------------------


def choose_pointwise(body: Body, buffers: Mapping[str, Buffer]) -> Choice:
    """Flat, unless memory disagrees about which axis is the fastest: then square tiles."""
    points = product(a.size for a in body.axes if a.size is not None)
    if points.constant == 1:
        return Choice("scalar", (body.axes,), knobs=(warps(1),))
    axes = by_stride(body, buffers, body.axes)
    pair = disagreeing_axes(body, buffers, axes)
    if pair is not None:
        x, y = pair
        rest = [a for a in axes if a not in pair]
        # whole cache lines on both sides; the turn happens in shared memory
        halves = all(buffers[name].dtype.itemsize <= 2 for name in body.reads() + body.writes())
        knobs = (
            Knob("YBLOCK", TILE_SIDE * (4 if halves else 1), (16, 32, 64, 128), "rows of a tile"),
            Knob("XBLOCK", 2 * TILE_SIDE, (16, 32, 64, 128), "columns of a tile"),
            warps(4),
        )
        return Choice("tiled", ((*rest, y), (x,)), knobs=knobs)
    flat = flat_knobs(body, buffers, known(points))
    tiles = row_tiles(axes, flat)
    if tiles:
        return Choice("tiled", (tuple(axes[:-1]), (axes[-1],)), knobs=tiles)
    return Choice("flat", (tuple(axes),), knobs=flat)


def row_tiles(axes: list[Symbol], knobs: tuple[Knob, ...]) -> tuple[Knob, ...]:
    """Return the tunables of tiles whose rows lie along the innermost axis; none where none pay.

    Axes that could not be joined mean that something depends on one of them alone: the scale of
    a row, the place that an index says, the position in an image.  In a tile of rows and columns
    that is computed once a row or column instead of once an element.
    """
    wide = [a for a in axes if a.size != 1]
    size = wide[-1].size.constant if wide and wide[-1].size is not None else None
    if len(wide) < 2 or size is None or size < 16:
        return ()
    (block, count) = (knob.value for knob in knobs)
    across = min(power_of_two(size), block)
    if -(-size // across) * across * 3 > size * 4:
        return ()  # more than a quarter of the threads would have nothing to do
    return (
        Knob("YBLOCK", block // across, (1, 2, 4, 8, 16, 32, 64), "rows of a tile"),
        Knob("XBLOCK", across, (16, 32, 64, 128, 256, 512, 1024), "columns of a tile"),
        warps(count),
    )


def flat_knobs(body: Body, buffers: Mapping[str, Buffer], points: int) -> tuple[Knob, ...]:
    """16 bytes a thread and access, twice; smaller blocks where few points leave SMs idle.

    Buffers that hold next to nothing (an index a row, a scale) do not count.  Where most loads
    step irregularly, as those of a pooling window do, each element has an access of its own
    anyway: then a thread takes a few neighbors only, so that the accesses of neighboring threads
    share cache lines, and small programs finish sooner (max pool 62 us instead of 92).
    """
    names = dict.fromkeys(body.reads() + body.writes())
    sizes = {name: known(buffers[name].elements) for name in names}
    bulk = [name for name in names if sizes[name] * 8 > max(sizes.values())]
    itemsize = max((buffers[name].dtype.itemsize for name in bulk), default=4)
    block = 1024 if itemsize <= 4 else 512
    irregular = steps_irregularly(body, buffers)
    if irregular and not any(indirect_nodes(load.index) for load in body.loads()):
        block = 256  # computed places cost more than their accesses: rows of a tile share them
    while block > 128 and points // block < 2 * SMS:
        block //= 2
    # two 16-byte accesses of half precision are 16 elements, of single precision 8
    few = irregular or (itemsize <= 2 and block == 1024)
    return (
        Knob("XBLOCK", block, (128, 256, 512, 1024, 2048, 4096), "elements a program computes"),
        warps(4 if block >= 256 and not few else 2),
    )


def steps_irregularly(body: Body, buffers: Mapping[str, Buffer]) -> bool:
    """Whether most loads move by something else than one element along the innermost axis."""
    axis = next((a for a in reversed(body.axes) if a.size != 1), None)
    if axis is None:
        return False
    loads = body.loads()
    strides = strides_of(body, buffers, axis)[: len(loads)]
    free = free_axes(body.computed)
    computed = [any(axis in free[n] for n in indirect_nodes(load.index)) for load in loads]
    irregular = [c or s not in (0, 1) for c, s in zip(computed, strides, strict=True)]
    return 2 * sum(irregular) > len(irregular) >= 4


def disagreeing_axes(
    body: Body, buffers: Mapping[str, Buffer], axes: list[Symbol]
) -> tuple[Symbol, Symbol] | None:
    """Return (the fastest axis, the one that some access is contiguous along) where they differ.

    Tiles pay only where both are long enough to fill a cache line, and where the access that is
    contiguous along another axis strides along the fastest one.
    """
    x = next((a for a in reversed(axes) if a.size != 1), None)
    if x is None or x.size is None or known(x.size) < TILE_SIDE // 2:
        return None
    along_x = strides_of(body, buffers, x)
    for y in axes:
        if y is x or y.size is None or known(y.size) < TILE_SIDE // 2:
            continue
        along_y = strides_of(body, buffers, y)
        for sx, sy in zip(along_x, along_y, strict=True):
            if sy == 1 and (sx > 1 or sx == -1):
                return x, y
    return None


# -- with reductions ----------------------------------------------------------------------


def choose_reduction(body: Body, buffers: Mapping[str, Buffer], strategy: str) -> Choice:
    """Persistent where a row fits into registers, split where rows are few, else looped."""
    reduced = tuple(body.reduce_axes)
    if not any(isinstance(n, Reduce) and n.kind.startswith("arg") for n in body.nodes()):
        reduced = tuple(by_stride(body, buffers, reduced))
    outer = tuple(by_stride(body, buffers, body.axes))
    results = product(a.size for a in outer if a.size is not None)
    size = product(a.size for a in reduced if a.size is not None)
    rows, columns = known(results), known(size)
    if size.constant is None and results == 1:
        columns = 1 << 20  # a reduction of everything, of unknown size: assume much
    single = results.constant in (0, 1)
    if not single and not reduces_contiguous(body, buffers, outer, reduced):
        bulk = bulk_loads(body, buffers, reduced)
        one = sum(isinstance(n, Reduce) for n in body.nodes()) == 1 and reads_once(body)
        parts = adds_parts(body, rows, columns)
        return choose_columns((outer,), reduced, rows, columns, bulk, one, strategy, parts=parts)
    width = power_of_two(columns)
    limit = ONCE_LIMIT if reads_once(body) else PERSISTENT_LIMIT
    fits = size.constant is not None and width <= (1 << 20 if strategy else limit)
    walked, reduced = walked_axes(body, reduced)
    splits = splits_for(rows, columns)
    kind = strategy or ("split" if splits > 1 else "persistent" if fits else "looped")
    if kind == "persistent" and fits:
        return choose_persistent((outer,), walked + reduced, rows, width, single)
    if walked:
        return choose_walked((outer,), walked, reduced, rows, strategy)
    if kind == "split":
        return choose_split((outer,), reduced, max(splits, 2))
    again = columns * row_bytes(body, buffers, reduced) if not reads_once(body) else 0
    places = any(isinstance(n, Reduce) and n.kind.startswith("arg") for n in body.nodes())
    return choose_looped((outer,), reduced, columns, again, places)


def walked_axes(
    body: Body, reduced: tuple[Symbol, ...]
) -> tuple[tuple[Symbol, ...], tuple[Symbol, ...]]:
    """Divide reduced axes into those that a loop takes one by one and those of a tile.

    Several axes that were not joined are not one stretch of memory, or something depends on the
    outer ones alone (the weight of a channel).  With the outer ones as numbers of the loop, what
    depends on them is loaded once, and what lies along the inner one in whole cache lines.
    """
    wide = [a for a in reduced if a.size != 1]
    inner = wide[-1].size.constant if wide and wide[-1].size is not None else None
    if len(wide) < 2 or inner is None or inner < 256 or body.scans():
        return (), reduced
    if inner > 8192 and inner % 1024:
        return (), reduced
    if any(isinstance(n, Reduce) and n.kind.startswith("arg") for n in body.nodes()):
        return (), reduced  # their positions are counted over all of a row
    return tuple(wide[:-1]), (wide[-1],)


def choose_walked(
    groups: tuple[tuple[Symbol, ...], ...],
    walked: tuple[Symbol, ...],
    reduced: tuple[Symbol, ...],
    rows: int,
    strategy: str,
) -> Choice:
    """A row of several parts: a step is one of them or an equal share of one, 8 elements a thread.

    Programs enough to fill the GPU with threads share the rows.
    """
    parts = product(a.size for a in walked if a.size is not None)
    size = known(reduced[0].size) if reduced[0].size is not None else 1
    block = power_of_two(size)
    if block > 8192 or size % 1024 == 0:
        block = next(b for b in (8192, 4096, 2048, 1024) if size % b == 0)
    steps = known(parts) * -(-size // block)
    count = max(block // 256, 1)
    splits = min(64 * SMS // (rows * count), steps // 4)
    whole = [b for b in (256, 512, 1024, 2048, 4096, 8192) if size % b == 0 or b >= size]
    knobs = [
        Knob("RBLOCK", block, tuple(whole), "elements a program takes at a time"),
        warps(count),
        stages(),
    ]
    if strategy == "split" or (splits > 1 and not strategy):
        counts = (2, 4, 8, 16, 32, 64, 128)
        knobs.insert(1, Knob("SPLITS", max(splits, 2), counts, "programs that share a row"))
        kind = "split"
    else:
        kind = "looped"
    return Choice(kind, groups, reduced, scalar_rows=True, knobs=tuple(knobs), walked=walked)


def bulk_loads(body: Body, buffers: Mapping[str, Buffer], reduced: tuple[Symbol, ...]) -> int:
    """Return how many tensors as large as the largest a row has elements of."""
    along = set(reduced)
    names = {
        load.buffer for load in body.loads() if along & {s for e in load.index for s in e.symbols()}
    }
    sizes = [known(buffers[name].elements) for name in names]
    return sum(size * 2 > max(sizes) for size in sizes)


def overwrites_row_values(body: Body) -> bool:
    """Whether one program of a shared row might overwrite what another still has to read."""
    free, writes = free_axes(body.computed), set(body.writes())
    reduced = frozenset(body.reduce_axes)
    return any(load.buffer in writes and not free[load] & reduced for load in body.loads())


def reads_once(body: Body) -> bool:
    """Whether a loop over the row would do with one pass: then registers save nothing.

    A program that holds a whole row computes nothing while it loads and loads nothing while it
    computes; a loop of several programs an SM overlaps both.
    """
    passes = plan_passes(carry_online(body)).passes
    return sum(each.loops for each in passes) == 1


def choose_persistent(
    groups: tuple[tuple[Symbol, ...], ...],
    reduced: tuple[Symbol, ...],
    rows: int,
    width: int,
    single: bool,
) -> Choice:
    """Rows in registers: 32 elements a thread, programs of 4096.

    Short rows share a program; long ones get more warps.  With 64 elements a thread there are
    fewer programs to compute while others wait for memory: a layer norm of gelu took 36 us
    instead of 28.  Of rows of 1024 two are enough.
    """
    tile = 2048 if width == 1024 else 4096
    together = max(tile // width, 1)
    while together > 1 and rows // together < 2 * SMS:
        together //= 2  # rather more programs than fuller ones
    elements = width * together
    count = min(max(elements // 1024, 1), 32)
    if single:
        count = min(max(elements // 256, 1), 32)  # there is no other program to wait beside it
    knob = warps(power_of_two(count))
    if width >= 16384 or single:
        return Choice(
            "persistent", groups, reduced, True, scalar_rows=True, knobs=(knob,), row_block=width
        )
    blocks = Knob("XBLOCK", together, (1, 2, 4, 8, 16, 32), "rows a program computes")
    return Choice("persistent", groups, reduced, knobs=(blocks, knob), row_block=width)


def choose_crossed(body: Body) -> Choice:
    """Rows in registers beside a sum for each column: 16 elements a thread, of each of them.

    How many programs there are is settled: each leaves sums that another kernel adds up.
    """
    (row,), reduced = body.axes, tuple(body.reduce_axes)
    width = power_of_two(known(product(a.size for a in reduced if a.size is not None)))
    count = body.rows_of_piece
    together = max(4096 // width, 1)
    while count % together:
        together //= 2
    blocks = tuple(n for n in (1, 2, 4, 8, 16, 32, 64) if count % n == 0)
    knobs = (
        Knob("XBLOCK", together, blocks, "rows a program takes at a time"),
        warps(min(max(width * together // 512, 1), 32)),
        stages(),
    )
    return Choice("crossed", ((row,),), reduced, knobs=knobs, row_block=width)


def row_bytes(body: Body, buffers: Mapping[str, Buffer], reduced: tuple[Symbol, ...]) -> int:
    """Return the bytes that are loaded for one element of a row."""
    along = set(reduced)
    found = {
        load.buffer for load in body.loads() if along & {s for e in load.index for s in e.symbols()}
    }
    return sum(buffers[name].dtype.itemsize for name in found)


def choose_looped(
    groups: tuple[tuple[Symbol, ...], ...],
    reduced: tuple[Symbol, ...],
    columns: int,
    again: int = 0,
    places: bool = False,
) -> Choice:
    """A long row a program: 16 elements a thread and step, so that many loads are under way.

    Where a second pass reads the ``again`` bytes of a row once more, they should come from the
    L2: the larger the rows, the fewer may be under way at a time, each with more threads.  An
    extreme's ``places`` take as many registers again.
    """
    long = columns >= 4096
    block, count = (2048, 4) if long and places else (4096, 8) if long else (1024, 4)
    while count < 32 and 2048 // (32 * count) * SMS * again > KEPT_IN_L2:
        block, count = 2 * block, 2 * count
    what = "elements a program takes at a time"
    knobs = (
        Knob("RBLOCK", block, (512, 1024, 2048, 4096, 8192, 16384), what),
        warps(count),
        stages(),
    )
    return Choice("looped", groups, reduced, True, scalar_rows=True, knobs=knobs)


def choose_columns(
    groups: tuple[tuple[Symbol, ...], ...],
    reduced: tuple[Symbol, ...],
    rows: int,
    columns: int,
    bulk: int,
    one: bool,
    strategy: str = "",
    *,
    parts: bool = False,
) -> Choice:
    """Reduce down columns: neighboring lanes take neighboring columns.

    A row of 128 columns is a stretch of memory that is long enough to be read at full speed, in
    16-byte accesses; 8 elements a thread and step leave registers for 8 programs an SM, which all
    run side by side.  (256 columns and 16 elements were 10 % slower throughout.)  With ``one``
    running value an element there are registers for 64 elements a thread, all on their way at
    once (47 us instead of 51).  Short columns, of which there are many, are each one thread's
    own: no lane has to wait for another.  Where there are only ``parts`` to add up, one kernel of
    narrow tiles is over before two would have started.

    ``rows`` counts the results, ``columns`` what each one reduces.
    """
    if columns <= SHORT_COLUMN and rows >= 1024 * SMS:
        short = (
            Knob("XBLOCK", 1024, (256, 512, 1024, 2048), "columns a program computes"),
            Knob("RBLOCK", 2, (1, 2, 4), "rows it takes at a time"),
            warps(4),
            stages(),
        )
        return Choice("looped", groups, reduced, inner_last=False, knobs=short)
    if parts and not strategy:
        few = (
            Knob("XBLOCK", 32, (8, 16, 32, 64, 128), "columns a program computes"),
            Knob("RBLOCK", min(power_of_two(columns), 256), (32, 64, 128, 256), "rows at a time"),
            warps(8),
            stages(),
        )
        return Choice("looped", groups, reduced, inner_last=False, knobs=few)
    block = 128
    while block > 8 and block >= 2 * rows:
        block //= 2
    programs = max(-(-rows // block), 1)
    # 8 elements a thread and step; of few columns 16: more lanes share a sum, which is more exact
    wide = block == 128
    each = 4096 if wide and one else 1024 if wide else 2048
    step = min(power_of_two(columns), each // block)
    knobs = [
        Knob("XBLOCK", block, (16, 32, 64, 128, 256), "columns a program computes"),
        Knob("RBLOCK", step, (4, 8, 16, 32, 64, 128), "rows it takes at a time"),
        warps(2 if wide and one else 4),
        stages(),
    ]
    # programs that run side by side
    resident = (16 if wide and one else 8 if bulk <= 2 else 5) * SMS
    splits = min(resident // programs, columns // (4 * step)) if programs < 4 * SMS else 1
    if strategy == "split" or (splits > 1 and not strategy):
        splits = min(max(splits, 2), 1024)
        counts = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
        sharing = Knob("SPLITS", splits, counts, "programs that share a column")
        knobs.insert(2, sharing)
        return Choice("split", groups, reduced, inner_last=False, knobs=tuple(knobs))
    return Choice("looped", groups, reduced, inner_last=False, knobs=tuple(knobs))


def adds_parts(body: Body, rows: int, columns: int) -> bool:
    """Whether a body adds up what the pieces of ``crossed`` left, or what looks the same."""
    terms = [n.args[0] for n in body.nodes() if isinstance(n, Reduce) and n.kind == "sum"]
    plain = all(isinstance(term, Load) and term.mask is None for term in terms)
    if not (terms and plain) or sum(isinstance(n, Reduce | Scan) for n in body.nodes()) > len(
        terms
    ):
        return False
    free, reduced = free_axes(body.computed), set(body.reduce_axes)
    single = all(not reduced & free[store.value] for store in body.stores)
    return single and columns <= FEW_PARTS and rows * columns <= SMALL_PARTS


def splits_for(rows: int, columns: int) -> int:
    """Return how many programs share a row: 1 where there are rows enough to fill the GPU.

    Six programs an SM with 8 warps each run side by side with up to 40 registers a thread: a
    second, partly filled wave of programs would take as long as the first.
    """
    if rows >= SMS * 6 // 7 or columns < 16384:
        return 1
    return max(min(6 * SMS // max(rows, 1), columns // 4096), 1)


def choose_split(
    groups: tuple[tuple[Symbol, ...], ...], reduced: tuple[Symbol, ...], splits: int
) -> Choice:
    """Few long rows: programs enough to fill the GPU share them, 16 elements a thread and step."""
    counts = (8, 16, 32, 64, 128, 256, 512, 1024)
    knobs = (
        Knob("RBLOCK", 4096, (512, 1024, 2048, 4096, 8192), "elements a program takes at a time"),
        Knob("SPLITS", splits, counts, "programs that share a row"),
        warps(8),
        stages(),
    )
    return Choice("split", groups, reduced, True, scalar_rows=True, knobs=knobs)


def reduces_contiguous(
    body: Body,
    buffers: Mapping[str, Buffer],
    outer: tuple[Symbol, ...],
    reduced: tuple[Symbol, ...],
) -> bool:
    """Whether memory runs along the reduced axes: the loads of most bytes decide."""
    along: dict[bool, int] = {True: 0, False: 0}
    for node in body.nodes():
        if not isinstance(node, Load):
            continue
        buffer = buffers[node.buffer]
        offset = buffer.offset(node.index)
        weight = known(buffer.elements) * buffer.dtype.itemsize
        for axes, key in ((reduced, True), (outer, False)):
            steps = [offset.coefficient(a).constant for a in axes if a in offset.symbols()]
            if any(step is not None and abs(step) == 1 for step in steps):
                along[key] += weight
    return along[False] <= along[True]
