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
from fusec.ir.node import Load, Reduce, free_axes

SMS = 132
UNKNOWN_SIZE = 8192  # what a symbolic size is taken for
PERSISTENT_LIMIT = 16384  # elements of a row in registers, with two programs an SM
ONCE_LIMIT = 8192  # the same for rows that a loop, too, would read only once
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
        kind: ``scalar``, ``flat``, ``tiled``, ``persistent``, ``looped`` or ``split``.
        groups: The independent axes of each outer dimension, slowest first.
        reduced: The reduced axes, slowest first.
        inner_last: Whether the reduced dimension is the contiguous one, the tile's last.
        scalar_rows: Whether a program takes one row, so that the row is a scalar.
        knobs: The tunables.
        row_block: The fixed width of a persistent row; 0 otherwise.
    """

    kind: str
    groups: tuple[tuple[Symbol, ...], ...]
    reduced: tuple[Symbol, ...] = ()
    inner_last: bool = True
    scalar_rows: bool = False
    knobs: tuple[Knob, ...] = ()
    row_block: int = 0


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
        # 32 x 32 halves come as 64-byte pieces on both sides; the turn happens in shared memory
        knobs = (
            Knob("YBLOCK", TILE_SIDE, (16, 32, 64, 128), "rows of a tile"),
            Knob("XBLOCK", 2 * TILE_SIDE, (16, 32, 64, 128), "columns of a tile"),
            warps(4),
        )
        return Choice("tiled", ((*rest, y), (x,)), knobs=knobs)
    return Choice("flat", (tuple(axes),), knobs=flat_knobs(body, buffers, known(points)))


def flat_knobs(body: Body, buffers: Mapping[str, Buffer], points: int) -> tuple[Knob, ...]:
    """16 bytes a thread and access, twice; smaller blocks where few points leave SMs idle."""
    names = dict.fromkeys(body.reads() + body.writes())
    itemsize = max((buffers[name].dtype.itemsize for name in names), default=4)
    block = 1024 if itemsize <= 4 else 512
    while block > 128 and points // block < 2 * SMS:
        block //= 2
    return (
        Knob("XBLOCK", block, (128, 256, 512, 1024, 2048, 4096), "elements a program computes"),
        warps(4 if block >= 512 else 2),
    )


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
        return choose_columns((outer,), reduced, rows, columns, strategy)
    width = power_of_two(columns)
    limit = ONCE_LIMIT if reads_once(body) else PERSISTENT_LIMIT
    fits = size.constant is not None and width <= (1 << 20 if strategy else limit)
    splits = splits_for(rows, columns)
    kind = strategy or ("split" if splits > 1 else "persistent" if fits else "looped")
    if kind == "persistent" and fits:
        return choose_persistent((outer,), reduced, rows, width, single)
    if kind == "split":
        return choose_split((outer,), reduced, max(splits, 2))
    return choose_looped((outer,), reduced, columns)


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
    """Rows in registers: 64 elements a thread and 4 warps, measured best at 4096 elements.

    Short rows share a program; long ones get more warps, so that no thread holds more than 64.
    """
    tile = 8192 if width >= 1024 else 4096
    together = max(tile // width, 1)
    while together > 1 and rows // together < 2 * SMS:
        together //= 2  # rather more programs than fuller ones
    elements = width * together
    count = min(max(elements // 2048, 1), 32)
    if width > 8192:
        count = min(width // 1024, 32)
    knob = warps(power_of_two(count))
    if width >= 16384 or single:
        return Choice(
            "persistent", groups, reduced, True, scalar_rows=True, knobs=(knob,), row_block=width
        )
    blocks = Knob("XBLOCK", together, (1, 2, 4, 8, 16, 32), "rows a program computes")
    return Choice("persistent", groups, reduced, knobs=(blocks, knob), row_block=width)


def choose_looped(
    groups: tuple[tuple[Symbol, ...], ...], reduced: tuple[Symbol, ...], columns: int
) -> Choice:
    """A long row a program: 16 elements a thread and step, so that many loads are under way."""
    long = columns >= 4096
    block = 4096 if long else 1024
    what = "elements a program takes at a time"
    knobs = (
        Knob("RBLOCK", block, (512, 1024, 2048, 4096, 8192), what),
        warps(8 if long else 4),
        stages(),
    )
    return Choice("looped", groups, reduced, True, scalar_rows=True, knobs=knobs)


def choose_columns(
    groups: tuple[tuple[Symbol, ...], ...],
    reduced: tuple[Symbol, ...],
    rows: int,
    columns: int,
    strategy: str = "",
) -> Choice:
    """Reduce down columns: neighboring lanes take neighboring columns, 128 bytes wide.

    ``rows`` counts the results, ``columns`` what each one reduces.
    """
    block = 64
    while block > 8 and block >= 2 * rows:
        block //= 2
    programs = max(rows // block, 1)
    step = min(power_of_two(columns), 2048 // block)  # 16 elements a thread and step
    knobs = [
        Knob("XBLOCK", block, (16, 32, 64, 128, 256), "columns a program computes"),
        Knob("RBLOCK", step, (4, 8, 16, 32, 64, 128), "rows it takes at a time"),
        warps(4),
        stages(),
    ]
    splits = min(4 * SMS // programs, columns // (4 * step)) if programs < 2 * SMS else 1
    if strategy == "split" or (splits > 1 and not strategy):
        splits = min(power_of_two(max(splits, 2)), 8192 // block)
        sharing = Knob("SPLITS", splits, (4, 8, 16, 32, 64, 128), "programs that share a column")
        knobs.insert(2, sharing)
        return Choice("split", groups, reduced, inner_last=False, knobs=tuple(knobs))
    return Choice("looped", groups, reduced, inner_last=False, knobs=tuple(knobs))


def splits_for(rows: int, columns: int) -> int:
    """Return how many programs share a row: 1 where there are rows enough to fill the GPU."""
    if rows >= SMS or columns < 16384:
        return 1
    wanted = 8 * SMS // max(rows, 1)
    return min(power_of_two(wanted), power_of_two(columns // 4096), 1024)


def choose_split(
    groups: tuple[tuple[Symbol, ...], ...], reduced: tuple[Symbol, ...], splits: int
) -> Choice:
    """Few long rows: programs enough to fill the GPU share them, 32 bytes a thread and step."""
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
