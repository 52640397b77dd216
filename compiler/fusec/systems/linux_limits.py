"""What the processes that run candidates ask of Linux: orphans, and how many tasks there may be."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from pathlib import Path

_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
# Beyond what this user runs already, and the candidate's own threads.
_MORE_TASKS = 64
# Processes that a candidate has left are killed as long as there are some, but not for ever.
_PATIENCE = 2.0


def adopt_orphans() -> None:
    """Let what descendants leave behind become children of this process, not of the system."""
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1)


def end_orphans() -> None:
    """Kill and reap every child, and theirs.

    Whoever forks while it is being killed leaves another orphan, which is found the next time.
    """
    deadline = time.monotonic() + _PATIENCE
    while left := children():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if time.monotonic() > deadline:
            break


def children() -> list[int]:
    """Return the processes that are this one's children, the dead ones that nobody reaped too."""
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            found += Path(f"/proc/self/task/{task}/children").read_text().split()
        return [int(pid) for pid in found]
    me = str(os.getpid())  # a Linux that has no such file
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if fields[1] == me:
                found.append(name)
    return [int(pid) for pid in found]


def limit_tasks(threads: int) -> None:
    """Limit how many processes and threads this one may start.

    Args:
        threads: How many it needs.
    """
    tasks = _tasks_of_user() + threads + _MORE_TASKS
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if hard == resource.RLIM_INFINITY or tasks < hard:
        resource.setrlimit(resource.RLIMIT_NPROC, (tasks, tasks))


def _tasks_of_user() -> int:
    """Return how many threads this user runs: the limit counts them all."""
    me, total = os.getuid(), 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == me:
                total += os.stat(f"/proc/{name}/task").st_nlink - 2
    return total


__all__ = ["adopt_orphans", "children", "end_orphans", "limit_tasks"]
