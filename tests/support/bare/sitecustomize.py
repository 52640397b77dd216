"""Take from a Python on Linux what other systems lack: Python imports this file as it starts.

``FUSEC_BARE=posix`` leaves what Linux and macOS share, ``FUSEC_BARE=plain`` what every system has.
Triton is not installed, ``/proc`` does not exist for the project's code, the rest is gone for
everybody.  The processes that a process starts have it too, where this folder is on PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.metadata
import os
import select
import socket
import sys

LINUX = {
    os: ("memfd_create", "sched_getaffinity", "sched_setaffinity", "pidfd_open", "eventfd"),
    socket: ("SOCK_SEQPACKET", "MSG_CMSG_CLOEXEC"),
    select: ("epoll",),
}
POSIX = {os: ("fork", "geteuid", "killpg", "setsid", "setpgid", "sysconf", "getpriority")}
MODULES = {"fcntl", "resource", "pwd", "grp", "termios"}


def is_ours(file: str) -> bool:
    """Whether a file is the project's, other than where systems differ."""
    return "/fuselab/" in file or ("/fusec/" in file and "/fusec/systems/" not in file)


_FIND = importlib.machinery.PathFinder.find_spec


def find_spec(cls: type, name: str, *where: object) -> importlib.machinery.ModuleSpec | None:
    """Find a module as ever; Triton is nowhere."""
    return None if name.partition(".")[0] == "triton" else _FIND(name, *where)  # type: ignore[arg-type]


def audit(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse what the project's own files open and import."""
    if event == "open":
        forbidden = str(arguments[0]).startswith(("/proc", "/sys/"))
    elif event == "import":
        forbidden = os.environ["FUSEC_BARE"] == "plain" and arguments[0] in MODULES
    else:
        return
    if forbidden:
        frame = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None and is_ours(frame.f_code.co_filename):
            raise RuntimeError(f"{event} of {arguments[0]} at {frame.f_code.co_filename}")


_FROM_NAME = importlib.metadata.Distribution.from_name.__func__  # type: ignore[attr-defined]


def distribution(cls: type, name: str) -> importlib.metadata.Distribution:
    """Return what is installed under a name; Triton is not."""
    if name.lower() == "triton":
        raise importlib.metadata.PackageNotFoundError(name)
    found: importlib.metadata.Distribution = _FROM_NAME(cls, name)
    return found


def gone() -> set[str]:
    """Return the names that are taken from modules of everybody's."""
    tables = (LINUX, POSIX) if os.environ.get("FUSEC_BARE") == "plain" else (LINUX,)
    return {name for table in tables for names in table.values() for name in names}


def begin() -> None:
    """Take it all away."""
    bare = os.environ.get("FUSEC_BARE", "")
    if not bare:
        return
    os.environ.setdefault("FUSEC_SYSTEM", bare)
    # What knows every system, and looks at this one while it is imported.
    import asyncio  # noqa: F401

    with contextlib.suppress(ImportError):
        import psutil  # noqa: F401
    for table in (LINUX, POSIX) if bare == "plain" else (LINUX,):
        for module, names in table.items():
            for name in names:
                if hasattr(module, name):
                    delattr(module, name)
    importlib.machinery.PathFinder.find_spec = classmethod(find_spec)  # type: ignore
    importlib.metadata.Distribution.from_name = classmethod(distribution)  # type: ignore[assignment]
    sys.addaudithook(audit)


begin()
