"""What the checking processes ask of Linux: limits, orphans, and what is left of a candidate."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import time
from collections.abc import Collection
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# What it prints goes to a memory file of this size at most.
OUTPUT_LIMIT = 1 << 20
# Beyond what this user runs already, and the candidate's own threads.
_MORE_TASKS = 64
# Processes that a candidate has left are killed as long as there are some, but not for ever.
_PATIENCE = 2.0

_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent() -> None:
    """Have this process killed when its parent goes."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def adopt_orphans() -> None:
    """Let what descendants leave behind become children of this process, not of the system."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_orphans(keep: Collection[int]) -> int:
    """Kill and reap every child but those to ``keep``, and theirs; return how many there were.

    Whoever forks while it is being killed leaves another orphan, which is found the next time.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + _PATIENCE
    while left := [pid for pid in children() if pid not in keep]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        ended.update(left)
        if time.monotonic() > deadline:
            break
    return len(ended)


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


def restrict(*, seconds: int, memory: int, threads: int) -> None:
    """Set the limits that hold whatever a candidate does.

    Args:
        seconds: Of the processor, of all its threads together.
        memory: Bytes of address space beyond what this process has.
        threads: How many it may start.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    with open("/proc/self/statm") as statm:
        limit = int(statm.read().split()[0]) * mmap.PAGESIZE + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT_LIMIT, OUTPUT_LIMIT))
    tasks = _tasks_of_user() + threads + _MORE_TASKS
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if hard == resource.RLIM_INFINITY or tasks < hard:
        resource.setrlimit(resource.RLIMIT_NPROC, (tasks, tasks))
    # An ordinary ^C is the notebook's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _tasks_of_user() -> int:
    """Return how many threads this user runs: the limit counts them all."""
    me, total = os.getuid(), 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == me:
                total += os.stat(f"/proc/{name}/task").st_nlink - 2
    return total


__all__ = [
    "OUTPUT_LIMIT",
    "adopt_orphans",
    "children",
    "end_orphans",
    "end_with_parent",
    "restrict",
]
