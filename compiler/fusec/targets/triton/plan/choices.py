"""Every heuristic of the Triton back end, each a function with its reason.

The figures are for an H200 (132 SMs, 64 K registers and 2048 threads an SM, 16-byte accesses,
4.2 TB/s); they carry over to its neighbors.  Here is what has no reductions;
``choices_reductions`` and ``choices_matmul`` have the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fusec.ir.body import Body, Buffer
from fusec.ir.index import Symbol
from fusec.ir.node import IndexValue, Load, Node, indirect_nodes
from fusec.ir.shapes import product
from fusec.ir.walk import free_axes, walk
from fusec.targets.triton.plan.choice import Choice, Knob, known, power_of_two, sms, unroll, warps
from fusec.targets.triton.plan.choices_reductions import choose_crossed, choose_reduction
from fusec.targets.triton.plan.pairs import Pair, pairs_along, store_pairs_along
from fusec.targets.triton.plan.reduction_facts import overwrites_row_values
from fusec.targets.triton.plan.tiling import by_stride, move, strides_of

TILE_SIDE = 32
LEAST_BYTES = 4 << 10  # that a program moves; the next one takes as long to begin
SHORT_ROW = 48  # elements; a loop over shorter rows has too little to do for a warp at a time


def choose(body: Body, buffers: Mapping[str, Buffer], strategy: str = "") -> Choice:
    """Decide how ``body`` becomes kernels.

    Args:
        body: What to compute.
        buffers: By name.
        strategy: ``persistent``, ``looped`` or ``split``, without reductions ``rows`` or ``tiled``,
            where the caller knows better than the rules (a measurement, a test); it is taken
            where it is possible.
    """
    if body.sums:
        return choose_crossed(body, buffers)
    if body.reduce_axes:
        choice = choose_reduction(body, buffers, strategy)
        # A scan's next element needs the one before, so programs do not share a row.
        if choice.kind == "split" and (body.scans() or overwrites_row_values(body)):
            return choose_reduction(body, buffers, "looped")
        return choice
    return choose_pointwise(body, buffers, strategy)


# -- without reductions -------------------------------------------------------------------


def choose_pointwise(body: Body, buffers: Mapping[str, Buffer], strategy: str = "") -> Choice:
    """Flat, unless memory disagrees about which axis is the fastest: then square tiles."""
    points = product(a.size for a in body.axes if a.size is not None)
    if points.constant == 1:
        return Choice("scalar", (body.axes,), knobs=(warps(1),))
    axes = by_stride(body, buffers, body.axes)
    pair = disagreeing_axes(body, buffers, axes)
    if pair is not None:
        x, y = pair
        rest = [a for a in axes if a not in pair]
        down, across, count = transposed_tile(body, buffers, known(points))
        knobs = (
            Knob("YBLOCK", down, (16, 32, 64, 128), "rows of a tile"),
            Knob("XBLOCK", across, (16, 32, 64, 128), "columns of a tile"),
            warps(count),
        )
        return Choice("tiled", ((*rest, y), (x,)), knobs=knobs)
    groups = (tuple(axes[:-1]), (axes[-1],))
    wide = [axis for axis in axes if axis.size != 1]
    in_turns = store_pairs_along(body, buffers, wide[-1])
    if in_turns:
        return Choice("tiled", groups, knobs=phase_knobs(axes, len(in_turns)))
    pairs = pairs_of(body, buffers)
    if pairs and strategy != "rows":
        # pairs lie along an axis that is a dimension of its own
        flat = paired_knobs(body, buffers, known(points), pairs)
        tiles = row_tiles(body, buffers, axes, flat)
        if tiles:
            return Choice("tiled", groups, knobs=tiles)
        if len(wide) == 1:
            return Choice("flat", (tuple(axes),), knobs=flat)
    windows = window_tiles(body, buffers, axes, known(points))
    if windows and not strategy:
        return Choice("tiled", groups, knobs=windows)
    irregular = steps_irregularly(body, buffers)
    flat = flat_knobs(body, buffers, known(points), irregular)
    tiles = row_tiles(body, buffers, axes, flat)
    if tiles and (strategy == "rows" or (irregular and not strategy)):
        rows = row_loop(body, axes, 0 if strategy else 16 * sms())
        if rows:
            return Choice("rows", groups, knobs=rows)
    if tiles:
        return Choice("tiled", groups, knobs=tiles)
    return Choice("flat", (tuple(axes),), knobs=flat)


def row_loop(body: Body, axes: list[Symbol], programs: int) -> tuple[Knob, ...]:
    """Return the tunables of a loop over rows; none where rows are short or ``programs`` too few.

    Elements that are gathered one by one cost as many instructions as their addresses take.  With
    the row as a number a program computes the places in a row once for all of its rows:
    interpolation takes 120 us instead of 155, max pooling 57 instead of 62.  Computed places take
    many registers: programs of one warp (85 us; with two warps and twice the rows 93).
    """
    size = known(axes[-1].size) if axes[-1].size is not None else 1
    rows = known(product(a.size for a in axes[:-1] if a.size is not None))
    if size < SHORT_ROW:
        return ()
    computed = any(indirect_nodes(load.index) for load in body.loads())
    block, each, unrolled = (
        min(power_of_two(size), 256),
        8,
        2 if computed else 4,
    )
    while each > 1 and rows // each * -(-size // block) < programs:
        each, unrolled = each // 2, max(unrolled // 2, 1)
    if each == 1:
        return ()
    return (
        Knob("YBLOCK", each, (2, 4, 8, 16, 32), "rows that a program goes through"),
        Knob("XBLOCK", block, (64, 128, 256, 512), "columns of a row that it computes"),
        warps(max(block // (256 if computed else 128), 1)),
        unroll(unrolled),
    )


def transposed_tile(body: Body, buffers: Mapping[str, Buffer], points: int) -> tuple[int, int, int]:
    """Return rows, columns and warps of a tile whose memory lies along both of its sides.

    Two cache lines on each side; the turn happens in shared memory.  A transpose of halves takes
    70.9 us, 73.5 with one line on one side; of float32, with an addition, 74.1 on an H100 and 75.6
    with one line on one side.  One line where there are too few tiles for the SMs.
    """
    halves = all(buffers[name].dtype.itemsize <= 2 for name in body.reads() + body.writes())
    if halves:
        return 4 * TILE_SIDE, 4 * TILE_SIDE, 8
    if points // (4 * TILE_SIDE * TILE_SIDE) < 4 * sms():
        return TILE_SIDE, 2 * TILE_SIDE, 4
    return 2 * TILE_SIDE, 2 * TILE_SIDE, 8


def window_tiles(
    body: Body, buffers: Mapping[str, Buffer], axes: list[Symbol], points: int
) -> tuple[Knob, ...]:
    """Return the tunables of tiles of channels by pixels, each of which reads its neighbors.

    Where each channel has weights of its own (a convolution of each by itself), a tile as narrow
    as a cache line or two and 32 pixels high finds most neighbors in the L1 cache, and the weights
    serve many pixels: 120 channels of 28 x 28 under 5 x 5 take 32 us, in tiles of 128 by 8 57; 96
    of 112 x 112 under 3 x 3 67 instead of 99.  None for other bodies, and where no such tile fits
    the number of channels.
    """
    channel = axes[-1]
    size = known(channel.size) if channel.size is not None else 1
    own = [load for load in body.loads() if set(free_axes((load,))[load]) == {channel}]
    others = Counter(load.buffer for load in body.loads() if load not in own)
    most = max(others.values(), default=0)
    across = next((n for n in (64, 32) if size % n == 0), 16 if size == 16 else 0)
    if not across and -(-size // 64) * 64 * 14 <= size * 15:
        across = 64  # next to nothing of the last tile is idle
    if len(axes) < 2 or most < 4 or len(own) < most or not across:
        return ()
    down = 2048 // across
    while down > 4 and points // (across * down) < 4 * sms():
        down //= 2
    return (
        Knob("YBLOCK", down, (4, 8, 16, 32, 64, 128), "pixels of a tile"),
        Knob("XBLOCK", across, (16, 32, 64, 128), "channels of a tile"),
        warps(max(down * across // 512, 1)),
    )


def row_tiles(
    body: Body, buffers: Mapping[str, Buffer], axes: list[Symbol], knobs: tuple[Knob, ...]
) -> tuple[Knob, ...]:
    """Return the tunables of tiles whose rows lie along the innermost axis; none where none pay.

    Axes that could not be joined mean that something depends on one of them alone: the scale of
    a row, the place that an index says, the position in an image.  In a tile of rows and columns
    that is computed once a row or column instead of once an element.  Where memory says first
    whether a row is read at all, two rows at a time wait for it, in twice the block (the gradient
    of an embedding in half precision 61 us instead of 71).
    """
    wide = [a for a in axes if a.size != 1]
    size = known(wide[-1].size) if wide and wide[-1].size is not None else 0
    if len(wide) < 2 or size < 16:
        return ()
    if any(a.size is not None and a.size.constant is None for a in wide) and is_straight(
        body, buffers, axes
    ):
        return ()  # axes of symbolic sizes are not joined before
    (block, count) = (knob.value for knob in knobs)
    across = min(power_of_two(size), block)
    if -(-size // across) * across * 3 > size * 4:
        return ()  # more than a quarter of the threads would have nothing to do
    masks = [load.mask for load in whole_loads(body, wide)]
    if masks and all(mask is not None and reads_memory(mask) for mask in masks):
        block *= 2
    return (
        Knob("YBLOCK", block // across, (1, 2, 4, 8, 16, 32, 64), "rows of a tile"),
        Knob("XBLOCK", across, (16, 32, 64, 128, 256, 512, 1024), "columns of a tile"),
        warps(count),
    )


def whole_loads(body: Body, axes: list[Symbol]) -> list[Load]:
    """Return the loads that are elsewhere for each point of all ``axes``."""
    free = free_axes(body.computed)
    return [load for load in body.loads() if free[load] >= set(axes)]


def reads_memory(node: Node) -> bool:
    """Whether a value is computed from what is in memory."""
    return any(isinstance(each, Load) for each in walk((node,)))


def is_straight(body: Body, buffers: Mapping[str, Buffer], axes: list[Symbol]) -> bool:
    """Whether one index says where everything is, without the axes that it is made of."""
    flat = move(body, (axes,), ())
    (axis,) = flat.axes
    places = [buffers[load.buffer].offset(load.index) for load in flat.loads()]
    places += [buffers[store.buffer].offset(store.index) for store in flat.stores]
    places += [node.expr for node in flat.nodes() if isinstance(node, IndexValue)]
    return all(place.is_affine_in(axis) for place in places)


def flat_knobs(
    body: Body, buffers: Mapping[str, Buffer], points: int, irregular: bool
) -> tuple[Knob, ...]:
    """16 bytes a thread and access, twice; smaller blocks where few points leave SMs idle.

    Buffers that hold next to nothing (an index a row, a scale) do not count.  Where most loads
    are ``irregular``, as those of a pooling window are, each element has an access of its own
    anyway: a thread takes a few neighbors only, so that the accesses of neighboring threads
    share cache lines, and small programs finish sooner (max pool 62 us instead of 92).  What
    moves little, a sum of two vectors for each pair of theirs, must not be made of more programs
    than can be started in the time (34 us instead of 45).
    """
    names = dict.fromkeys(body.reads() + body.writes())
    sizes = {name: known(buffers[name].elements) for name in names}
    bulk = [name for name in names if sizes[name] * 8 > max(sizes.values())]
    itemsize = max((buffers[name].dtype.itemsize for name in bulk), default=4)
    block = 1024 if itemsize <= 4 else 512
    if irregular and not any(indirect_nodes(load.index) for load in body.loads()):
        block = 256  # computed places cost more than their accesses: rows of a tile share them
    while block > 128 and points // block < 2 * sms():
        block //= 2
    # two 16-byte accesses of half precision are 16 elements, of single precision 8
    few = irregular or (itemsize <= 2 and block == 1024)
    count = 4 if block >= 256 and not few else 2
    moved = sum(buffers[name].dtype.itemsize for name in bulk)
    while not irregular and block >= 1024 and block * moved < LEAST_BYTES:
        block, count = 2 * block, 2 * count
    return (
        Knob("XBLOCK", block, (128, 256, 512, 1024, 2048, 4096), "elements a program computes"),
        warps(count),
    )


def phase_knobs(axes: list[Symbol], pairs: int) -> tuple[Knob, ...]:
    """A thousand results a program, in threads that have two or four of each of its rows.

    Fewer are over before the next program has been started (512 results 83 us), more need many
    registers: interpolation of halves 54 us with eight rows of 64 pairs, 69 with eight of 128, or
    with four of them.

    Args:
        axes: Slowest first; results lie in turns along the last one.
        pairs: How many pairs of results there are at each of its places (``phases.py``).
    """
    size = axes[-1].size
    block = min(max(512 // power_of_two(pairs), 64), 256)
    across = min(power_of_two(known(size) if size is not None else 1), block)
    return (
        Knob("YBLOCK", block // across, (1, 2, 4, 8, 16), "rows of a tile"),
        Knob("XBLOCK", across, (16, 32, 64, 128, 256, 512), "columns of a tile"),
        warps(max(block // 128, 1)),
    )


def paired_knobs(
    body: Body, buffers: Mapping[str, Buffer], points: int, pairs: tuple[Pair, ...]
) -> tuple[Knob, ...]:
    """As where memory is straight; a few elements a thread where windows overlap.

    Of these, three loads a row, a thread that has four results fetches 16 bytes at once, and what
    it needs besides in the lines that its neighbors fetch (max pooling of halves 45 us; with eight
    results a thread 64).
    """
    if all(pair.first is not None for pair in pairs):
        return flat_knobs(body, buffers, points, irregular=False)
    block = 512
    while block > 128 and points // block < 2 * sms():
        block //= 2
    return (
        Knob("XBLOCK", block, (128, 256, 512, 1024, 2048, 4096), "elements a program computes"),
        warps(block // 128),
    )


def pairs_of(body: Body, buffers: Mapping[str, Buffer]) -> tuple[Pair, ...]:
    """Return the pairs of loads along the innermost axis."""
    axis = next((a for a in reversed(body.axes) if a.size != 1), None)
    return pairs_along(body, buffers, axis, free_axes(body.computed)) if axis else ()


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
