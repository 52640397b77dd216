"""The worker processes, seen from the process that asks them."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from fusec.systems import NotHere, this_system
from fusec.verify.protocol import Message, receive, send

_START_LIMIT = 180.0  # it imports torch, which a machine with much else to do lets wait
_END_LIMIT = 1.0
_STOP_LIMIT = 0.1
_LATE_END_LIMIT = 15.0  # of a process under another one, which has a summary to write
_PRINTED = 1 << 20


def _folder() -> str | None:
    """Return where a worker runs: here, or, where that folder was deleted, in one that is there.

    Libraries look for it when they are loaded, and MKL ends a process that has none.
    """
    try:
        os.getcwd()
    except OSError:
        return os.sep
    return None


class WorkerError(RuntimeError):
    """The worker process itself does not start or died; a candidate's failure is no such error."""


class NoAnswer(WorkerError):
    """The worker did not answer in time; it has been ended.

    Attributes:
        phase: What it said last that it was at: ``compile``; empty if nothing.
        seconds: How long it was silent.
    """

    def __init__(self, words: str, phase: str = "", seconds: float = 0.0) -> None:
        super().__init__(words)
        self.phase = phase
        self.seconds = seconds


class WorkerEnded(WorkerError):
    """The worker ended over a request."""


class Worker:
    """A long-lived process that runs candidates, and the conversation with it.

    Attributes:
        module: What the process runs; it takes its socket's descriptor as its argument.
        environment: What its environment has that this process's has not.
        under: The program that it runs under, with its options; nothing for none.
    """

    def __init__(
        self, module: str, environment: Mapping[str, str], under: Sequence[str] = ()
    ) -> None:
        self.module = module
        self.under = under
        self.environment = environment
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._ready = False
        self._errors: int | None = None
        self._said = ""

    def start(self) -> None:
        """Start the process if it does not run; returns at once, before it is ready."""
        # Where somebody holds the lock, it is about to run or runs.
        if self._lock.acquire(blocking=False):
            try:
                self._start()
            finally:
                self._lock.release()

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._close()
        system = this_system()
        try:
            mine, theirs = system.message_pair()
        except NotHere as error:
            raise WorkerError(str(error)) from None
        package = str(Path(__file__).resolve().parents[3])
        paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            **self.environment,
        }
        self._errors = system.memory_file("fusec-worker-errors")
        with theirs:
            self._process = subprocess.Popen(
                [
                    *self.under,
                    sys.executable,
                    "-P",
                    "-W",
                    "ignore",
                    "-m",
                    self.module,
                    str(theirs.fileno()),
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env=environment,
                cwd=_folder(),
                **system.detached(),
            )
        self._sock = mine
        self._ready = False

    def ask(
        self,
        request: Message,
        descriptors: tuple[int, ...],
        timeout: float,
        *,
        retry: bool = True,
    ) -> Message:
        """Send a request and return the answer.

        Args:
            request: What to do.
            descriptors: Files that go with it.
            timeout: Seconds to wait, once the process is ready; a process that says what it is
                at may ask for more, and has this much again afterwards.
            retry: Whether to ask a new process where this one ends over the request.

        Raises:
            NoAnswer: There was none in time.
            WorkerEnded: The process ended over this request.
            WorkerError: It does not start.
        """
        with self._lock:
            try:
                for attempt in range(2):
                    self._start()
                    sent = False
                    try:
                        self._wait_ready()
                        assert self._sock is not None
                        send(self._sock, request, descriptors)
                        sent = True
                        return self._receive(timeout)
                    except (OSError, WorkerError):
                        # Something outside ended it, such as the system's memory killer.
                        self._close()
                        if attempt or (sent and not retry):
                            raise
                raise AssertionError("unreachable")
            except BaseException:
                # Also for an interrupt: an answer that arrives later must find no reader, and who
                # pressed Stop does not wait until the process has seen it.
                self._close(_STOP_LIMIT)
                raise

    def _wait_ready(self) -> None:
        if not self._ready:
            try:
                self._receive(_START_LIMIT)
            except WorkerEnded as error:
                raise WorkerError(str(error)) from None
            self._ready = True

    def _receive(self, timeout: float) -> Message:
        assert self._sock is not None
        limit, phase = timeout, ""
        while True:
            ready, _, _ = select.select([self._sock], [], [], limit)
            if not ready:
                words = f"the checking process gave no answer in {limit:.0f} s"
                raise NoAnswer(words, phase, limit)
            message, _ = receive(self._sock)
            if message is None:
                raise WorkerEnded(f"the checking process ended: {self._last_words()}")
            told = message.get("phase")
            if told is None:
                return message
            phase, limit = told, max(timeout, message["seconds"])

    def _last_words(self) -> str:
        if self._errors is None:
            return ""
        size = os.fstat(self._errors).st_size
        text = os.pread(self._errors, 2000, max(0, size - 2000)).decode(errors="replace")
        return text.strip().rpartition("\n")[2]

    def end(self) -> str:
        """End the process; return what it and what it runs under have printed, of all its starts.

        What it runs under may say nothing before it is over.
        """
        self.close()
        return self._said

    @property
    def pid(self) -> int | None:
        """The process's id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def close(self) -> None:
        """End the process and what it started."""
        # At exit another thread may still wait for an answer: then the process has to go all
        # the same.
        held = self._lock.acquire(timeout=_END_LIMIT)
        try:
            self._close()
        finally:
            if held:
                self._lock.release()

    def forget(self) -> None:
        """In a fork of this process: let go of the worker, which stays the parent's."""
        self._lock = threading.Lock()
        if self._sock is not None:
            # Or the worker would not see the parent's end.
            self._sock.close()
        if self._errors is not None:
            os.close(self._errors)
        self._process = self._sock = self._errors = None
        self._ready = False

    def _close(self, patience: float | None = None) -> None:
        if patience is None:
            patience = _LATE_END_LIMIT if self.under else _END_LIMIT
        if self._sock is not None:
            # It sees this at once, ends its children and itself.
            self._sock.close()
        if self._process is not None:
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                # Its children follow: each asked to be killed when it goes.
                this_system().end_tree(self._process)
                self._process.wait()
        if self._errors is not None:
            if self.under:
                self._said += os.pread(self._errors, _PRINTED, 0).decode(errors="replace")
            os.close(self._errors)
        self._process = self._sock = self._errors = None
        self._ready = False
