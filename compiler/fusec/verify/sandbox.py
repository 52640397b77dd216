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
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fusec.kernel import Signature, Target
from fusec.verify import explain
from fusec.verify.explain import Finding, Run
from fusec.verify.layout import Case, Layout
from fusec.verify.protocol import Message, receive, send

# The worker ends a run at its time limit; only if it fails to, this much later the worker goes.
_GRACE = 3.0
_START_LIMIT = 60.0
_END_LIMIT = 1.0
# What the interpreter needs, lazily imported parts included: those fail while it is active.
_TRITON_MODULES = [
    "triton.experimental.gluon",
    "triton.runtime.interpreter",
    "fusec.runtime.triton_interpret",
]


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


class WorkerError(RuntimeError):
    """The worker process itself does not start or died; a candidate's failure is no such error."""


def run_candidate(
    *,
    target: Target,
    text: str,
    entry: str,
    signature: Signature,
    library: Path | None,
    tensors: Sequence[torch.Tensor],
    sizes: Sequence[int] = (),
    timeout: float = 5.0,
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
        threads=threads,
    )[0]


def run_cases(
    *,
    target: Target,
    text: str,
    entry: str,
    signature: Signature,
    library: Path | None,
    cases: Sequence[Case],
    timeout: float = 5.0,
    threads: int | None = None,
) -> list[RunResult]:
    """Run a candidate in a worker, on copies of the cases' tensors between red zones.

    One process runs them all, in order, until one fails.

    Args:
        target: ``cpp`` or ``triton``.
        text: The kernel's text; Triton executes it, C++ only names it.
        entry: The symbol or function to call.
        signature: Names and roles of the tensors.
        library: The built library of a C++ kernel.
        cases: What to run it on.
        timeout: Seconds that all runs on one case together may take.
        threads: The most threads to run with; torch's number, and at least two, by default.

    Returns:
        A result for each case up to the first that failed.

    Raises:
        WorkerError: The worker cannot be started.
    """
    many = threads or max(2, torch.get_num_threads())
    plan = [(True, many), (False, many)]
    if target == "cpp" and many > 1:
        plan.append((True, 1))
    layout = Layout(signature.arguments, cases, runs=len(plan))
    body: Message = {
        "target": target,
        "entry": entry,
        "library": str(library) if library else "",
        "text": text if target == "triton" else "",
        "file": f"{entry}.py",
        "checks": signature.checks,
        "threads": many,
        "runs": plan,
        "timeout": timeout,
        "cases": layout.described,
    }
    started = time.perf_counter()
    with layout.files(json.dumps(body).encode()) as (data_file, result_file, place):
        limit = timeout * len(cases)
        request: Message = {
            "do": "run",
            "modules": _TRITON_MODULES if target == "triton" else [],
            "timeout": limit,
            "body": place,
        }
        reply = worker().ask(request, (data_file, result_file), limit + _GRACE)
        if "failed" in reply:
            raise WorkerError(reply["failed"])
        done = [report["done"] for report in reply["reports"] if "done" in report]
        results = []
        for index, outcome in enumerate(done):
            runs = layout.results(result_file, index, outcome["same"])
            finding = explain.compare_runs(signature, runs)
            results.append(_judged(finding, reply, runs, outcome["seconds"]))
            if not results[-1].ok:
                break
    if len(done) < len(cases) and all(result.ok for result in results):
        finding = explain.finding(reply, signature, cases[len(done)].shapes)
        results.append(_judged(finding, reply, [], 0.0))
    wall = (time.perf_counter() - started) / len(results)
    return [replace(result, wall=wall) for result in results]


def _judged(
    finding: Finding | None, reply: Message, runs: Sequence[Run], seconds: float
) -> RunResult:
    details = _details(finding, reply)
    if finding is not None and finding.stage != "passed":
        return RunResult(False, finding.stage, finding.reason, line=finding.line, details=details)
    return RunResult(
        True,
        "passed",
        "",
        outputs=runs[0].outputs,
        others=tuple(run.outputs for run in runs[1:] if run.differs),
        seconds=seconds,
        details=details,
    )


def _details(finding: Finding | None, reply: Message) -> str:
    parts = [finding.details if finding else "", reply.get("log", "")]
    return "\n".join(part for part in parts if part)


class Worker:
    """The long-lived clean process, and the conversation with it."""

    def __init__(self, module: str = "fusec.verify.worker") -> None:
        self.module = module
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._owner = 0
        self._ready = False
        self._errors: int | None = None

    def start(self) -> None:
        """Start the process if it does not run; returns before it is ready."""
        with self._lock:
            self._start()

    def _start(self) -> None:
        if self._owner not in (0, os.getpid()):
            # This is a fork of the process that the worker belongs to.
            self._process = self._sock = self._errors = None
        if self._process is not None and self._process.poll() is None:
            return
        self._close()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        package = str(Path(__file__).resolve().parents[2])
        paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "OPENBLAS_NUM_THREADS": "1",
            # A stray device context has no place in a process that forks.
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._errors = os.memfd_create("fusec-worker-errors", os.MFD_CLOEXEC)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", self.module, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env=environment,
                start_new_session=True,
            )
        self._sock = mine
        self._owner = os.getpid()
        self._ready = False

    def ask(self, request: Message, descriptors: tuple[int, ...], timeout: float) -> Message:
        """Send a request and return the answer.

        Raises:
            WorkerError: The worker does not start, or died twice over this request.
        """
        with self._lock:
            try:
                for attempt in range(2):
                    self._start()
                    try:
                        self._wait_ready()
                        assert self._sock is not None
                        send(self._sock, request, descriptors)
                        return self._receive(timeout)
                    except (OSError, WorkerError):
                        # Something outside ended it, such as the system's memory killer.
                        self._close()
                        if attempt:
                            raise
                raise AssertionError("unreachable")
            except BaseException:
                # Also for an interrupt: an answer that arrives later must find no reader.
                self._close()
                raise

    def _wait_ready(self) -> None:
        if not self._ready:
            self._receive(_START_LIMIT)
            self._ready = True

    def _receive(self, timeout: float) -> Message:
        assert self._sock is not None
        ready, _, _ = select.select([self._sock], [], [], timeout)
        if not ready:
            raise WorkerError(f"the checking process gave no answer in {timeout:.0f} s")
        message, _ = receive(self._sock)
        if message is None:
            raise WorkerError(f"the checking process ended: {self._last_words()}")
        return message

    def _last_words(self) -> str:
        if self._errors is None:
            return ""
        size = os.fstat(self._errors).st_size
        text = os.pread(self._errors, 2000, max(0, size - 2000)).decode(errors="replace")
        return text.strip().rpartition("\n")[2]

    @property
    def pid(self) -> int | None:
        """The process's id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def close(self) -> None:
        """End the process and what it started."""
        if self._owner == os.getpid():
            with self._lock:
                self._close()

    def _close(self) -> None:
        if self._sock is not None:
            # It sees this at once, ends its children and itself.
            self._sock.close()
        if self._process is not None:
            try:
                self._process.wait(_END_LIMIT)
            except subprocess.TimeoutExpired:
                # Its children follow: each asked to be killed when it goes.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        if self._errors is not None:
            os.close(self._errors)
        self._process = self._sock = self._errors = None
        self._ready = False


_worker = Worker()
atexit.register(_worker.close)


def worker() -> Worker:
    """Return this process's worker."""
    return _worker


def prestart() -> None:
    """Start the worker in the background, so that the first check need not wait for it.

    Cheap, returns at once, and may be called as often as one likes.
    """
    with contextlib.suppress(OSError):
        _worker.start()
