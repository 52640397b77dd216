"""What is decided about whole programs, as text: which steps share a kernel, over what, and why."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fusec.ir.program import Extern, Step
from support.decisions import compare
from support.whole_programs import CASES, scheduled, with_the_pinned_torch


def told(step: Step) -> str:
    if isinstance(step, Extern):
        return f"{step.name}: {step.label or step.target}, reads {', '.join(step.reads())}"
    body = step.body
    loops = " x ".join(str(axis.size) for axis in body.axes) or "once"
    reduced = " x ".join(str(axis.size) for axis in body.reduce_axes)
    stores = ", ".join(
        f"{store.buffer}[{', '.join(map(str, store.index))}]"
        + ("" if store.mode == "set" else f" by {store.mode}")
        + (f" for {store.made}" if store.made else "")
        for store in body.stores
    )
    loads = ", ".join(f"{load.buffer}[{', '.join(map(str, load.index))}]" for load in body.loads())
    return (
        f"{step.name} ({step.label}): {loops}{f' over {reduced}' if reduced else ''}, "
        f"{len(body.nodes())} nodes\n    reads {loads}\n    writes {stores}"
    )


def lines(device: str) -> Iterable[str]:
    for name in CASES:
        yield f"{name}:"
        with scheduled(name, device) as made:
            yield from (f"  {told(step)}" for step in made.program.steps)
        for d in made.decisions:
            pair = f"{d.producer} and {d.consumer}"
            yield f"  {'+' if d.fused else '-'} {pair} ({d.bytes_saved:,}): {d.reason}"


@with_the_pinned_torch
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_decided(device: str) -> None:
    compare(f"schedule_{device}", lines(device))
