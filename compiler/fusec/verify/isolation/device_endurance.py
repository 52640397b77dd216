"""Many calls in a row on a device, in the process that is thrown away; see ``endurance``.

An edit for a GPU is called and timed here before the notebook's own context has seen it.  What
few calls do not show: memory of the device that is never given back, work on a stream that nobody
waits for, a result that is another one at times.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import torch

from fusec.timing.measure import PRECISION, interleave
from fusec.verify.isolation import state
from fusec.verify.protocol import Message

_WINDOW = 24
_WINDOWS = 2
_AGAIN = 6
# The device gives memory in pages of so much; what happens beside this process is less than one
# a call.
_LEAST_LEAK = 2 << 20
_LONG = 2.0
# Cycles of a processor for which a stream is kept busy; some tenths of a second.
_BUSY = 200_000_000


class OnDevice(Protocol):
    """An argument on the device."""

    raw: torch.Tensor

    @property
    def updated(self) -> bool:
        """Whether a call reads it and writes it."""

    def clear(self) -> None:
        """Overwrite it where a call only writes it."""

    def restore(self) -> None:
        """Put back what a call has updated."""


def endure(
    asked: Message | None,
    call: Callable[[], object],
    generated: Callable[[], object] | None,
    operands: Sequence[OnDevice],
) -> Message:
    """Call a candidate many times, look at what it leaves, and time it where that is asked for.

    Args:
        asked: How to time: ``seconds``, ``calls``, ``copied``; None where nothing is timed.
        call: Starts the candidate once.
        generated: Starts the generated kernel once.
        operands: What both get.

    Returns:
        ``calls``, ``timed``, and ``problem`` where there is one.
    """
    calls = 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        call()

    def restored() -> None:
        for each in operands:
            each.restore()
        counted()

    if generated is not None:
        generated()  # what is set up at a first call is no work of the candidate's
    before, threads = state.of_torch(), threading.enumerate()
    words = (
        _on_other_streams(restored, operands)
        or _leaks(restored)
        or state.changes_of_torch(before, threads)
    )
    if words:
        return {"problem": "state", "words": words, "calls": calls}
    timed = None
    if asked and generated is not None:
        timed = _timed(asked, counted, generated, operands)
        deadline = time.perf_counter() + asked["seconds"]
        while calls < asked["calls"] and time.perf_counter() < deadline:
            restored()
        torch.cuda.synchronize()
    return {"calls": calls, "timed": timed}


def _on_other_streams(call: Callable[[], None], operands: Sequence[OnDevice]) -> str:
    """Return whether a call works while the stream that it was made on is still busy, in words."""
    call()
    torch.cuda.synchronize()
    for each in operands:
        # What a call writes is other than what is there.
        each.restore()
        each.clear()
    marked = [each.raw.clone() for each in operands]
    stream, beside = torch.cuda.Stream(), torch.cuda.Stream()
    done = torch.cuda.Event()
    found = False

    def written() -> bool:
        with torch.cuda.stream(beside):
            seen = [
                bool((each.raw != mark).any()) for each, mark in zip(operands, marked, strict=True)
            ]
        beside.synchronize()
        return any(seen)

    # A first use loads code and takes memory, for which CUDA waits until the device is idle.
    written()
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_BUSY)
        done.record()
        call()
    deadline = time.perf_counter() + _LONG
    while not found and not done.query() and time.perf_counter() < deadline:
        # Only what was there before the stream's turn came counts.
        found = written() and not done.query()
    torch.cuda.synchronize()
    return "works on a stream of its own, for which nobody waits" if found else ""


def _leaks(call: Callable[[], None]) -> str:
    """Return what of the device's memory grows with the calls, in words.

    The tensors that this process holds are its own; of what the device has free, others take, too.
    """
    deadline = time.perf_counter() + _LONG
    windows = [_growth(call, deadline) for _ in range(_WINDOWS + 1)]
    # The first window makes what is made once.
    counted = [each for each in windows[1:] if each is not None]
    if len(counted) < _WINDOWS:
        return ""
    least = min(held for held, _ in counted)
    if least < _LEAST_LEAK:
        least = min(taken for _, taken in counted)
        if least >= _LEAST_LEAK:
            least = _taken_by_calls(call)
    if least >= _LEAST_LEAK:
        return f"never frees {least / _WINDOW / (1 << 20):.2g} MB of the device's memory a call"
    return ""


def _growth(call: Callable[[], object], deadline: float) -> tuple[int, int] | None:
    """Return by how much tensors grow and free memory shrinks in a window; None if that is long."""
    torch.cuda.synchronize()
    free, held = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
    for _ in range(_WINDOW):
        call()
        if time.perf_counter() > deadline:
            return None
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated() - held, free - torch.cuda.mem_get_info()[0]


def _taken_by_calls(call: Callable[[], None]) -> int:
    """Return how many bytes each window of calls takes of what is free; 0 where others do it.

    Windows of calls take turns with as long a time without any: who else uses the device goes on
    then, and a leak does not.
    """
    deadline = time.perf_counter() + _LONG
    least = 1 << 62
    for _ in range(_AGAIN):
        started = time.perf_counter()
        growth = _growth(call, deadline)
        took = time.perf_counter() - started
        if growth is None:
            return 0
        free = torch.cuda.mem_get_info()[0]
        time.sleep(took)
        beside = free - torch.cuda.mem_get_info()[0]
        least = min(least, growth[1] if abs(beside) < _LEAST_LEAK else 0)
        if least < _LEAST_LEAK:
            return 0
    return least


def _timed(
    asked: Message,
    call: Callable[[], object],
    generated: Callable[[], object],
    operands: Sequence[OnDevice],
) -> dict[str, Any]:
    calls: dict[str, Callable[[], object]] = {"candidate": call, "generated": generated}
    half = int(asked["copied"])
    if half:
        origin = torch.zeros(half, dtype=torch.uint8, device=operands[0].raw.device)
        calls["copy"] = functools.partial(torch.ones_like(origin).copy_, origin)

    def restore() -> None:
        for each in operands:
            each.restore()

    updated = any(each.updated for each in operands)
    found = interleave(
        calls,
        seconds=asked["seconds"],
        before=restore if updated else None,
        device=str(operands[0].raw.device.type),
        flush_l2=True,
        precision=PRECISION,
    )
    return {name: asdict(timing) for name, timing in found.items()}


__all__ = ["endure"]
