"""What several graphs come to together: their times, their verdict, names that stay apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusec.report import Timing, Verdict
from fuselab.display.bounds import Traffic


def sum_of(timings: Sequence[Timing]) -> Timing | None:
    """Return the time of graphs that run one after another."""
    if len(timings) <= 1:
        return timings[0] if timings else None
    return Timing(
        median=sum(t.median for t in timings),
        low=sum(t.low for t in timings),
        high=sum(t.high for t in timings),
        samples=min(t.samples for t in timings),
        method=f"{timings[0].method}; sum over {len(timings)} graphs",
    )


def total_of(timings: Sequence[Timing]) -> Timing:
    """Return the time of calls that run one after another, each of which was timed alone."""
    first = timings[0]
    return Timing(
        median=sum(t.median for t in timings),
        low=sum(t.low for t in timings),
        high=sum(t.high for t in timings),
        samples=min(t.samples for t in timings),
        method=first.method + (f"; sum of {len(timings)} calls" if len(timings) > 1 else ""),
    )


def sum_of_limits(limits: Sequence[Any]) -> Traffic | None:
    """Return what graphs move that run one after another, and how fast they could be.

    Args:
        limits: Of each (``fusec.timing.limits.Limit``).
    """
    if not limits:
        return None
    return Traffic(
        eager=sum(each.eager for each in limits) if all(e.eager >= 0 for e in limits) else -1,
        fused=sum(each.moved for each in limits) if all(e.moved >= 0 for e in limits) else -1,
        least=sum(each.bytes for each in limits),
        copy=sum(each.copy.median for each in limits),
        limit=sum(each.seconds for each in limits),
        products=sum(each.products for each in limits),
    )


def joined(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return one verdict for all graphs: the first that failed speaks for them."""
    if not verdicts:
        return None
    first = next((verdict for verdict in verdicts if not verdict.ok), verdicts[0])
    return Verdict(
        ok=first.ok,
        stage=first.stage,
        reason=first.reason,
        outputs=tuple(output for verdict in verdicts for output in verdict.outputs),
        seconds=sum(verdict.seconds for verdict in verdicts),
        details="\n".join(verdict.details for verdict in verdicts if verdict.details),
    )


def unused_name(name: str, taken: Mapping[str, Any]) -> str:
    """Return the name, or the name with a number, that is not taken."""
    candidate, number = name, 2
    while candidate in taken:
        candidate = f"{name}_{number}"
        number += 1
    return candidate
