"""The compilers that are running, so that they can be ended."""

from __future__ import annotations

import contextvars
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from fusec.systems import this_system
from fusec.toolchain.listen import end, start

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Children:
    """The compilers that a build has running, so that an interrupt can end them all."""

    stopped: bool = False
    running: set[subprocess.Popen[str]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(
        self,
        command: Sequence[str],
        folder: str,
        environment: Mapping[str, str] | None = None,
        processor: int = 0,
    ) -> subprocess.Popen[str]:
        """Start a compiler in a process group of its own, with its scratch files in ``folder``.

        ``processor`` is the seconds of one that each of its processes may take, 0 for any number.
        """
        with self.lock:
            if self.stopped:
                raise KeyboardInterrupt
            here = {**os.environ, "LC_ALL": "C", "TMPDIR": folder, **(environment or {})}
            process = start(command, folder, here, processor=processor)
            self.running.add(process)
        this_system().follow_priority(process.pid)
        return process

    def finish(self, process: subprocess.Popen[str]) -> None:
        """End a compiler if it still runs, with what it started, and forget it."""
        with self.lock:
            self.running.discard(process)
        end(process)

    def stop(self) -> None:
        """End every compiler and let no further one start."""
        with self.lock:
            self.stopped = True
            for process in self.running:
                this_system().end_tree(process)


_given: ContextVar[Children | None] = ContextVar("fusec-children", default=None)


def given_children() -> Children | None:
    """Return who has the compilers that this thread starts; None where nobody asked for them."""
    return _given.get()


def with_children(children: Children, job: Callable[P, T]) -> Callable[P, T]:
    """Return a job for another thread, whose compilers ``children`` has, so that they can be ended.

    Interrupts reach the main thread alone, which waits for the other one's.
    """
    context = contextvars.copy_context()
    context.run(_given.set, children)

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return context.run(job, *args, **kwargs)

    return run


__all__ = ["Children", "given_children", "with_children"]
