"""What happens in the process that is forked for one candidate: guarded runs, then its report.

Everything here runs in a process that is thrown away.  It writes JSON lines to one pipe: the
addresses of each run before it starts, a fault if there is one, and the result.
"""

from __future__ import annotations

import contextlib
import ctypes
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
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from fusec.errors import CompileError
from fusec.systems import this_system
from fusec.target_api.library_worker import LibraryCandidate
from fusec.target_api.worker import WorkerKernel
from fusec.verify.guard import GUARD, Area
from fusec.verify.isolation import endurance, faults, state
from fusec.verify.isolation.neighbours import Neighbours
from fusec.verify.isolation.relocated import SHOWN, Relocated
from fusec.verify.protocol import OUTPUT_LIMIT, POISON_FLOAT, Message, poison_byte, receive

_ADDRESS_SPACE_SLACK = 4 << 30


@dataclass(frozen=True)
class TensorSpec:
    """One tensor argument as the parent describes it.

    Attributes:
        name: Its name in the kernel.
        dtype: For example ``float32``.
        kind: ``float``, ``integer`` or ``bool``, for the poison.
        itemsize: Bytes an element.
        shape: Sizes.
        strides: Strides in elements.
        role: ``in``, ``out`` or ``inout``.
        offset: Where its bytes start in the data file.
        nbytes: Bytes from its first to its last element.
        result: Where its bytes start in a run's part of the result file; -1 for inputs.
        same_as: The place of an earlier one that is the same tensor; -1 if none is.
    """

    name: str
    dtype: str
    kind: str
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    role: str
    offset: int
    nbytes: int
    result: int
    same_as: int = -1

    @classmethod
    def read(cls, given: Message) -> TensorSpec:
        """Make one from its JSON form."""
        return cls(**{**given, "shape": tuple(given["shape"]), "strides": tuple(given["strides"])})

    @property
    def has_gaps(self) -> bool:
        """Whether there are bytes between its elements that are not its own."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.itemsize != self.nbytes

    def gaps(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each element of its extent whether it lies between its elements."""
        covered = np.zeros(self.nbytes // self.itemsize, dtype=np.bool_)
        np.lib.stride_tricks.as_strided(covered, self.shape, self.strides)[...] = True
        return ~covered


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


class InArea:
    """An argument of the candidate, in its area."""

    def __init__(self, operand: TensorSpec, area: Area) -> None:
        self.operand, self.area = operand, area

    @property
    def address(self) -> int:
        """Where its first element is."""
        return self.area.start

    def tensor(self) -> torch.Tensor:
        """Return it as a tensor."""
        operand = self.operand
        dtype: torch.dtype = getattr(torch, operand.dtype)
        if not self.area.nbytes:
            return torch.empty_strided(operand.shape, operand.strides, dtype=dtype)
        flat = torch.frombuffer(self.area.bytes_view(), dtype=dtype)
        return flat.as_strided(operand.shape, operand.strides)


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
            kept = _Kept()
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
    kept: _Kept,
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
            areas = _areas(operands, at_end=at_end)
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
            _write_results(operands, areas, result_file, case["base"] + run_index * size, size)
        last = index == 0 and run_index == len(plan) - 1
        if last and _writes_above(call, list(map(InArea, operands, areas)), case["sizes"]):
            return {"problem": "frame"}
        if not first:
            first = areas
        else:
            _release(areas)
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


class _Kept:
    """The areas of a case's first run, which the next case of the same sizes gets as they lie.

    So a kernel meets other values at an address that it knows.
    """

    def __init__(self) -> None:
        self._areas: list[Area] = []
        self._shared: list[int] = []

    def areas(self, operands: Sequence[TensorSpec], *, at_end: bool) -> list[Area]:
        """Return the areas of the case before, or others where sizes differ."""
        shared = [o.same_as for o in operands]
        if self._shared != shared or [a.nbytes for a in self._areas] != [
            o.nbytes for o in operands
        ]:
            _release(self._areas)
            self._areas, self._shared = _areas(operands, at_end=at_end), shared
        return self._areas


def _areas(operands: Sequence[TensorSpec], *, at_end: bool) -> list[Area]:
    """Return an area for each operand; the same one for those that are one tensor.

    One that is made later mostly lies lower, so that those at their pages' ends lie in the other
    order than those at the beginnings.
    """
    own = [place for place, operand in enumerate(operands) if operand.same_as < 0]
    made = {
        place: Area.make(operands[place].name, operands[place].nbytes, at_end=at_end)
        for place in (own if at_end else reversed(own))
    }
    return [
        made[place if operand.same_as < 0 else operand.same_as]
        for place, operand in enumerate(operands)
    ]


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
    areas = _areas(operands, at_end=True)
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
            _release(areas)
            areas = _ordinary(operands)
        problem = endurance.burst(
            endurance.bound(call, list(map(InArea, operands, areas)), *given[1:]),
            [(o, a, source + n.offset) for o, n, a in zip(operands, latest, areas, strict=True)],
            over=0 if ordinary else None,
        )
        if problem:
            return {"result": problem}
        place = last["base"] + last["results"] * ordinary
        same = ordinary and _has_results(operands, areas, result_file, last)
        if last["results"] and not same:
            _write_results(operands, areas, result_file, place, last["results"])
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
            _write_results(operands, there, result_file, place, last["results"])
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


def _has_results(
    operands: Sequence[TensorSpec], areas: Sequence[Area], result_file: int, case: Message
) -> bool:
    """Whether what a case's first run wrote is what there is now."""
    size = case["results"]
    if not size:
        return True
    with mmap.mmap(result_file, size, offset=case["base"]) as results:
        return all(
            results[operand.result : operand.result + area.nbytes] == bytes(area.bytes_view())
            for operand, area in zip(operands, areas, strict=True)
            if operand.result >= 0 and area.nbytes
        )


def _ordinary(operands: Sequence[TensorSpec]) -> list[Area]:
    """Return an area of ``malloc``'s memory for each operand, with nothing around it."""
    made: list[Area] = []
    for operand in operands:
        if operand.same_as >= 0:
            made.append(made[operand.same_as])
        else:
            start = _ordinary_memory(operand.nbytes)
            made.append(Area(operand.name, start, operand.nbytes, start, operand.nbytes))
    return made


def _ordinary_memory(size: int) -> int:
    # As torch's allocator does it; the process ends before anybody would free it.
    pointer = ctypes.c_void_p()
    libc = ctypes.CDLL(None)
    if libc.posix_memalign(ctypes.byref(pointer), ctypes.c_size_t(64), ctypes.c_size_t(size or 1)):
        raise MemoryError("no memory")
    return int(pointer.value or 0)


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


def _release(areas: Sequence[Area]) -> None:
    for area in {id(area): area for area in areas}.values():
        area.release()


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
            at = _changed_gap(operand, area, source, index)
            if at >= 0:
                return {"problem": "gap", "name": operand.name, "element": at}
    return {"seconds": seconds, "grown": grown}


def _write_results(
    operands: Sequence[TensorSpec], areas: Sequence[Area], result_file: int, part: int, size: int
) -> None:
    # Mapped only now: while the kernel ran, there was nothing here that it could have hit.
    with mmap.mmap(result_file, size, offset=part) as results:
        for operand, area in zip(operands, areas, strict=True):
            if operand.result >= 0 and area.nbytes:
                results[operand.result : operand.result + area.nbytes] = area.bytes_view()


def _changed_gap(operand: TensorSpec, area: Area, source: int, index: int) -> int:
    gaps = operand.gaps()
    shape = (gaps.size, operand.itemsize)
    now = np.frombuffer(area.bytes_view(), dtype=np.uint8).reshape(shape)
    if operand.role == "out":
        changed = (now != poison_byte(operand.kind, index)).any(axis=1)
    else:
        original = ctypes.string_at(source + operand.offset, operand.nbytes)
        changed = (now != np.frombuffer(original, dtype=np.uint8).reshape(shape)).any(axis=1)
    changed &= gaps
    return int(np.argmax(changed)) if changed.any() else -1


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
