"""What bounds a cell: the bytes that eager and the kernels move, the limit, and a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from fusec.report import Timing
from fuselab.display import noise, words

NEAR = 0.9  # of a copy's speed: there is next to nothing left
TINY = 20e-6  # seconds: starting it is what takes the time
SMALL = 200e-6  # seconds: starting it may be what takes most of it
WIDTH = 24  # of a bar in text


@dataclass(frozen=True)
class Traffic:
    """What a cell moves through memory, and how fast this machine could do it.

    Attributes:
        eager: Bytes that eager moves, an operator at a time; -1 where not counted.
        fused: Bytes that the kernels and ATen's calls move; likewise.
        least: Bytes of the inputs and outputs, once each.
        copy: Seconds of a copy that moves ``least``.
        limit: Seconds that it takes at best: the copy's, or those of its products of matrices.
        products: Operations of its products of matrices.
    """

    eager: int
    fused: int
    least: int
    copy: float
    limit: float
    products: int


def bars(traffic: Traffic, width: int) -> list[tuple[str, int, int]]:
    """Return what each side moves: its name, its bytes, the length of its bar."""
    rows = [("eager", traffic.eager), ("fused", traffic.fused)]
    known = [(name, count) for name, count in rows if count >= 0]
    longest = max((count for _, count in known), default=0)
    # Nothing but zeros is no bar.
    return [
        (name, count, max(1, round(width * count / longest)) if count and longest else 0)
        for name, count in known
    ]


def saved(traffic: Traffic) -> str:
    """Say how much less is moved: ``4.5× less``."""
    if traffic.eager <= 0 or traffic.fused <= 0:
        return ""
    found = traffic.eager / traffic.fused
    if 0.98 < found < 1.02:
        return "as much"
    return f"{noise.ratio(found)}× less" if found > 1 else f"{noise.ratio(1 / found)}× more"


def beaten(seconds: float, *times: Timing | None) -> bool:
    """Return whether something took less than a limit, which was timed on a slower machine then."""
    return any(time is not None and seconds > time.median for time in times)


def limit_words(traffic: Traffic, fused: Timing | None, eager: Timing | None = None) -> str:
    """Say what this machine could do at best; what was timed when it was slower is no limit."""
    took = words.duration(traffic.limit)
    products = traffic.limit > traffic.copy
    if beaten(traffic.limit, fused, eager):
        what = "such products" if products else _copied(traffic)
        return f"{what} took {took} when this machine was timed"
    if products:
        return f"limit here {took}: its matrix products at the machine's best"
    return f"limit here {took}: {_copied(traffic)}"


def _copied(traffic: Traffic) -> str:
    """Say what a copy moves: the kernels move more where they read or write something again."""
    least = words.size(traffic.least)
    if traffic.fused < 0 or words.size(traffic.fused) == least:
        return f"a copy of its {least}"
    return f"a copy of its {least} in and out"


def bound(
    traffic: Traffic | None,
    fused: Timing | None,
    steps: Mapping[str, Timing] | None = None,
    calls: Sequence[str] = (),
    eager: Timing | None = None,
    called: float | None = None,
    others: Mapping[str, float] | None = None,
) -> str:
    """Say in one sentence what bounds a cell; empty where nothing was measured.

    Args:
        traffic: What it moves, and the limit.
        fused: All of it, as compiled.
        steps: Each kernel that was timed alone.
        calls: What runs as ATen's own kernels, by name.
        eager: All of it in eager.
        called: Seconds of those calls; None where they were not timed alone.
        others: Seconds of those that multiply no matrices, by name, where they were.
    """
    if traffic is None or fused is None or fused.median <= 0 or traffic.limit <= 0:
        return ""
    share = traffic.limit / fused.median
    if share < 1 and beaten(traffic.limit, eager):
        return "what bounds it is not known: this machine was slower when its best was timed"
    took = words.duration(fused.median)
    main, longest = max((others or {}).items(), key=itemgetter(1), default=("", 0.0))
    if longest > 0.5 * fused.median:
        return f"most of {took} is spent outside of its kernels: in {main}"
    if traffic.limit > traffic.copy:
        best = "the machine's best" if share >= 1 else f"{share:.2f} of the machine's best"
        small = traffic.limit < SMALL and share < 0.5
        what = "matrix products too small to fill the machine" if small else "matrix products"
        return f"computes {what}, at {best}"
    if share >= 1:
        return "waits for memory: as fast as a copy"
    if share >= NEAR:
        return f"waits for memory: {share:.2f} of a copy, which is the limit"
    parts = sum(step.median for step in (steps or {}).values())
    outside = bool(parts) and parts < 0.5 * fused.median
    alone = outside and called is not None and parts + called < 0.5 * fused.median
    if fused.median < TINY and parts and not outside:
        return f"too small to fill the machine, though its kernels take most of {took}"
    if fused.median < TINY or alone or (outside and fused.median < SMALL):
        rest = "; the lines share the rest" if parts else ""
        return f"too small to fill the machine: the call itself takes most of {took}{rest}"
    if outside and calls:
        return (
            f"most of {took} is spent outside of its kernels: in {', '.join(dict.fromkeys(calls))}"
        )
    if share >= 0.5:
        return f"waits for memory: {share:.2f} of a copy"
    part = part_of_a_copy(traffic.limit, fused.median)
    return f"bound by what it computes: a copy of its bytes takes {part} of its time"


def part_of_a_copy(copy: float, seconds: float) -> str:
    """Say what part of a time a copy takes: ``0.15``; more than all of it is said, too."""
    part = copy / seconds
    return f"{part:.2f}" if part >= 0.005 else "less than 0.01"


__all__ = ["Traffic", "bars", "beaten", "bound", "limit_words", "part_of_a_copy", "saved"]
