"""What is decided about whole programs, as text: which steps share a kernel, over what, and why."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fusec.ir.program import Extern, Step
from support.whole_programs import CASES, compare_program, scheduled


def told(step: Step) -> list[str]:
    if isinstance(step, Extern):
        return [f"{step.name}: {step.label or step.target}, reads {', '.join(step.reads())}"]
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
    return [
        f"{step.name} ({step.label}): {loops}{f' over {reduced}' if reduced else ''}, "
        f"{len(body.nodes())} nodes",
        f"  reads {loads}",
        f"  writes {stores}",
    ]


def lines(name: str, device: str) -> Iterable[str]:
    with scheduled(name, device) as made:
        for step in made.program.steps:
            yield from told(step)
    for d in made.decisions:
        pair = f"{d.producer} and {d.consumer}"
        yield f"{'+' if d.fused else '-'} {pair} ({d.bytes_saved:,}): {d.reason}"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_decided(name: str, device: str) -> None:
    compare_program(f"schedule_{device}", name, lines(name, device))
