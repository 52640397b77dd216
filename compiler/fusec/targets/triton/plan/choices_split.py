"""How long sums are shared by programs, and whether a second kernel adds the parts."""

from __future__ import annotations

from fusec.ir.body import Body
from fusec.ir.index import Symbol
from fusec.ir.node import Load, Reduce, Scan
from fusec.ir.walk import free_axes
from fusec.targets.triton.plan.choice import (
    Choice,
    Knob,
    power_of_two,
    sms,
    stages,
    unroll,
    warps,
)

FEW_PARTS = 512  # elements that a program of a few columns takes in one or two steps
UNDER_WAY = 128  # bytes that one thread should be waiting for
MUCH = 1 << 26  # elements of which programs take turns to add them up
MANY_PARTS = 16384  # parts of a row that one program joins in a step
SMALL_PARTS = 1 << 22  # elements in all that lie in the L2, being a kernel's latest results


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

    Six programs an SM with 8 warps each run side by side with up to 40 registers a thread.  Equal
    shares of several rows are worth some programs more (the norm of 16 rows 25.6 us with 64
    programs a row, 26.6 with 49; softmax of 64 rows 61.7 with 16, 63.3 with 12).
    """
    if rows >= sms() * 6 // 7 or columns < 16384:
        return 1
    splits = max(min(6 * sms() // max(rows, 1), columns // 4096), 1)
    return power_of_two(splits) if rows > 1 else splits


def choose_split(
    groups: tuple[tuple[Symbol, ...], ...],
    reduced: tuple[Symbol, ...],
    splits: int,
    each: int,
    whole: int,
) -> Choice:
    """Few long rows: programs enough to fill the GPU share them, 32 bytes a thread and step.

    Two steps of them are better than one of 64 bytes (the norm of long rows 25 us instead of 28).

    Programs that all run at once are over when the slowest is.  Where the ``whole`` of very much
    is one row, of which nothing but the result is wanted, programs of two large steps are many
    times as many as run at once: the next begins where one has ended (2^28 halves on an H100 188 us
    instead of 228; a copy of as many bytes 184).
    """
    counts: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)
    block, count = 2048 if each >= 4 else 4096, 8
    unrolled = steps_unrolled(block // 256 * each, 4)
    if whole >= MUCH:
        block, count, unrolled = 2 * block, 16, 2
        splits = min(max(whole // (2 * block), splits), MANY_PARTS)
        counts = (512, 1024, 2048, 4096, 8192, 16384)
    knobs = (
        Knob("RBLOCK", block, (512, 1024, 2048, 4096, 8192), "elements a program takes at a time"),
        Knob("SPLITS", splits, counts, "programs that share a row"),
        warps(count),
        stages(),
        unroll(unrolled),
    )
    return Choice("split", groups, reduced, True, scalar_rows=True, knobs=knobs)


def steps_unrolled(step: int, count: int) -> int:
    """Return how many of ``count`` steps, each ``step`` bytes a thread, are written as one.

    The loads of a step do not wait for the sums of the one before, but a compiler moves them up
    only where both are the same straight stretch (argmax 74 us instead of 79, cross-entropy 133
    instead of 140, a sum of squares 43 instead of 45).
    """
    if step == 0:
        return 1
    return next((n for n in (4, 2) if n * step <= UNDER_WAY and n <= count), 1)


__all__ = [
    "FEW_PARTS",
    "MANY_PARTS",
    "MUCH",
    "SMALL_PARTS",
    "UNDER_WAY",
    "adds_parts",
    "choose_split",
    "splits_for",
    "steps_unrolled",
]
