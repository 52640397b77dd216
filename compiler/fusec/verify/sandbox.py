"""Run a candidate kernel where it can do no harm.

A candidate runs in a process forked for it from a clean worker (see ``worker``), on copies of
its inputs between untouchable memory, several times: with its arguments against their ends and
against their starts, with two different poisons in what it must write, and with one thread and
many.  Whatever it does there, the notebook's process only reads a report.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fusec.kernel import Argument, Signature, Target
from fusec.verify import explain
from fusec.verify.explain import Finding, Run
from fusec.verify.protocol import Message, receive, send

# The worker ends a run at its time limit; only if it fails to, this much later the worker goes.
_GRACE = 3.0
_START_LIMIT = 60.0
_ALIGN = mmap.PAGESIZE


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
    """Run a candidate in a worker, on copies of ``tensors`` between red zones.

    Args:
        target: ``cpp`` or ``triton``.
        text: The kernel's text; Triton executes it, C++ only names it.
        entry: The symbol or function to call.
        signature: Names and roles of the tensors.
        library: The built library of a C++ kernel.
        tensors: One for every argument; none is changed. Those of ``out`` arguments tell
            shape and strides only.
        sizes: Values of the symbolic sizes.
        timeout: Seconds that all runs together may take.
        threads: The most threads to run with; torch's number, and at least two, by default.

    Raises:
        WorkerError: The worker cannot be started.
    """
    many = threads or max(2, torch.get_num_threads())
    plan = [(True, many), (False, many)]
    if target == "cpp" and many > 1:
        plan.append((True, 1))
    layout = Layout.of(signature.arguments, tensors, runs=len(plan))
    request: Message = {
        "do": "run",
        "target": target,
        "entry": entry,
        "library": str(library) if library else "",
        "file": f"{entry}.py",
        "sizes": [int(size) for size in sizes],
        "threads": [count for _, count in plan],
        "runs": plan,
        "timeout": timeout,
        **layout.message,
    }
    started = time.perf_counter()
    with layout.files(tensors, text) as (data_file, result_file):
        reply = worker().ask(request, (data_file, result_file), timeout + _GRACE)
        if "failed" in reply:
            raise WorkerError(reply["failed"])
        finding = explain.finding(reply, signature, layout.shapes)
        runs = layout.results(result_file) if finding is None else []
    seconds = time.perf_counter() - started
    if finding is None:
        finding = explain.compare_runs(signature, runs)
    details = _details(finding, reply)
    if finding is not None and finding.stage != "passed":
        return RunResult(
            False,
            finding.stage,
            finding.reason,
            line=finding.line,
            wall=seconds,
            details=details,
        )
    result = next(r["result"] for r in reply["reports"] if "result" in r)
    return RunResult(
        True,
        "passed",
        "",
        outputs=runs[0].outputs,
        others=tuple(run.outputs for run in runs[1:] if run.differs),
        seconds=float(result["seconds"][0]),
        wall=seconds,
        details=details,
    )


def _details(finding: Finding | None, reply: Message) -> str:
    parts = [finding.details if finding else "", reply.get("log", "")]
    return "\n".join(part for part in parts if part)


@dataclass(frozen=True)
class Layout:
    """Where the tensors' bytes lie in the two memory files.

    Attributes:
        message: The part of the request that describes it.
        shapes: The tensors' shapes.
        templates: Index of the argument, dtype, shape, strides and place of each result.
        size: Bytes of one run's results, whole pages.
        runs: How many runs there are results of.
    """

    message: Message
    shapes: tuple[tuple[int, ...], ...]
    templates: tuple[tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...], int], ...]
    size: int
    runs: int

    @classmethod
    def of(
        cls, arguments: Sequence[Argument], tensors: Sequence[torch.Tensor], *, runs: int
    ) -> Layout:
        """Plan for ``tensors``."""
        if len(arguments) != len(tensors):
            raise ValueError(f"{len(arguments)} arguments, but {len(tensors)} tensors")
        described: list[Message] = []
        templates = []
        at = results = 0
        for index, (argument, tensor) in enumerate(zip(arguments, tensors, strict=True)):
            shape, strides = tuple(tensor.shape), tuple(tensor.stride())
            nbytes = extent(tensor) * tensor.element_size()
            result = -1
            if argument.role != "in":
                result = results
                templates.append((index, tensor.dtype, shape, strides, result))
                results += _up(nbytes)
            described.append(
                {
                    "name": argument.name,
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "kind": explain.kind(tensor.dtype),
                    "itemsize": tensor.element_size(),
                    "shape": shape,
                    "strides": strides,
                    "role": argument.role,
                    "offset": at,
                    "nbytes": nbytes,
                    "result": result,
                }
            )
            if argument.role != "out":
                at += _up(nbytes)
        message = {"arguments": described, "data": at, "results": _pages(results)}
        shapes = tuple(tuple(t.shape) for t in tensors)
        return cls(message, shapes, tuple(templates), _pages(results), runs)

    @contextlib.contextmanager
    def files(self, tensors: Sequence[torch.Tensor], text: str) -> Iterator[tuple[int, int]]:
        """Make the two files, with the tensors' bytes and the text in the first."""
        raw = text.encode()
        start = self.message["data"]
        self.message["text"] = (start, len(raw))
        self.message["data"] = start + len(raw)
        data_file = os.memfd_create("fusec-data", os.MFD_CLOEXEC)
        result_file = os.memfd_create("fusec-results", os.MFD_CLOEXEC)
        try:
            os.ftruncate(data_file, max(start + len(raw), 1))
            os.ftruncate(result_file, self.size * self.runs)
            if start:
                data = mmap.mmap(data_file, start)
                for described, tensor in zip(self.message["arguments"], tensors, strict=True):
                    if described["role"] != "out" and described["nbytes"]:
                        _copy_bytes(data, described["offset"], tensor)
            os.pwrite(data_file, raw, start)
            yield data_file, result_file
        finally:
            os.close(data_file)
            os.close(result_file)

    def results(self, result_file: int) -> list[Run]:
        """Return the tensors that each run wrote; they stay valid after the file is closed."""
        found: list[Run] = []
        content = mmap.mmap(result_file, self.size * self.runs) if self.size else None
        for run in range(self.runs):
            outputs = []
            for _, dtype, shape, strides, offset in self.templates:
                length = span(shape, strides)
                if length == 0 or content is None:
                    outputs.append(torch.empty_strided(shape, strides, dtype=dtype))
                    continue
                flat = torch.frombuffer(
                    content, dtype=dtype, count=length, offset=run * self.size + offset
                )
                outputs.append(flat.as_strided(shape, strides))
            found.append(Run(run, tuple(outputs)))
        return found


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the elements from the first to the last of a strided tensor, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def extent(tensor: torch.Tensor) -> int:
    """Return ``span`` of a tensor."""
    return span(tensor.shape, tensor.stride())


def _copy_bytes(data: mmap.mmap, offset: int, tensor: torch.Tensor) -> None:
    plain = tensor.detach().resolve_conj().resolve_neg()
    flat = plain.as_strided((extent(plain),), (1,))
    place = torch.frombuffer(data, dtype=plain.dtype, count=flat.numel(), offset=offset)
    place.copy_(flat)


def _up(size: int) -> int:
    # Far enough apart that every dtype is aligned.
    return -(-size // 64) * 64


def _pages(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


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
            "TRITON_INTERPRET": "1",
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
            self._sock.close()
        if self._process is not None:
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
    """Start the worker in the background, so that the first check need not wait for it."""
    with contextlib.suppress(OSError):
        _worker.start()
