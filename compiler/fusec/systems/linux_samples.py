"""Where a thread is, again and again, while something runs: ``perf_event_open``, no other program.

The processor's own cycles say when to look, where they may be counted; in most virtual machines it
is the system's clock, which is there always.  Only what the thread itself does is looked at.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import platform
import struct
from collections.abc import Callable

from fusec.systems.face import Samples
from fusec.systems.linux_counters import NUMBER, OFF, ON, open_event

# Cycles by about the clock's rate: the system finds how many cycles that is.
_RATE = 10_000
_PERIOD = 1_000_000_000 // _RATE
_CHOICES = (("cycles", 0, 0, _RATE, True), ("the clock", 1, 0, _PERIOD, False))
_PLACE = 1  # PERF_SAMPLE_IP
_BY_RATE = 1 << 10
_SAMPLE = 9  # PERF_RECORD_SAMPLE
_HEAD = 1024  # where the first page says how much was written
_PAGES = 32  # of records, 16 bytes each: more may not be locked for everybody


def sample(run: Callable[[], object]) -> Samples:
    """Run something and say at which addresses this thread was, some 10,000 times a second."""
    number = NUMBER.get(platform.machine())
    if number is None:
        return Samples((), "", f"Linux's samples are not read on {platform.machine()}")
    refused = 0
    for name, kind, config, period, by_rate in _CHOICES:
        more = _BY_RATE if by_rate else 0
        opened = open_event(number, kind, config, period=period, sample=_PLACE, flags=more)
        if opened < 0:
            refused = -opened
            continue
        try:
            return Samples(_looked(opened, run), name)
        except OSError as error:  # no memory may be locked for it
            refused = error.errno or errno.EPERM
        finally:
            with contextlib.suppress(OSError):
                os.close(opened)
    return Samples((), "", _why(refused))


def _looked(descriptor: int, run: Callable[[], object]) -> tuple[int, ...]:
    size = mmap.PAGESIZE
    with mmap.mmap(descriptor, (1 + _PAGES) * size) as pages:
        fcntl.ioctl(descriptor, ON, 0)
        try:
            run()
        finally:
            fcntl.ioctl(descriptor, OFF, 0)
        (written,) = struct.unpack_from("=Q", pages, _HEAD)
        records = bytes(pages[size : size + min(written, _PAGES * size)])
    return read_records(records)


def read_records(records: bytes) -> tuple[int, ...]:
    """Return the addresses of records as the system writes them, other kinds left out."""
    found, place = [], 0
    while place + 8 <= len(records):
        kind, _, length = struct.unpack_from("=IHH", records, place)
        if length < 8:
            break
        if kind == _SAMPLE and place + 16 <= len(records):
            found.append(struct.unpack_from("=Q", records, place + 8)[0])
        place += length
    return tuple(found)


def mapped_at(path: str, maps: str = "/proc/self/maps") -> tuple[int, int] | None:
    """Return where a library lies in this process: its first address and the one behind its last.

    Args:
        path: The library's file.
        maps: Where the system lists what lies where.
    """
    with contextlib.suppress(OSError), open(maps, encoding="utf-8") as lines:
        real, first, last = os.path.realpath(path), 0, 0
        for line in lines:
            parts = line.split(maxsplit=5)
            if len(parts) == 6 and parts[5].rstrip("\n") == real:
                begin, _, end = parts[0].partition("-")
                first, last = first or int(begin, 16), int(end, 16)
        if last:
            return first, last
    return None


def _why(refused: int) -> str:
    if refused in (errno.EACCES, errno.EPERM):
        return (
            "Linux lets nobody look here where a thread is: a container forbids it, or "
            "root allows it with sysctl kernel.perf_event_paranoid=2"
        )
    return f"Linux cannot look here where a thread is ({os.strerror(refused)})"


__all__ = ["mapped_at", "read_records", "sample"]
