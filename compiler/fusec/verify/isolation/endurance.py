"""Many calls in a row, in the process that is thrown away: what a few runs do not show.

A kernel may be right a dozen times and still leak, change the process, print without end or end it
at the hundredth call.  Here it is called more often than the notebook will before it is kept, and
timed beside the generated kernel, so that no notebook ever times what is not accepted yet.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from fusec.systems import this_system
from fusec.target_api.worker import WorkerKernel
from fusec.timing.measure import PRECISION, interleave
from fusec.verify.isolation import state
from fusec.verify.protocol import OUTPUT_LIMIT, Message, poison_byte

# Calls before anything is counted: what a library sets up at its first calls is no leak.
_WARM = 8
_WINDOW = 24
# Two windows in a row, so that what is made once counts once.
_WINDOWS = 2
_LEAST_LEAK = 16
# In the few calls on one case; threads that are new bring something of their own.
_LEAST_LEAK_OF_FEW = 4096
# More than so much printed in one call floods a notebook.
_PRINTED = 1 << 14
# Calls with nothing in between, and how long they may take.
_BURST = 250
_BURST_SECONDS = 0.05
# How long nothing is heard of it, where one call takes less; and after how many of the calls that
# are timed that is asked: their threads may have to wait for a processor in each of them.
_QUIET = 0.1
_ASKED_AFTER = 16
# The calls without timing stop after so many seconds of this thread, of which a busy machine has as
# many, or by the clock; but not while it is open whether something grows.
_LONG = 1.0
_LONGEST = 4.0


def endure(
    body: Message,
    call: Callable[[], int],
    generated: Callable[[], int] | None,
    restore: Callable[[], None] | None,
    log: int,
    proceed: Callable[[], bool] = lambda: True,
    alive: Callable[[], object] = lambda: None,
) -> Message:
    """Call a candidate many times, look at what it leaves, and time it where that is asked for.

    Args:
        body: The request; ``timing`` in it says how to time.
        call: Runs the candidate once.
        generated: Runs the generated kernel once.
        restore: Puts back what a call has updated.
        log: The file that standard output goes to.
        proceed: Asked before anything is timed; waits until nothing else keeps the machine busy.
        alive: Told after a few calls, or some time of them, that they come back.

    Returns:
        ``calls``, ``timed``, and ``problem`` where there is one.
    """
    threads = int(body["threads"])
    torch.set_num_threads(threads)
    before, tasks = state.snapshot(), this_system().task_count()
    counted = _Counted(call, restore, _NowAndThen(alive))
    problem = _many(counted, log)
    changed = problem or state.changes(before, threads=threads, tasks=tasks)
    if changed:
        return {"problem": "state", "words": changed, "calls": counted.calls}
    timed = None
    asked = body["timing"]
    if asked and generated is not None and proceed():
        # The calls that are timed are of those that it has to survive.
        deadline = time.perf_counter() + asked["seconds"]
        timed = _timed(asked, counted, generated)
        while counted.calls < asked["calls"] and time.perf_counter() < deadline:
            counted()
        changed = state.changes(before, threads=threads, tasks=tasks)
    if printed(log) >= OUTPUT_LIMIT:
        changed = f"prints more than {OUTPUT_LIMIT >> 20} MB in {counted.calls} calls"
    if changed:
        return {"problem": "state", "words": changed, "calls": counted.calls}
    return {"calls": counted.calls, "timed": timed}


def burst(
    call: Callable[[], int], given: Sequence[tuple[Any, Any, int]], *, over: int | None
) -> Message | None:
    """Call again and again with nothing in between; return what is wrong with that, if anything.

    What a kernel keeps in memory that is not its own (of the stack, of what it has freed) is still
    there at the next call, as long as nobody else has used it.  The last call, whose results stay,
    finds what a notebook's kernels find where they write: the same results, or zeros.

    Args:
        call: Runs the candidate once.
        given: Its tensors, where they are, and the addresses of their bytes.
        over: The byte that fills what the last call writes; None for the results before.
    """
    inputs = [each for each in given if each[0].role != "out"]
    restored = [each for each in given if each[0].role == "inout"]
    results = [each for each in given if each[0].role == "out"]
    for _, area, origin in inputs:
        area.copy_from(origin)
    deadline = time.perf_counter() + _BURST_SECONDS
    last = False
    for number in range(_BURST):
        for _, area, origin in restored:
            area.copy_from(origin)
        for spec, area, _ in results:
            fill = over if last else poison_byte(spec.kind, 0)
            if fill is not None:
                area.fill(fill)
        code = call()
        if code:
            return {"problem": "check", "code": code}
        if last:
            break
        last = number >= _BURST - 2 or time.perf_counter() > deadline
    for spec, area, origin in inputs:
        if spec.role == "in" and not area.equals(origin):
            at = area.first_difference(origin) // spec.itemsize
            return {"problem": "input", "name": spec.name, "element": at}
    return None


class _NowAndThen:
    """Something that is done only where it was not done for a while."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.do, self.done = do, time.perf_counter()

    def __call__(self) -> bool:
        """Return false, so that whoever asks whether to stop goes on."""
        now = time.perf_counter()
        if now - self.done > _QUIET:
            self.done = now
            self.do()
        return False


class _Counted:
    """A call that counts itself.

    Attributes:
        calls: How often it was made.
    """

    def __init__(
        self,
        call: Callable[[], int],
        restore: Callable[[], None] | None,
        alive: Callable[[], bool],
    ) -> None:
        self.call, self.restore, self.calls = call, restore, 0
        self.alive = alive

    def __call__(self) -> None:
        if self.restore is not None:
            self.restore()
        self.bare()
        self.alive()

    def bare(self) -> None:
        """Call without putting anything back."""
        self.calls += 1
        self.call()
        if not self.calls % _ASKED_AFTER:
            self.alive()


def _many(counted: _Counted, log: int) -> str:
    """Call often enough to see what grows; return what does, in words."""
    used_up, clock = time.thread_time() + _LONG, time.perf_counter() + _LONGEST

    def time_is_over() -> bool:
        return time.thread_time() > used_up or time.perf_counter() > clock

    for _ in range(_WARM):
        counted()
        if time_is_over():
            return ""
    growth = []
    before = printed(log)
    for _ in range(_WINDOWS):
        used = this_system().bytes_in_use()
        for _ in range(_WINDOW):
            counted()
        growth.append((this_system().bytes_in_use() - used) // _WINDOW)
        if time_is_over() and growth[-1] < _LEAST_LEAK:
            break
    # In one window alone something may have been made once, for good.
    if min(growth) >= (_LEAST_LEAK if len(growth) > 1 else _LEAST_LEAK_OF_FEW):
        return _leaks(min(growth))
    calls = _WINDOW * len(growth)
    written = printed(log)
    if written >= OUTPUT_LIMIT:
        return f"prints more than {OUTPUT_LIMIT >> 20} MB in {counted.calls} calls"
    return floods(written - before, calls)


def leaks(grown: Sequence[int]) -> str:
    """Return that each of a few calls has left so many bytes in use; empty if one has not."""
    least = min(grown) if len(grown) > 1 else 0
    return _leaks(least) if least >= _LEAST_LEAK_OF_FEW else ""


def _leaks(size: int) -> str:
    return f"never frees {_amount(size)} that it allocates in each call"


def floods(printed: int, calls: int) -> str:
    """Return that so many bytes in so many calls are too much for a notebook; empty if not."""
    each = printed // calls
    return f"prints {_amount(each)} in each call" if each > _PRINTED else ""


def printed(log: int) -> int:
    """Return how much has been printed to a file."""
    sys.stdout.flush()
    this_system().flush()
    return os.fstat(log).st_size


def _amount(size: int) -> str:
    for unit, scale in (("MB", 1 << 20), ("kB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.0f} {unit}"
    return f"{size} bytes"


def _timed(asked: Message, counted: _Counted, generated: Callable[[], int]) -> dict[str, Any]:
    # Counting a call takes a tenth of a microsecond: the two are called alike.
    other = _Counted(generated, None, counted.alive)
    calls: dict[str, Callable[[], object]] = {"candidate": counted.bare, "generated": other.bare}
    half = int(asked["copied"])
    if half:
        origin = torch.zeros(half, dtype=torch.uint8)
        target = torch.ones_like(origin)
        calls["copy"] = functools.partial(target.copy_, origin)
    found = interleave(
        calls,
        seconds=asked["seconds"],
        before=counted.restore,
        precision=PRECISION,
        stop=counted.alive,
    )
    return {name: asdict(timing) for name, timing in found.items()}


def bound(
    candidate: WorkerKernel, arguments: Sequence[Any], sizes: Sequence[int], threads: int
) -> Callable[[], int]:
    """Return a call of a candidate with its arguments, as cheap as it can be."""
    ready = getattr(candidate, "bound", None)
    if ready is not None:
        found: Callable[[], int] = ready(arguments, sizes, threads)
        return found
    return functools.partial(candidate, arguments, sizes, threads)


__all__ = ["bound", "burst", "endure", "floods", "leaks", "printed"]
