"""What happens in the process that is forked for one candidate: guarded runs, then its report.

Everything here runs in a process that is thrown away.  It writes JSON lines to one pipe: the
addresses of each run before it starts, a fault if there is one, and the result.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import torch

from fusec.errors import CompileError
from fusec.systems import this_system
from fusec.target_api.library_worker import LibraryCandidate
from fusec.target_api.worker import WorkerKernel
from fusec.verify.guard import GUARD, Area
from fusec.verify.isolation import endurance, faults, state
from fusec.verify.isolation.neighbours import Neighbours
from fusec.verify.isolation.operands import (
    InArea,
    KeptAreas,
    TensorSpec,
    areas_of,
    changed_gap,
    has_results,
    ordinary_areas,
    release,
    write_results,
)
from fusec.verify.isolation.relocated import SHOWN, Relocated
from fusec.verify.protocol import OUTPUT_LIMIT, POISON_FLOAT, Message, poison_byte, receive

_ADDRESS_SPACE_SLACK = 4 << 30


def restrict(body: Message) -> None:
    """Set the limits that hold whatever the kernel does."""
    cases = body["cases"]
    data = max(sum(a["nbytes"] + 2 * GUARD for a in case["arguments"]) for case in cases)
    this_system().limit(
        seconds=int(body["timeout"] * len(cases) * body["threads"]) + 2,
        # Enough for what a run needs; a kernel that allocates without end stops there.
        memory=4 * data + _ADDRESS_SPACE_SLACK,
        # What it prints goes to a memory file.
        written=OUTPUT_LIMIT,
    )
    teams = (body.get("endure") or {}).get("teams", ())  # a rehearsal has none
    this_system().limit_tasks(max(body["threads"], *teams) if teams else body["threads"])
    # An ordinary ^C is the notebook's business.
    this_system().ignore_interrupts()


def run(
    place: tuple[int, int], data_file: int, result_file: int, report: int, gate: int | None = None
) -> None:
    """Run the candidate on all cases, as often as the request's body asks, and report.

    Args:
        place: Where the request's body is in the data file.
        data_file: Holds the tensors' bytes.
        result_file: Takes what the runs write.
        report: Takes what is found, a line each.
        gate: Gives a byte once what was found before is judged, and its end where that was wrong.
    """
    start, length = place
    with mmap.mmap(data_file, start + length, access=mmap.ACCESS_READ) as data:
        body = json.loads(data[start : start + length])
        restrict(body)
        faults.install(report)
        source = np.frombuffer(data, dtype=np.uint8).ctypes.data
        try:
            if body.get("rehearse"):
                _say(report, _rehearsed(body))
                return
            call = prepare(body)
            if body["endure"] is not None:
                _say(report, _endured(body, source, call, result_file, report, gate))
                return
            kept = KeptAreas()
            looked = _Looked()
            for index, case in enumerate(body["cases"]):
                outcome = _run_case(
                    body["runs"], index, case, source, call, result_file, report, kept
                )
                free = "problem" in outcome or getattr(call, "thrown_away", False)
                words = "" if free else looked.changes(len(body["runs"]))
                if words:
                    outcome = {"problem": "state", "words": words, "calls": len(body["runs"])}
                if "problem" in outcome:
                    _say(report, {"result": outcome})
                    return
                _say(report, {"done": outcome})
        except BaseException as error:
            _say(report, {"result": describe_error(error, body["file"])})


def _run_case(
    plan: Sequence[tuple[bool, int]],
    index: int,
    case: Message,
    source: int,
    call: WorkerKernel,
    result_file: int,
    report: int,
    kept: KeptAreas,
) -> Message:
    operands = [TensorSpec.read(a) for a in case["arguments"]]
    first: list[Area] = []
    seconds = 0.0
    same = []
    grown = []
    for run_index, (at_end, threads) in enumerate(plan):
        if run_index == 0:
            areas = kept.areas(operands, at_end=at_end)
        else:
            areas = areas_of(operands, at_end=at_end)
        placed = [[a.start, a.nbytes, a.usable] for a in areas]
        _say(report, {"areas": placed, "case": index, "run": run_index, "threads": threads})
        outcome = _guarded(operands, areas, source, case, call, run_index, threads)
        if "problem" in outcome:
            return outcome
        seconds = seconds or outcome["seconds"]
        grown.append(outcome["grown"])
        # The parent need not look at what is bit for bit what the first run wrote.
        same.append(
            bool(case["refused"])  # nobody reads what it has written
            or (
                bool(first)
                and all(
                    operand.role == "in" or area.equals(other.start)
                    for operand, area, other in zip(operands, areas, first, strict=True)
                )
            )
        )
        size = case["results"]
        if size and not same[-1]:
            write_results(operands, areas, result_file, case["base"] + run_index * size, size)
        last = index == 0 and run_index == len(plan) - 1
        if last and _writes_above(call, list(map(InArea, operands, areas)), case["sizes"]):
            return {"problem": "frame"}
        if not first:
            first = areas
        else:
            release(areas)
    words = endurance.leaks(grown) if isinstance(call, LibraryCandidate) else ""
    if words:
        return {"problem": "state", "words": words, "calls": len(plan)}
    return {"seconds": seconds, "same": same}


def _writes_above(call: WorkerKernel, arguments: Sequence[InArea], sizes: Sequence[int]) -> bool:
    """Run a kernel once more where its caller's part of the stack is watched, if it can be."""
    look = getattr(call, "writes_above", None)
    return look is not None and bool(look(arguments, sizes, 1))


class _Looked:
    """What a case's runs change of torch and print, whatever their values are."""

    def __init__(self) -> None:
        self._state, self._threads = state.of_torch(), threading.enumerate()
        self._printed = endurance.printed(1)

    def changes(self, calls: int) -> str:
        """Return what is wrong with the calls since the last time, in words; empty if nothing."""
        before, self._printed = self._printed, endurance.printed(1)
        return endurance.floods(self._printed - before, calls) or state.changes_of_torch(
            self._state, self._threads
        )


def _endured(
    body: Message,
    source: int,
    call: WorkerKernel,
    result_file: int,
    report: int,
    gate: int | None,
) -> Message:
    """Call the candidate many times on the first case, then on the last; see ``endurance``."""
    case, last = body["cases"][0], body["cases"][-1]
    operands = [TensorSpec.read(a) for a in case["arguments"]]
    areas = areas_of(operands, at_end=True)
    placed = [[a.start, a.nbytes, a.usable] for a in areas]
    _say(report, {"areas": placed, "case": 0, "run": 0, "threads": body["threads"]})
    for operand, area in zip(operands, areas, strict=True):
        if operand.role == "out":
            area.fill(poison_byte(operand.kind, 0))
        else:
            area.copy_from(source + operand.offset)
    updated = [(o, a) for o, a in zip(operands, areas, strict=True) if o.role == "inout"]

    def alive() -> None:
        _say(report, {"alive": True})

    def restore() -> None:
        for operand, area in updated:
            area.copy_from(source + operand.offset)

    given = list(map(InArea, operands, areas)), case["sizes"], body["threads"]
    asked = body["endure"]
    other = prepare({**body, **asked["generated"]}) if asked["generated"] else None
    found = endurance.endure(
        {**body, "timing": asked["timing"]},
        endurance.bound(call, *given),
        endurance.bound(other, *given) if other is not None else None,
        restore if updated else None,
        log=1,
        proceed=lambda: gate is None or bool(os.read(gate, 1)),
        alive=alive,
    )
    if "problem" in found:
        return {"result": found}
    # Other values, where the earlier ones were; then in memory as the notebook has it.
    latest = [TensorSpec.read(a) for a in last["arguments"]]
    for ordinary in (False, True):
        alive()
        if ordinary:
            # In place of the first ones: of large tensors there is no room for a third copy.
            release(areas)
            areas = ordinary_areas(operands)
        problem = endurance.burst(
            endurance.bound(call, list(map(InArea, operands, areas)), *given[1:]),
            [(o, a, source + n.offset) for o, n, a in zip(operands, latest, areas, strict=True)],
            over=0 if ordinary else None,
        )
        if problem:
            return {"result": problem}
        place = last["base"] + last["results"] * ordinary
        same = ordinary and has_results(operands, areas, result_file, last)
        if last["results"] and not same:
            write_results(operands, areas, result_file, place, last["results"])
    for operand, area, new in zip(operands, areas, latest, strict=True):
        if operand.role == "inout":
            area.copy_from(source + new.offset)
    words = _beside(endurance.bound(call, list(map(InArea, operands, areas)), *given[1:]))
    if words:
        return {"result": {"problem": "state", "words": words, "calls": 1}}
    relocated = Relocated(
        call,
        operands,
        [source + n.offset for n in latest],
        areas,
        lambda there: list(map(InArea, operands, there)),
        given[1],
    )
    labels: list[str] = []
    with contextlib.suppress(MemoryError):  # there is no room for more
        for label, there in relocated.differing(given[2], asked["teams"], alive):
            place = last["base"] + last["results"] * (2 + len(labels))
            write_results(operands, there, result_file, place, last["results"])
            labels.append(label)
            if len(labels) == SHOWN:
                break
    return {"endured": {**found, "same": same, "elsewhere": labels}}


def _beside(once: Callable[[], object]) -> str:
    """Call once where blocks of ours lie beside what it allocates; return what it did to them."""
    neighbours = Neighbours()
    with contextlib.suppress(MemoryError):  # there is no room for them
        neighbours.lay()
        once()
        return neighbours.problem()
    return ""


def _rehearsed(body: Message) -> Message:
    """Have the target's worker run a text's own Python on tensors without memory."""
    case = body["cases"][0]
    tensors = [
        torch.empty_strided(o.shape, o.strides, dtype=getattr(torch, o.dtype), device="meta")
        for o in map(TensorSpec.read, case["arguments"])
    ]
    worker = importlib.import_module(body["worker"])
    before, threads = state.of_torch(), threading.enumerate()
    # Of this process, so that a busy machine has as many; what sleeps has none and waits longer.
    limits = {
        signal.SIGPROF: (signal.ITIMER_PROF, body["timeout"]),
        signal.SIGALRM: (signal.ITIMER_REAL, body["asleep"]),
    }
    for number, (timer, seconds) in limits.items():
        signal.signal(number, _raise_timed_out)
        signal.setitimer(timer, seconds)
    try:
        worker.rehearse(body, tensors, case["sizes"])
    except _TimedOut as error:
        return {"result": {**describe_error(error, body["file"]), "problem": "late"}}
    except CompileError as error:
        said = [asdict(diagnostic) for diagnostic in error.diagnostics]
        return {"refused": {"diagnostics": said, "output": error.output}}
    finally:
        for number, (timer, _) in limits.items():
            signal.setitimer(timer, 0)
            signal.signal(number, signal.SIG_DFL)
    words = state.changes_of_torch(before, threads)
    return {"result": {"problem": "state", "words": words, "calls": 1}} if words else {"done": {}}


class _TimedOut(BaseException):  # no text's `except Exception` stops it
    """A text's own Python has taken too long."""


def _raise_timed_out(number: int, frame: object) -> None:
    raise _TimedOut


def prepare(body: Message) -> WorkerKernel:
    """Return what runs the candidate of a request: its target's worker knows how."""
    worker = importlib.import_module(body["worker"])
    candidate: WorkerKernel = worker.prepare(body)
    return candidate


def _guarded(
    operands: Sequence[TensorSpec],
    areas: Sequence[Area],
    source: int,
    case: Message,
    call: WorkerKernel,
    index: int,
    threads: int,
) -> Message:
    for operand, area in zip(operands, areas, strict=True):
        if operand.role == "out":
            area.fill(poison_byte(operand.kind, index))
        else:
            area.copy_from(source + operand.offset)
    # From the second run on, so that a plain change of an input is said with its place.
    written = {id(a) for o, a in zip(operands, areas, strict=True) if o.role != "in"}
    locked = {id(a): a for a in areas if index and id(a) not in written}
    for area in locked.values():
        area.lock()
    # What nobody has written is another thing in each run, not what happens to lie there.
    this_system().dirty_memory(POISON_FLOAT[index % 2])
    given = list(map(InArea, operands, areas))
    used = this_system().bytes_in_use()
    started = time.perf_counter()
    code = call(given, case["sizes"], threads) or 0
    seconds = time.perf_counter() - started
    grown = this_system().bytes_in_use() - used
    for area in locked.values():
        area.unlock()
    if bool(code) != bool(case["refused"]) or not 0 <= code <= case["checks"]:
        return {"problem": "check", "code": code, "refused": case["refused"]}
    for operand, area in zip(operands, areas, strict=True):
        damage = area.margin_damage()
        if damage is not None:
            return {"problem": "margin", "name": operand.name, "distance": damage}
        if operand.role == "in":
            if not area.equals(source + operand.offset):
                at = area.first_difference(source + operand.offset) // operand.itemsize
                return {"problem": "input", "name": operand.name, "element": at}
        elif operand.has_gaps:
            at = changed_gap(operand, area, source, index)
            if at >= 0:
                return {"problem": "gap", "name": operand.name, "element": at}
    return {"seconds": seconds, "grown": grown}


def describe_error(error: BaseException, file: str) -> Message:
    """Return an exception that a kernel raised, with the line of its file, as a report."""
    line = None
    if isinstance(error, SyntaxError):
        line = error.lineno
    for frame, number in traceback.walk_tb(error.__traceback__):
        if os.path.basename(frame.f_code.co_filename) == file:
            line = number
    cause: BaseException = error
    while cause.__cause__ is not None and type(cause).__name__ == "InterpreterError":
        cause = cause.__cause__
        for frame, number in traceback.walk_tb(cause.__traceback__):
            if os.path.basename(frame.f_code.co_filename) == file:
                line = number
    return {
        "problem": "exception",
        "type": type(cause).__name__,
        "message": str(cause)[:2000],
        "line": line,
        "traceback": "".join(traceback.format_exception(error))[-8000:],
    }


def _say(report: int, message: Message) -> None:
    data = (json.dumps(message) + "\n").encode()
    while data:
        data = data[os.write(report, data) :]


def main(sock: socket.socket, report: int, log: int, parent: int) -> None:
    """Be the child: wait for a request, restrict, run, report, and never return."""
    status = 70
    try:
        this_system().end_with_parent()
        if os.getppid() == parent:
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            request, descriptors = receive(sock)
            if request is not None:
                data_file, result_file, *gate = descriptors
                run(request["body"], data_file, result_file, report, *gate)
                status = 0
    finally:
        sys.stdout.flush()
        os._exit(status)
