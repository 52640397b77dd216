"""How reductions become kernels: rows in registers, walked in steps, or shared by programs.

For comparison, TorchInductor keeps rows of up to 1024 elements in registers and loops over longer
ones; a row of 32 K still fits, and reading it once instead of two or three times is what the
reductions' speed is about.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusec.graph.simplify.short_rows import LONGEST_ROW
from fusec.ir.body import Body, Buffer
from fusec.ir.index import Symbol, upper_bound
from fusec.ir.node import Op, Reduce
from fusec.ir.scalars import cost_of
from fusec.ir.shapes import product
from fusec.targets.triton.plan.choice import (
    Choice,
    Knob,
    kept_in_l2,
    known,
    power_of_two,
    sms,
    stages,
    unroll,
    warps,
)
from fusec.targets.triton.plan.choices_split import (
    adds_parts,
    choose_split,
    splits_for,
    steps_unrolled,
)
from fusec.targets.triton.plan.reduction_facts import (
    bulk_loads,
    elements_each,
    loaded_bytes,
    reads_once,
    reduces_contiguous,
    row_bytes,
    stores_rows,
    walked_axes,
)
from fusec.targets.triton.plan.tiling import by_stride

PERSISTENT_LIMIT = LONGEST_ROW
ONCE_LIMIT = 8192  # the same for rows that a loop, too, would read only once
SHORT_COLUMN = 64  # elements that one thread goes through by itself
PIPELINED = 200 << 10  # bytes of an SM's shared memory for rows that are on their way
SMALL_COLUMNS = 1 << 16  # elements in all, of which 128 columns a program make too few programs


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
        each = elements_each(body, reduced) if one else 32
        return choose_columns(
            *((outer,), reduced, rows, columns, bulk, one, strategy),
            parts=parts,
            each=each,
            loads=loaded_bytes(body, reduced),
        )
    width = power_of_two(columns)
    limit = ONCE_LIMIT if reads_once(body) else PERSISTENT_LIMIT
    most = upper_bound(size)
    fits = most is not None and power_of_two(most) <= (1 << 20 if strategy else limit)
    walked, reduced = walked_axes(body, reduced)
    splits = splits_for(rows, columns)
    kind = strategy or ("split" if splits > 1 else "persistent" if fits else "looped")
    if kind == "persistent" and fits:
        kinds = {n.kind for n in body.nodes() if isinstance(n, Reduce)}
        heavy = any(cost_of(n.name) >= 10 for n in body.nodes() if isinstance(n, Op))
        held = (outer,), walked + reduced
        rows_held = choose_persistent(*held, rows, width, single, kinds, heavy)
        return rows_held if size.constant is not None else sized(rows_held, width)
    if walked:
        bytes_each = loaded_bytes(body, reduced)
        return choose_walked((outer,), walked, reduced, rows, strategy, bytes_each)
    bytes_each = row_bytes(body, buffers, reduced)
    if kind == "split":
        alone = rows == 1 and reads_once(body) and not stores_rows(body)
        return choose_split((outer,), reduced, max(splits, 2), bytes_each, columns if alone else 0)
    again = columns * bytes_each if not reads_once(body) else 0
    places = any(isinstance(n, Reduce) and n.kind.startswith("arg") for n in body.nodes())
    each = 0 if body.scans() else bytes_each
    return choose_looped((outer,), reduced, columns, each, again, places)


def choose_walked(
    groups: tuple[tuple[Symbol, ...], ...],
    walked: tuple[Symbol, ...],
    reduced: tuple[Symbol, ...],
    rows: int,
    strategy: str,
    bytes_each: int,
) -> Choice:
    """A row of several parts: a step is one of them or an equal share of one, 8 elements a thread.

    Programs enough to fill half the GPU with threads share the rows, three steps ahead (batch norm
    27 us; with twice the programs and no steps ahead 32), where shared memory has room for two
    steps of two parts each.
    """
    parts = product(a.size for a in walked if a.size is not None)
    size = known(reduced[0].size) if reduced[0].size is not None else 1
    block = power_of_two(size)
    if block > 8192 or size % 1024 == 0:
        block = next(b for b in (8192, 4096, 2048, 1024) if size % b == 0)
    steps = known(parts) * -(-size // block)
    count = max(block // 256, 1)
    splits = min(32 * sms() // (rows * count), steps // 4)
    whole = [b for b in (256, 512, 1024, 2048, 4096, 8192) if size % b == 0 or b >= size]
    knobs = [
        Knob("RBLOCK", block, tuple(whole), "elements a program takes at a time"),
        warps(count),
        unroll(2),
    ]
    if strategy == "split" or (splits > 1 and not strategy):
        counts = (2, 4, 8, 16, 32, 64, 128)
        knobs.insert(1, Knob("SPLITS", max(splits, 2), counts, "programs that share a row"))
        knobs.insert(3, stages(3 if 4 * block * bytes_each <= PIPELINED else 1))
        kind = "split"
    else:
        knobs.insert(2, stages())
        kind = "looped"
    return Choice(kind, groups, reduced, scalar_rows=True, knobs=tuple(knobs), walked=walked)


def choose_persistent(
    groups: tuple[tuple[Symbol, ...], ...],
    reduced: tuple[Symbol, ...],
    rows: int,
    width: int,
    single: bool,
    kinds: set[str],
    heavy: bool = False,
) -> Choice:
    """Rows in registers: 32 elements a thread, programs of 4096.

    Short rows share a program; long ones get more warps.  With 64 elements a thread there are
    fewer programs to compute while others wait for memory: a layer norm of gelu took 36 us
    instead of 28.  Of rows of 1024 two are enough.  Where long rows are only added up, 16 elements
    a thread are better (layer norms of 2048 38.2 us instead of 39.8, of 4096 39.3 instead of 40.3;
    the gradient of silu and a group norm 44 instead of 49); for softmax they are not.  Where only
    an extreme is taken, which is quick to join, 64 are (rows of 8192 made int8 53.5 us instead of
    58.2, float8 54.6 instead of 55.2), but not where elements take functions: ``heavy`` (silu of
    rows of 14336, gated, made int8 on an H100 204 us with 32, 225 with 64; the copy 199).
    """
    sparse = kinds == {"sum"} and width >= 2048
    dense = kinds <= {"max", "min"} and width >= 8192 and not heavy
    tile = 2048 if width == 1024 or (sparse and width == 2048) else 4096
    rows_each = max(tile // width, 1)
    while rows_each > 1 and rows // rows_each < 2 * sms():
        rows_each //= 2  # rather more programs than fuller ones
    elements = width * rows_each
    count = min(max(elements // (512 if sparse else 2048 if dense else 1024), 1), 32)
    if single:
        count = min(max(elements // 256, 1), 32)  # there is no other program to wait beside it
    knob = warps(power_of_two(count))
    if width >= 16384 or single:
        return Choice(
            "persistent", groups, reduced, True, scalar_rows=True, knobs=(knob,), row_block=width
        )
    blocks = Knob("XBLOCK", rows_each, (1, 2, 4, 8, 16, 32), "rows a program computes")
    return Choice("persistent", groups, reduced, knobs=(blocks, knob), row_block=width)


def sized(held: Choice, width: int) -> Choice:
    """Return rows in registers whose length each call says, for up to ``LONGEST_ROW`` elements.

    At the width that is compiled for, ``launch`` makes the same programs as where it is known;
    of other rows more a program, or longer ones of more warps.

    Args:
        held: What rows of that width would be.
        width: A power of two.
    """
    knobs = {knob.name: knob.value for knob in held.knobs}
    tile = width * knobs.get("XBLOCK", 1)
    sizes = tuple(n for n in (tile // 4, tile // 2, tile, 2 * tile) if n)
    what = "warps for so many elements, 32 threads each"
    return Choice(
        "persistent",
        held.groups,
        held.reduced,
        knobs=(
            Knob("TILE", tile, sizes, "elements a program computes, or one row"),
            Knob("NUM_WARPS", knobs["NUM_WARPS"], (1, 2, 4, 8, 16, 32), what),
        ),
        sized=True,
    )


def choose_crossed(body: Body, buffers: Mapping[str, Buffer]) -> Choice:
    """Rows in registers beside a sum for each column: 32 elements a thread, of each of them.

    How many programs there are is settled: each leaves sums that another kernel adds up.  They
    would mostly wait: the next two steps' rows are on their way to shared memory meanwhile.

    Short rows lie in a warp each, or two of them, where no warp waits for another.  Backward of
    layer norms, in microseconds, 16 elements a thread and, where two steps took more than 96 KiB,
    nothing ahead, and as they are: 4096 x 768 35 and 21, 12544 x 384 37 and 18, 50176 x 192 68 and
    41, 8192 x 2048 108 and 77, 4096 x 5120 129 and 98.
    """
    (row,), reduced = body.axes, tuple(body.reduce_axes)
    width = power_of_two(known(product(a.size for a in reduced if a.size is not None)))
    count = body.rows_of_piece
    rows_each = max((2048 if width <= 1024 else 4096) // width, 1)
    while count % rows_each:
        rows_each //= 2
    blocks = tuple(n for n in (1, 2, 4, 8, 16, 32, 64) if count % n == 0)
    step = width * rows_each * row_bytes(body, buffers, reduced)
    steps = min(3, count // rows_each) if 2 * step <= PIPELINED else 1
    knobs = (
        Knob("XBLOCK", rows_each, blocks, "rows a program takes at a time"),
        warps(min(max(width * rows_each // 1024, 1), 32)),
        stages(max(steps, 1)),
    )
    return Choice("crossed", ((row,),), reduced, knobs=knobs, row_block=width)


def choose_looped(
    groups: tuple[tuple[Symbol, ...], ...],
    reduced: tuple[Symbol, ...],
    columns: int,
    each: int,
    again: int,
    places: bool,
) -> Choice:
    """A long row a program: 16 elements a thread and step, so that many loads are under way.

    Where a second pass reads the ``again`` bytes of a row once more, they should come from the
    L2: the larger the rows, the fewer may be under way at a time, each with more threads.  An
    extreme's ``places`` take as many registers again.  ``each`` is the bytes of an element where
    steps may be written as one; 0 where each needs the one before.
    """
    long = columns >= 4096
    block, count = (2048, 4) if long and places else (4096, 8) if long else (1024, 4)
    while count < 32 and 2048 // (32 * count) * sms() * again > kept_in_l2():
        block, count = 2 * block, 2 * count
    what = "elements a program takes at a time"
    knobs = (
        Knob("RBLOCK", block, (512, 1024, 2048, 4096, 8192, 16384), what),
        warps(count),
        stages(),
        unroll(steps_unrolled(block // (32 * count) * each, columns // block)),
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
    each: int = 32,
    loads: int = 2,
) -> Choice:
    """Reduce down columns: neighboring lanes take neighboring columns.

    A row of 128 columns is a stretch of memory that is long enough to be read at full speed, in
    16-byte accesses.  With ``one`` running value an element half of that is enough, and 32 programs
    of one warp with 32 elements a thread fill an SM (44 us; 16 programs of two warps with 64
    elements a thread 48).  With more, 8 or 32 elements a thread
    and step leave registers for 4 programs an SM, which all run side by side; three more steps are
    on their way to shared memory (softmax 70 us instead of 84, batch norm 101 instead of 112, and
    97 with the 32 rather than 16).  Of what is small altogether each program takes few columns, so
    that there are programs at all (5.5 us instead of 9).
    Short columns, of which there are many, are each one thread's own, two a thread: no lane has to
    wait for another (log_softmax of 21 channels 98 us; with 8 a thread 113). Where there are only
    ``parts`` to add up, one kernel of narrow tiles is over before two would have started (256 rows
    of 768 columns 1.4 us, of 5120 2.2; twice as wide with 8 warps 1.7 and 2.6).

    ``rows`` counts the results, ``columns`` what each one reduces; ``each``, for ``one`` value, the
    elements a thread takes at a time (``elements_each``); ``loads`` the bytes that an element of a
    step takes in shared memory.
    """
    if columns <= SHORT_COLUMN and rows >= 1024 * sms():
        short = (
            Knob("XBLOCK", 256, (256, 512, 1024, 2048), "columns a program computes"),
            Knob("RBLOCK", 1, (1, 2, 4), "rows it takes at a time"),
            warps(4),
            stages(),
            unroll(),
        )
        return Choice("looped", groups, reduced, inner_last=False, knobs=short)
    if parts and not strategy:
        few = (
            Knob("XBLOCK", 16, (8, 16, 32, 64, 128), "columns a program computes"),
            Knob("RBLOCK", min(power_of_two(columns), 256), (32, 64, 128, 256), "rows at a time"),
            warps(4),
            stages(),
            unroll(),
        )
        return Choice("looped", groups, reduced, inner_last=False, knobs=few)
    block = 128 if rows * columns > SMALL_COLUMNS else 16
    while block > 8 and block >= 2 * rows:
        block //= 2
    wide = block == 128
    alone = wide and one
    block = 64 if alone else block
    programs = max(-(-rows // block), 1)
    # 32 elements a thread and step, 8 where that much of several tensors is under way
    pipelined = wide and not one and columns >= 128
    elements = 1024 if wide and (one or bulk > 2 or not pipelined) else 2048
    if alone and each < 32:
        elements = 512
    step = min(power_of_two(columns), elements // block)
    knobs = [
        Knob("XBLOCK", block, (16, 32, 64, 128, 256), "columns a program computes"),
        Knob("RBLOCK", step, (4, 8, 16, 32, 64, 128), "rows it takes at a time"),
        warps(max(elements // (32 * each), 1) if alone else 2 if pipelined and bulk <= 2 else 4),
        stages(steps_that_fit(4, loads, step * block) if pipelined else 1),
        unroll(),
    ]
    # programs that run side by side
    resident = (32 if alone else 4 if bulk > 2 or pipelined else 8) * sms()
    splits = min(resident // programs, columns // (4 * step)) if programs < 4 * sms() else 1
    if strategy == "split" or (splits > 1 and not strategy):
        splits = min(max(splits, 2), 1024)
        counts = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
        sharing = Knob("SPLITS", splits, counts, "programs that share a column")
        knobs.insert(2, sharing)
        return Choice("split", groups, reduced, inner_last=False, knobs=tuple(knobs))
    return Choice("looped", groups, reduced, inner_last=False, knobs=tuple(knobs))


def steps_that_fit(wanted: int, bytes_each: int, elements: int) -> int:
    """Return how many steps are loaded ahead, ``wanted`` or what shared memory has room for."""
    room = PIPELINED // 2 // max(bytes_each * elements, 1)  # of two programs at least
    return next((n for n in range(wanted, 1, -1) if n - 1 <= room), 1)
