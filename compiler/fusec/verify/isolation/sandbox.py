"""Run a candidate kernel where it can do no harm.

A candidate runs in a process forked for it from a clean worker (see ``worker``), on copies of
its inputs between untouchable memory, several times: with its arguments against their ends and
against their starts, with two different poisons in what it must write, and with one thread and
many.  Whatever it does there, the notebook's process only reads a report.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fusec.devices import CPU
from fusec.kernel_source import Signature
from fusec.report import Timing
from fusec.systems import this_system
from fusec.target_api.base import PythonTarget
from fusec.target_api.registry import find_target
from fusec.verify import words as explain
from fusec.verify.isolation.layout import Case, CaseLayout
from fusec.verify.isolation.process import NoAnswer, Worker, WorkerEnded, WorkerError
from fusec.verify.isolation.relocated import SHOWN
from fusec.verify.protocol import Message
from fusec.verify.static.binary import LibraryFacts
from fusec.verify.words import Finding, Run

# The worker ends a run at its time limit; only if it fails to, this much later the worker goes.
_GRACE = 3.0
_READING_LIMIT = 60.0
# Pairs of runs on a device, one with either poison.
_DEVICE_REPEATS = 3


@dataclass(frozen=True)
class RunResult:
    """What a guarded run found.

    Attributes:
        ok: Whether nothing went wrong; the values are still to be compared.
        stage: ``passed``, or where it ended: ``compile``, ``crash``, ``bounds``, ``timeout``
            or ``wrong``.
        reason: In plain words; empty where it passed.
        outputs: The ``out`` and ``inout`` tensors of the first run, in order of arguments.
        others: Outputs of further runs that differ from ``outputs`` in their last bits.
        line: The kernel line at fault, where known.
        seconds: Time of the kernel's first call.
        wall: Time of the whole run as the caller saw it.
        details: What the kernel printed, a traceback, addresses.
    """

    ok: bool
    stage: str
    reason: str
    outputs: tuple[torch.Tensor, ...] = ()
    others: tuple[tuple[torch.Tensor, ...], ...] = ()
    line: int | None = None
    seconds: float = 0.0
    wall: float = 0.0
    details: str = field(default="", repr=False)


def run_candidate(
    *,
    target: str,
    text: str,
    entry: str,
    signature: Signature,
    library: Path | None,
    tensors: Sequence[torch.Tensor],
    sizes: Sequence[int] = (),
    timeout: float = 5.0,
    busy: float | None = None,
    threads: int | None = None,
) -> RunResult:
    """Run a candidate in a worker on one set of inputs; see ``run_cases``."""
    return run_cases(
        target=target,
        text=text,
        entry=entry,
        signature=signature,
        library=library,
        cases=[Case(tuple(tensors), tuple(sizes))],
        timeout=timeout,
        busy=busy,
        threads=threads,
    )[0]


def run_cases(
    *,
    target: str,
    text: str,
    entry: str,
    signature: Signature,
    library: Path | None,
    cases: Sequence[Case],
    timeout: float = 5.0,
    threads: int | None = None,
    step: float | None = None,
    busy: float | None = None,
    chosen_worker: Worker | None = None,
    margin: int | None = None,
    sample: tuple[int, int] | None = None,
) -> list[RunResult]:
    """Run a candidate in a worker, on copies of the cases' tensors between red zones.

    One process runs them all, in order, until one fails.

    Args:
        target: The kernel's target.
        text: The kernel's text; a library only names it.
        entry: The symbol or function to call.
        signature: Names and roles of the tensors.
        library: The built library, where the target makes one.
        cases: What to run it on.
        timeout: Seconds that all runs on one case together may take.
        threads: The most threads to run with; torch's number, and at least two, by default.
        step: Seconds that one run may take; as ``timeout`` by default.
        busy: Seconds of processors that one run may use up, where the system says how many it
            does; any by default. Not for devices.
        chosen_worker: Who runs them on a device; the usual one by default.
        margin: Bytes round each operand on a device; many by default.
        sample: Of an interpreted kernel's programs no more than so many run, chosen by a seed.

    Returns:
        A result for each case up to the first that failed.

    Raises:
        WorkerError: The worker cannot be started.
    """
    device, chosen = _device(cases), find_target(target)
    many = 1 if device != CPU else threads or max(2, torch.get_num_threads())
    # One more than it was ever called with: what has room for so many threads has no more.
    more = many + 1 if device == CPU and threads is None else many
    plan = [(True, many), (False, more)]
    if device != CPU:
        # There the order of programs is another each time: races show where it happens to be.
        plan *= _DEVICE_REPEATS
    if chosen.threads and many > 1:
        plan.append((True, 1))
    layout = CaseLayout(signature, cases, runs=len(plan))
    body: Message = {
        "worker": chosen.worker,
        "entry": entry,
        "library": str(library) if library else "",
        "text": text if isinstance(chosen, PythonTarget) else "",
        "file": f"{entry}.py",
        "checks": signature.checks,
        "threads": more,
        "runs": plan,
        "timeout": timeout,
        "device": device,
        "cases": layout.described,
        "endure": None,
        "margin": margin,
        "sample": sample,
    }
    started = time.perf_counter()
    with layout.files(json.dumps(body).encode()) as (data_file, result_file, place):
        limit = timeout * len(cases)
        request: Message = {
            "do": "run",
            "modules": list(chosen.worker_imports) if device in chosen.interprets else [],
            "timeout": limit,
            "step": step or timeout,
            "busy": busy,
            "body": place,
        }
        # A device's worker says when each run is over.
        silent = limit if device == CPU else step or timeout
        reply = ask(device, request, (data_file, result_file), silent, chosen_worker)
        if "failed" in reply:
            raise WorkerError(reply["failed"])
        done = [report["done"] for report in reply["reports"] if "done" in report]
        results = []
        for index, outcome in enumerate(done):
            runs = layout.results(result_file, index, outcome["same"])
            finding = explain.compare_runs(signature, runs)
            results.append(_judged(finding, reply, runs, outcome["seconds"], device))
            if not results[-1].ok:
                break
    if len(done) < len(cases) and all(result.ok for result in results):
        finding = explain.finding(reply, signature, cases[len(done)].shapes)
        results.append(_judged(finding, reply, [], 0.0, device))
    wall = (time.perf_counter() - started) / len(results)
    return [replace(result, wall=wall) for result in results]


@dataclass(frozen=True)
class Endured:
    """What many calls in a row found.

    Attributes:
        result: Whether anything went wrong, as for a guarded run; its outputs are the last call's.
        calls: How many there were.
        times: Timings by name, ``candidate``, ``generated`` and ``copy``; None where nothing was
            timed.
        elsewhere: Outputs that differ from the result's in a bit, and how that call differed.
    """

    result: RunResult
    calls: int = 0
    times: Mapping[str, Timing] | None = None
    elsewhere: tuple[tuple[str, tuple[torch.Tensor, ...]], ...] = ()


@dataclass(frozen=True)
class KernelText:
    """A kernel as a worker takes it.

    Attributes:
        text: Its text, where that is what runs.
        library: Its library, where there is one.
    """

    text: str = ""
    library: Path | None = None

    def described(self) -> Message:
        """Return it for a request."""
        return {"text": self.text, "library": str(self.library) if self.library else ""}


def endure(
    *,
    target: str,
    entry: str,
    signature: Signature,
    text: str = "",
    library: Path | None,
    cases: Sequence[Case],
    timeout: float,
    busy: float | None = None,
    threads: int | None = None,
    generated: KernelText | None = None,
    seconds: float = 0.0,
    calls: int = 0,
    copied: int = 0,
    teams: Sequence[int] = (),
    gate: int | None = None,
) -> Endured:
    """Call a candidate many times in a worker, see what it leaves, and time it.

    Args:
        target: The kernel's target.
        entry: The function to call.
        signature: Names and roles of the tensors.
        text: The candidate's text, where that is what runs.
        library: Its library, where there is one.
        cases: What to call it on. After all other calls it gets those of the last one, which must
            be like the first, at the addresses of the first, then in ordinary memory, and then in
            many other places (``relocated``); these results are returned.
        timeout: Seconds that all of it may take.
        busy: Seconds of processors that some calls may use up; see ``run_cases``.
        threads: The threads to call it with.
        generated: The generated kernel, to time beside it; None to time nothing.
        seconds: For the timing.
        calls: How many calls there should be where they are timed, time allowing.
        copied: Bytes of the copy that is timed beside them; 0 for none.
        teams: Other numbers of threads to call it with once, where it has threads.
        gate: A pipe that gives a byte when it may be timed, and ends where it need not be; not
            for devices.

    Raises:
        WorkerError: The worker cannot be started.
    """
    chosen = find_target(target)
    device = _device(cases)
    many = 1 if device != CPU else threads or torch.get_num_threads()
    layout = CaseLayout(signature, cases, runs=2 + SHOWN)
    timing = {"seconds": seconds, "calls": calls, "copied": copied} if generated else None
    body: Message = {
        "worker": chosen.worker,
        "entry": entry,
        "library": str(library) if library else "",
        "text": text if isinstance(chosen, PythonTarget) else "",
        "file": f"{entry}.py",
        "checks": signature.checks,
        "threads": many,
        "runs": [],
        "timeout": timeout,
        "device": device,
        "cases": layout.described,
        "endure": {
            "generated": generated.described() if generated else None,
            "timing": timing,
            "teams": list(teams) if chosen.threads and device == CPU else [],
        },
    }
    with layout.files(json.dumps(body).encode()) as (data_file, result_file, place):
        request: Message = {
            "do": "run",
            "modules": [],
            "timeout": timeout,
            "step": timeout,
            "busy": busy,
            "body": place,
        }
        files = (data_file, result_file) if gate is None else (data_file, result_file, gate)
        reply = ask(device, request, files, timeout, device_timer())
        if "failed" in reply:
            raise WorkerError(reply["failed"])
        found = next((r["endured"] for r in reply["reports"] if "endured" in r), None)
        if found is None:
            finding = explain.finding(reply, signature, cases[0].shapes)
            return Endured(_judged(finding, reply, [], 0.0, device))
        labels = found.get("elsewhere", [])
        skipped = [False, found.get("same", True), *(i >= len(labels) for i in range(SHOWN))]
        runs = layout.results(result_file, len(cases) - 1, skipped)
        here = runs[: len(runs) - len(labels)]
        for run in here[1:]:
            run.differs = True
        result = _judged(None, reply, here, 0.0, device)
        elsewhere = [_moved(run, device) for run in runs[len(here) :]]
    times = found["timed"] and {k: Timing(**v) for k, v in found["timed"].items()}
    return Endured(result, found["calls"], times, tuple(zip(labels, elsewhere, strict=True)))


def read_library(library: Path) -> LibraryFacts:
    """Return what a library's file says of it; nothing loads it.

    Raises:
        WorkerError: It cannot be read, or the worker cannot be started.
    """
    request: Message = {"do": "read", "modules": [], "library": str(library)}
    reply = worker().ask(request, (), _READING_LIMIT)
    if "failed" in reply:
        raise WorkerError(reply["failed"])
    return LibraryFacts.read(reply["facts"])


def _device(cases: Sequence[Case]) -> str:
    devices = {str(tensor.device) for case in cases for tensor in case.tensors}
    if len(devices) > 1:
        raise ValueError(f"tensors on several devices: {', '.join(sorted(devices))}")
    return devices.pop() if devices else "cpu"


def ask(
    device: str,
    request: Message,
    files: tuple[int, ...],
    limit: float,
    chosen: Worker | None = None,
) -> Message:
    """Have the request answered; for a device's worker, take its silence for a time-out."""
    asked = chosen or device_worker()
    if device == CPU:
        # It ends a run at its limit by itself.
        return worker().ask(request, files, limit + _GRACE)
    try:
        reply = asked.ask(request, files, limit, retry=False)
        if any(r.get("result", {}).get("problem") == "device" for r in reply["reports"]):
            # The error has spoilt its context: it is on its way out.
            asked.close()
        return reply
    except NoAnswer as error:
        silent = {"phase": error.phase, "seconds": error.seconds or limit}
        return {"reports": [], "timeout": True, "status": 0, "log": "", **silent}
    except WorkerEnded as error:
        status = -int(signal.SIGABRT)
        log = str(error)
        return {"reports": [], "timeout": False, "status": status, "log": log, "seconds": 0.0}
    finally:
        if not asked.under:
            # Where it ended, the next one starts now rather than at the next check.
            asked.start()


def _judged(
    finding: Finding | None, reply: Message, runs: Sequence[Run], seconds: float, device: str
) -> RunResult:
    details = _details(finding, reply)
    if finding is not None and finding.stage != "passed":
        return RunResult(False, finding.stage, finding.reason, line=finding.line, details=details)
    return RunResult(
        True,
        "passed",
        "",
        outputs=_moved(runs[0], device) if runs else (),
        others=tuple(_moved(run, device) for run in runs[1:] if run.differs),
        seconds=seconds,
        details=details,
    )


def _moved(run: Run, device: str) -> tuple[torch.Tensor, ...]:
    if device == CPU:
        return run.outputs
    moved = []
    for output in run.outputs:
        there = torch.empty_strided(
            output.shape, output.stride(), dtype=output.dtype, device=device
        )
        moved.append(there.copy_(output))
    return tuple(moved)


def _details(finding: Finding | None, reply: Message) -> str:
    parts = [finding.details if finding else "", reply.get("log", "")]
    return "\n".join(part for part in parts if part)


_worker = Worker(
    "fusec.verify.isolation.worker",
    # A stray device context has no place in a process that forks, nor has a thread.
    {"CUDA_VISIBLE_DEVICES": "", "OPENBLAS_NUM_THREADS": "1"},
)
_device_worker = Worker(
    "fusec.verify.isolation.device_worker",
    # Every allocation its own: a step outside one is more likely to be seen.
    {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
)
# As the notebook itself: how long scratch memory takes to get is no part of a kernel's time.
_device_timer = Worker("fusec.verify.isolation.device_worker", {})
for _each in (_worker, _device_worker, _device_timer):
    atexit.register(_each.close)
    this_system().after_fork(_each.forget)


def worker() -> Worker:
    """Return this process's worker for the CPU."""
    return _worker


def device_worker() -> Worker:
    """Return this process's worker for CUDA devices."""
    return _device_worker


def device_timer() -> Worker:
    """Return this process's worker in which kernels are called many times on CUDA devices."""
    return _device_timer


def prestart(device: str = CPU) -> None:
    """Start the worker in the background, so that the first check need not wait for it.

    Cheap, returns at once, and may be called as often as one likes.
    """
    with contextlib.suppress(OSError, WorkerError):
        # That for the CPU also runs a kernel file's own Python, for any device.
        for each in (_worker,) if device == CPU else (_worker, _device_worker, _device_timer):
            each.start()
