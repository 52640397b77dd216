"""The state of a process on Linux: what a kernel has to leave as it was."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import time
from pathlib import Path
from typing import Any

_libc = ctypes.CDLL(None)
_libc.setlocale.restype = ctypes.c_char_p
_LC_ALL = 6
_ACTION = 152  # bytes of a struct sigaction
_FENV = 64
# Where x86-64's fenv_t has which of the eight old registers are in use, and MXCSR.
_TAGS = 8
_MXCSR = 28
_SETTINGS = 0xFFC0  # of it, without the flags that every operation may raise
# Of glibc's FILE, in words: the places in its buffer, the buffer, and what stays: markers, the next
# stream, its number, its lock, what wide characters and conversions need, what nobody uses, its
# table of functions.  Of two words a part stays: not the buffer of a stream that has none, nor its
# width.
_STREAM_WORDS = 28
_PLACES = range(1, 7)
_BUFFER = 7
_FIXED = (*range(9, 16), *range(17, 24), 25, 26, 27)
_PARTS = {16: 0xFFFFFFFF_00FFFFFF, 24: 0xFFFFFFFF_00000000}
_FULL = 0  # _IOFBF
_INFO_FIELDS = 10  # of mallinfo2: bytes in use are the eighth, those of mappings the fifth


_LIMITS = sorted({v for n, v in vars(resource).items() if n.startswith("RLIMIT_")})


class _MallInfo(ctypes.Structure):
    _fields_ = tuple((f"field{number}", ctypes.c_size_t) for number in range(_INFO_FIELDS))


def snapshot(openmp: Path | None) -> dict[str, Any]:
    """Return the state of this process, by what people call each part of it.

    Args:
        openmp: The OpenMP runtime that it has loaded.
    """
    status = dict(re.findall(r"^(\w+):\s*(.*)$", _read("/proc/self/status"), re.MULTILINE))
    return {
        "the current folder": _folder(),
        "the environment": _environment(),
        "how signals are taken": (
            [status.get(name) for name in ("SigBlk", "SigIgn", "SigCgt")],
            _actions(),
            signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        ),
        "the mask of new files": status.get("Umask"),
        "how the processor rounds": _libm().fegetround(),
        "the processor's modes": _modes(),
        "open files": sorted(os.listdir("/proc/self/fd")),
        "the C library's streams": _streams(),
        "the priority": os.getpriority(os.PRIO_PROCESS, 0),
        "the processors that it may use": sorted(os.sched_getaffinity(0)),
        "the locale": _libc.setlocale(_LC_ALL, None),
        "the limits": [resource.getrlimit(number) for number in _LIMITS],
        "OpenMP's settings": _openmp(openmp),
    }


def task_count() -> int:
    """Return how many threads this process has."""
    return len(os.listdir("/proc/self/task"))


def thread_times() -> dict[int, float]:
    """Return for how many seconds each thread of this process has run."""
    found = {}
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            # The clock of a thread: clock_getcpuclockid(3) and the kernel's posix-timers.h.
            found[int(name)] = time.clock_gettime(~int(name) << 3 | 0b110)
    return found


def bytes_in_use() -> int:
    """Return what ``malloc`` has given and not got back; 0 where the C library does not say."""
    with contextlib.suppress(AttributeError):
        function = _libc.mallinfo2
        function.restype = _MallInfo
        found = function()
        return int(found.field4 + found.field7)
    return 0


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""  # deleted: it is no kernel's fault


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _environment() -> list[bytes]:
    # Python's own copy does not see what C changes.
    place = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
    found: list[bytes] = []
    while place and (entry := place[len(found)]) is not None:
        found.append(entry)
    return found


def _actions() -> list[bytes]:
    found = []
    action = ctypes.create_string_buffer(_ACTION)
    for number in range(1, 32):
        if _libc.sigaction(number, None, action) == 0:
            # The function and the signals that it holds back; what follows is anything.
            found.append(action.raw[:16])
    return found


def _libm() -> Any:
    with contextlib.suppress(AttributeError):
        _ = _libc.fegetround
        return _libc
    return ctypes.CDLL("libm.so.6")


def _modes() -> list[int]:
    if os.uname().machine != "x86_64":
        return []
    environment = ctypes.create_string_buffer(_FENV)
    _libm().fegetenv(environment)
    control, tags, vectors = (
        int.from_bytes(environment.raw[at : at + 4], "little") for at in (0, _TAGS, _MXCSR)
    )
    return [control & 0xFFFF, tags & 0xFFFF, vectors & _SETTINGS]


def _streams() -> list[int | None]:
    streams = [ctypes.c_void_p.in_dll(_libc, name) for name in ("stdin", "stdout", "stderr")]
    found: list[int | None] = [stream.value for stream in streams]
    for stream in streams:
        found.append(_libc.fileno(stream) if stream.value else -1)
        if stream.value and hasattr(_libc, "gnu_get_libc_version"):
            found += _stream_parts(stream)
    return found


def _stream_parts(stream: ctypes.c_void_p) -> list[int]:
    """Return what a stream of glibc's is made of, and whether its places lie in its buffer."""
    words = (ctypes.c_uint64 * _STREAM_WORDS).from_address(stream.value or 0)
    if not words[_BUFFER] and _libc.fileno(stream) == 1:
        # Else the first thing printed would allocate it, which is no change.
        _libc.setvbuf(stream, None, _FULL, 0)
    base, end = words[_BUFFER], words[_BUFFER + 1]
    inside = all(base <= words[place] <= end for place in _PLACES)
    parts = (words[place] & part for place, part in _PARTS.items())
    return [base, end, inside, *(words[place] for place in _FIXED), *parts]


def _openmp(path: Path | None) -> list[int]:
    try:
        library = ctypes.CDLL(str(path or "libgomp.so.1"))
        kind, chunk = ctypes.c_int(), ctypes.c_int()
        library.omp_get_schedule(ctypes.byref(kind), ctypes.byref(chunk))
    except (OSError, AttributeError):
        return []
    names = ("omp_get_max_threads", "omp_get_dynamic", "omp_get_max_active_levels")
    return [*(int(library[name]()) for name in names), kind.value, chunk.value]


__all__ = ["bytes_in_use", "snapshot", "task_count", "thread_times"]
