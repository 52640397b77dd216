"""Triton kernels compiled side by side, by processes, while a graph is still being compiled.

Triton compiles in Python, one kernel at a time, 0.2 to 0.4 s each, when a kernel is first started.
Here worker processes compile what the emitter has written into Triton's own cache, where the first
start finds it; a start waits for its kernel, if that is under way. Processes are started as soon as
somebody is about to compile for a GPU, and end by themselves when they are idle.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from fusec.devices import is_gpu
from fusec.kernel_source import Signature
from fusec.systems import this_system
from fusec.targets.triton.toolchain import worker as triton_worker
from fusec.targets.triton.toolchain.load import is_kept, load
from fusec.targets.triton.toolchain.starts import record_starts, source_of

_log = logging.getLogger(__name__)
_MOST = 16  # processes; each takes 80 MB and more while it compiles
_PATIENCE = 120.0  # seconds that a start waits before it compiles by itself
_WORKERS = "FUSEC_TRITON_WORKERS"


class Workers:
    """The processes.

    Args:
        count: How many there are at most.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.process = os.getpid()
        self._idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(count, "fusec-triton")

    def start(self) -> None:
        """Start them, and what this process needs of Triton; returns at once."""
        for _ in range(self.count):
            self._threads.submit(lambda: self._idle.put(_start()))
        self._threads.submit(_prepare_triton)

    def submit(self, request: dict[str, Any]) -> Future[str]:
        """Have a request answered; see ``triton_worker``."""
        return self._threads.submit(self._ask, json.dumps(request))

    def close(self) -> None:
        """End them all; what waits is not done."""
        self._threads.shutdown(cancel_futures=True)
        with contextlib.suppress(queue.Empty):
            while True:
                _end(self._idle.get_nowait())

    def _ask(self, line: str) -> str:
        for _ in range(2):
            try:
                worker = self._take()
            except OSError as error:
                return f"no process starts: {error}"
            assert worker.stdin is not None
            assert worker.stdout is not None
            with contextlib.suppress(OSError):
                worker.stdin.write(line + "\n")
                worker.stdin.flush()
                answer = worker.stdout.readline()
                if answer:
                    self._idle.put(worker)
                    return answer.strip()
            _end(worker)
        return "the process ended"

    def _take(self) -> subprocess.Popen[str]:
        with contextlib.suppress(queue.Empty):
            while True:
                worker = self._idle.get_nowait()
                if worker.poll() is None:
                    return worker
                _end(worker)  # it had been idle for too long
        return _start()


def _prepare_triton() -> None:
    """Have Triton do what it does once a process, most of it without holding up other threads."""
    with contextlib.suppress(Exception):  # it is tried again where it is needed
        from triton.runtime import driver
        from triton.runtime.cache import triton_key

        triton_key()  # a hash of all its files
        driver.active.get_current_target()  # its binding to the driver is built by a C compiler
        import triton.experimental.gluon.nvidia.hopper  # noqa: F401  (by the first start)


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", triton_worker.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        **this_system().detached(),  # an interrupt in the terminal is not for it
    )


def _end(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.wait()
    for stream in (worker.stdin, worker.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


# -- this process's -----------------------------------------------------------------------

_lock = threading.Lock()
_workers: Workers | None = None
_under_way: dict[str, tuple[Future[str], ...]] = {}  # by the path of a kernel file


def start() -> None:
    """Start the processes, once, if there are to be any: Triton runs on the GPU of this machine."""
    _current()


def _current() -> Workers | None:
    global _workers
    count = worker_count()
    if not count:
        return None
    with _lock:
        if _workers is None or _workers.process != os.getpid():
            _under_way.clear()
            _workers = Workers(count)
            _workers.start()
        return _workers


def worker_count() -> int:
    """Return how many processes there are to be: ``FUSEC_TRITON_WORKERS``, or by the processors."""
    given = os.environ.get(_WORKERS, "")
    if given.isdigit():
        return int(given)
    return min(_MOST, this_system().processors() - 1)


def prepare(text: str, signature: Signature, entry: str) -> None:
    """Begin to compile a kernel file for the current GPU; returns at once.

    Nothing happens where that cannot be known to help: kernels that take sizes are compiled for
    what these are at the first start, and those of earlier processes are in Triton's cache.

    Args:
        text: The kernel file.
        signature: What it takes.
        entry: The function that starts its kernels.
    """
    if signature.sizes or not any(is_gpu(a.device) for a in signature.arguments):
        return
    if not torch.cuda.is_available() or is_kept(text):
        return
    _submit(text, signature, entry)


def compile_now(text: str, signature: Signature, entry: str) -> None:
    """Have a worker compile a kernel file for the current GPU, and wait for it.

    Whatever goes wrong is said by the first start, which then compiles by itself.

    Args:
        text: The kernel file; it takes no sizes.
        signature: What it takes.
        entry: The function that starts its kernels.
    """
    path = _submit(text, signature, entry)
    if path:
        wait(path)


def _submit(text: str, signature: Signature, entry: str) -> str:
    """Begin to compile a kernel file, unless that is under way; return its path, if known."""
    workers = _current()
    if workers is None:
        return ""
    try:
        path, request = request_for(text, signature, entry)
    except Exception as error:  # the build will say it
        _log.debug("not compiled ahead: %s", error)
        return ""
    with _lock:
        if path not in _under_way and request is not None:
            # A reduction may have three kernels; each is compiled by whoever is free.
            each = [{**request, "starts": [start_]} for start_ in request["starts"]]
            _under_way[path] = tuple(workers.submit(one) for one in each)
    return path


def wait(path: str) -> None:
    """Wait until a kernel file is compiled, if that is under way."""
    with _lock:
        jobs = _under_way.get(path, ())
    for job in jobs:
        answer = _answer(job)
        if answer != "done":
            _log.debug("%s: %s", path, answer)


def _answer(job: Future[str]) -> str:
    try:
        return job.result(_PATIENCE)
    except (CancelledError, TimeoutError) as error:
        return f"{type(error).__name__} {error}"


def request_for(
    text: str, signature: Signature, entry: str, target: Callable[[], Any] | None = None
) -> tuple[str, dict[str, Any] | None]:
    """Return the path of a kernel file and what to ask a worker; None for what it cannot be told.

    Args:
        text: The kernel file.
        signature: What it takes.
        entry: The function that starts its kernels.
        target: Returns Triton's description of the GPU; that of the current one by default.
    """
    from triton.runtime import driver

    namespace, path = load(text)
    starts = []
    for start_ in record_starts(namespace, signature, entry):
        described = _described(*source_of(start_))
        if described is None:
            return path, None
        starts.append(described)
    found = target() if target is not None else driver.active.get_current_target()
    return path, _request(path, found, starts)


def compile_source(
    source: Any, options: dict[str, Any], target: Any, needs: dict[str, Any] | None = None
) -> None:
    """Have a worker compile one of Triton's sources, and wait for it; no harm if it fails.

    Args:
        source: An ``ASTSource`` of a function in a kernel file.
        options: Triton's.
        target: Triton's description of the GPU.
        needs: Functions of other kernel files that the file names but does not define.
    """
    workers = _current()
    described = _described(source, options)
    if workers is None or described is None:
        return
    request = _request(_file_of(source.fn), target, [described])
    request["needs"] = {n: [_file_of(f), f.__name__] for n, f in (needs or {}).items()}
    answer = _answer(workers.submit(request))
    if answer != "done":
        _log.debug("%s: %s", source.fn.__name__, answer)


def _file_of(function: Any) -> str:
    return str(function.fn.__code__.co_filename)


def _described(source: Any, options: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a worker is told of a source; None if it has constants that cannot be told."""
    constants = [[place[0], value] for place, value in source.constants.items()]
    if not all(isinstance(v, (bool, int, float, str, type(None))) for _, v in constants):
        return None
    return {
        "function": source.fn.__name__,
        "signature": source.signature,
        "constants": constants,
        "attributes": [[place[0], given] for place, given in source.attrs.items()],
        "options": options,
    }


def _request(path: str, target: Any, starts: list[dict[str, Any]]) -> dict[str, Any]:
    from triton import knobs

    cache = str(Path(knobs.cache.dir)) if knobs.cache.dir else None
    described = [target.backend, target.arch, target.warp_size]
    return {"cache": cache, "path": path, "target": described, "starts": starts}


__all__ = [
    "Workers",
    "compile_now",
    "compile_source",
    "prepare",
    "request_for",
    "start",
    "wait",
    "worker_count",
]
