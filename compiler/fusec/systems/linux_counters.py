"""What Linux counts while something runs on one thread: ``perf_event_open``, no other program.

Only what the thread itself does is counted, and nothing of the system's part, so that no rights are
asked for.  A virtual machine has mostly no counters of the processor's; those of the system are
always there.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Callable, Mapping

from fusec.systems.face import Counts, Processor

NUMBER = {"x86_64": 298, "aarch64": 241}  # of the system call
_SIZE = 112  # PERF_ATTR_SIZE_VER5
_TIMES = 1 | 2  # how long it was wanted, and how long it was counted
# At first off, without the kernel and the machine below it.
_FLAGS = 1 | 1 << 5 | 1 << 6
ON, OFF = 0x2400, 0x2401
_HARDWARE, _SOFTWARE, _CACHE, _RAW = 0, 1, 3, 4
_READ_MISSES = 1 << 16

EVENTS: Mapping[str, tuple[int, int]] = {
    "cycles": (_HARDWARE, 0),
    "instructions": (_HARDWARE, 1),
    "first-level misses": (_CACHE, _READ_MISSES),
    "last-level misses": (_HARDWARE, 3),
    "page faults": (_SOFTWARE, 2),
}
# Floating-point instructions by whether they compute one number or several: Intel's
# FP_ARITH_INST_RETIRED, and AMD's fp_ops_retired_by_width, from Zen 4 on.
_FLOATS = {
    "GenuineIntel": {"scalar": (_RAW, 0x03C7), "vector": (_RAW, 0xFCC7)},
    "AuthenticAMD": {"scalar": (_RAW, 0x0408), "vector": (_RAW, 0x3808)},
}
_ZEN_4 = {("25", n) for n in (*range(16, 32), *range(96, 176))}


def events_of(processor: Processor) -> Mapping[str, tuple[int, int]]:
    """Return what is asked for: types and numbers of ``perf_event_open``, by name."""
    facts = dict(fact.split("=", 1) for fact in processor.features if "=" in fact)
    vendor, family = facts.get("vendor_id", ""), facts.get("cpu family", "")
    model = facts.get("model", "")
    known = vendor == "GenuineIntel" or family == "26"
    known = known or (family, int(model) if model.isdigit() else -1) in _ZEN_4
    return {**EVENTS, **(_FLOATS.get(vendor, {}) if known else {})}


def count(run: Callable[[], object], processor: Processor) -> Counts:
    """Run something and count what this thread does meanwhile."""
    number = NUMBER.get(platform.machine())
    if number is None:
        return Counts({}, f"Linux's counters are not read on {platform.machine()}")
    opened: dict[str, int] = {}
    refused = 0
    try:
        for name, (kind, config) in events_of(processor).items():
            found = open_event(number, kind, config)
            if found < 0:
                refused = -found if kind == _HARDWARE else refused
            else:
                opened[name] = found
        for descriptor in opened.values():
            fcntl.ioctl(descriptor, ON, 0)
        try:
            run()
        finally:
            for descriptor in opened.values():
                fcntl.ioctl(descriptor, OFF, 0)
        values = {name: _read(descriptor) for name, descriptor in opened.items()}
    finally:
        for descriptor in opened.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)
    return Counts({name: n for name, n in values.items() if n is not None}, _why(refused))


def open_event(
    number: int, kind: int, config: int, *, period: int = 0, sample: int = 0, flags: int = 0
) -> int:
    """Ask the system for a counter of this thread, at first off.

    Args:
        number: Of the system call here.
        kind: Whose event it is: the processor's, the system's ...
        config: Which one.
        period: A sample every so many events.
        sample: What is kept of a sample.
        flags: More than those that every counter has.

    Returns:
        Its descriptor; less than nothing, the error, where it is refused.
    """
    fields = (kind, _SIZE, config, period, sample, _TIMES, _FLAGS | flags)
    attributes = struct.pack("=IIQQQQQ", *fields)
    held = ctypes.create_string_buffer(attributes.ljust(_SIZE, b"\0"), _SIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    found = int(libc.syscall(number, held, 0, -1, -1, 0))
    return found if found >= 0 else -ctypes.get_errno()


def _read(descriptor: int) -> int | None:
    """Return a count; scaled where the processor had to count in turns, None where it never did."""
    value, wanted, counted = struct.unpack("=QQQ", os.read(descriptor, 24))
    return round(value * wanted / counted) if counted else None


def _why(refused: int) -> str:
    if not refused:
        return ""
    if refused in (errno.EACCES, errno.EPERM):
        return (
            "the processor's counters are not open to users here; root opens them: "
            "sysctl kernel.perf_event_paranoid=2"
        )
    return "cycles and cache misses cannot be counted here: most virtual machines have no counters"


__all__ = ["EVENTS", "NUMBER", "OFF", "ON", "count", "events_of", "open_event"]
