"""Linux."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import mmap
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusec.systems import linux_limits, linux_stack, linux_state
from fusec.systems.face import Counts, Processor, Samples
from fusec.systems.posix import Posix

_HUGE_PAGES = 14  # MADV_HUGEPAGE
_NO_RESERVE = 0x4000  # MAP_NORESERVE
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG
# The page-fault code in x86-64's ucontext_t, and its bit for a write.
_X86_ERROR_CODE = 40 + 19 * 8
_X86_WRITE = 2
_X86_RIP = 40 + 16 * 8
_X86_RSP = 40 + 15 * 8
_CONTEXT = 4096  # more than a ucontext_t takes
_PERTURB = -6  # M_PERTURB of mallopt: the complement of what memory is filled with
_STACK_LEFT, _STACK_FILLED = 1 << 10, 1 << 18
_X86_LONGEST = 15  # bytes of an instruction
_REFUSED = 128  # SI_KERNEL: the processor did not even try the access
_BEHIND = 15
# The clock of a process, as clock_getcpuclockid(3) makes it of its number: CPUCLOCK_SCHED.
_CLOCK_BITS, _SCHEDULED = 3, 2

# Two equal names are the same library to the loader, and descriptors are used again, so every
# name is spelled in its own way: slashes repeated count the loads.
_loads = itertools.count()


class Linux(Posix):
    """Linux, whatever its C library and processor."""

    name = "linux"
    _reserved = Posix._reserved | _NO_RESERVE

    def memory_file(self, name: str) -> int:
        """Return the descriptor of an empty file in memory."""
        return os.memfd_create(name, os.MFD_CLOEXEC)

    # -- libraries ----------------------------------------------------------------------------

    def load_library(self, path: Path, descriptor: int) -> ctypes.CDLL:
        """Map the very file that was checked, by its descriptor."""
        high, low = divmod(next(_loads), 1000)
        name = "/proc" + "/" * (1 + high) + "self/fd" + "/" * (1 + low) + str(descriptor)
        return ctypes.CDLL(name)

    def link_flags(self) -> tuple[str, ...]:
        """Return flags with which a linker refuses a function that exists nowhere."""
        return "-Wl,-z,defs", "-Wl,--as-needed"

    def torch_flags(self) -> tuple[str, ...]:
        """Return flags before a library of torch's: the file that needs it comes after it."""
        return ("-Wl,--no-as-needed",)

    def python_flags(self) -> tuple[str, ...]:
        """Return link flags for what takes Python's functions from the process that loads it."""
        return ("-Wl,--warn-unresolved-symbols",)

    def python_headers(self) -> str:
        """Return how to come by ``Python.h``."""
        return "Debian: apt install python3-dev; Fedora: dnf install python3-devel"

    # -- processes ----------------------------------------------------------------------------

    def give_way(self) -> None:
        """Let this thread, and what it starts, run behind all others."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _BEHIND)

    def follow_priority(self, process: int) -> None:
        """Let a session that this thread started give way as this thread does.

        Linux shares the processors out to sessions first, where it groups them (``sched(7)``,
        "The autogroup feature"), so that a process's own priority counts only among those of its
        session.
        """
        with contextlib.suppress(OSError):
            priority = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            if priority > 0:
                Path(f"/proc/{process}/autogroup").write_text(str(priority))

    def started(self, process: int) -> int | None:
        """Return when a process was started, in ticks since the system was."""
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return int(fields[19])

    def processor_seconds(self, process: int) -> float | None:
        """Return for how long a process has had processors, by its own clock."""
        try:
            return time.clock_gettime(~process << _CLOCK_BITS | _SCHEDULED)
        except OSError:
            return None

    def processors(self) -> int:
        """Return on how many processors this process may run."""
        return len(os.sched_getaffinity(0))

    # -- the process that runs a candidate ----------------------------------------------------

    def message_pair(self) -> tuple[socket.socket, socket.socket]:
        """Return two ends over which whole messages travel."""
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def send(self, sock: socket.socket, data: bytes, descriptors: tuple[int, ...]) -> None:
        """Send one message with descriptors of files."""
        socket.send_fds(sock, [data], list(descriptors))

    def receive(self, sock: socket.socket, most: int) -> tuple[bytes, tuple[int, ...]]:
        """Return the next message and its descriptors; no bytes once the other side is gone."""
        data, found = self._part(sock, most, socket.MSG_CMSG_CLOEXEC)
        return data, tuple(found)

    def end_with_parent(self) -> None:
        """Have this process killed when the one that forked it ends."""
        self._libc.prctl(_PARENT_DEATH, int(signal.SIGKILL))

    def limit_tasks(self, threads: int) -> None:
        """Limit how many processes and threads this one may start beyond those that it needs."""
        linux_limits.limit_tasks(threads)

    def dirty_memory(self, byte: int) -> None:
        """Fill what ``malloc`` hands out, and this thread's stack below where it is now."""
        self._libc.mallopt(_PERTURB, ~byte & 0xFF)
        if platform.machine() == "x86_64":
            context = ctypes.create_string_buffer(_CONTEXT)
            self._libc.getcontext(context)
            pointer = int.from_bytes(context.raw[_X86_RSP : _X86_RSP + 8], "little")
            # What is called from here on lies a little deeper than that call has.
            ctypes.memset(pointer - _STACK_LEFT - _STACK_FILLED, byte, _STACK_FILLED)

    def writes_above(self, function: int, numbers: Sequence[int]) -> bool | None:
        """Call a function on a stack of its own; return whether it wrote above its part of it."""
        return linux_stack.writes_above(function, numbers)

    def call_on(self, function: int, numbers: Sequence[int], stack: tuple[int, int]) -> bool:
        """Call a function on a stack of one's own."""
        return linux_stack.call_on(function, numbers, stack)

    def adopt_orphans(self) -> None:
        """Let what descendants leave behind become children of this process."""
        linux_limits.adopt_orphans()

    def end_orphans(self) -> None:
        """Kill and reap every child of this process, those that it adopted too."""
        linux_limits.end_orphans()

    def state(self, openmp: Path | None) -> Mapping[str, Any]:
        """Return what a kernel has to leave as it was, by what people call each part of it."""
        return linux_state.snapshot(openmp)

    def task_count(self) -> int:
        """Return how many threads this process has."""
        return linux_state.task_count()

    def thread_times(self) -> Mapping[int, float]:
        """Return for how many seconds each thread of this process has run."""
        return linux_state.thread_times()

    def bytes_in_use(self) -> int:
        """Return what the C library has allocated and not got back; 0 where it does not say."""
        return linux_state.bytes_in_use()

    def _instruction(self, number: int, info: int, context: int) -> bytes:
        code = ctypes.c_int.from_address(info + self._si_code).value
        if number != signal.SIGSEGV or code != _REFUSED or platform.machine() != "x86_64":
            return super()._instruction(number, info, context)
        return ctypes.string_at(
            ctypes.c_uint64.from_address(context + _X86_RIP).value, _X86_LONGEST
        )

    def _address_space(self) -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE

    def _wrote(self, context: int) -> bool | None:
        if platform.machine() != "x86_64":
            return None
        return bool(ctypes.c_uint64.from_address(context + _X86_ERROR_CODE).value & _X86_WRITE)

    # -- memory -------------------------------------------------------------------------------

    def huge_pages(self) -> Callable[[int, int], object] | None:
        """Return what asks for huge pages from an address on."""
        return self._advise

    @functools.cached_property
    def _advise(self) -> Callable[[int, int], object]:
        advise = self._libc.madvise
        return lambda address, size: advise(address, size, _HUGE_PAGES)

    # -- the processor ------------------------------------------------------------------------

    def processor(self) -> Processor:
        """Return what ``/proc/cpuinfo`` says of the first processor; the others repeat it."""
        try:
            text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        except OSError:
            return super().processor()
        facts: dict[str, str] = {}
        for line in text.partition("\n\n")[0].splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            facts.setdefault(key, value)
        found = {
            f"{key}={facts[key]}"
            for key in ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
            if key in facts
        }
        for key in ("flags", "Features"):
            found.update(facts.get(key, "").split())
        return Processor(facts.get("model name", ""), facts.get("vendor_id", ""), frozenset(found))

    def count(self, run: Callable[[], object]) -> Counts:
        """Run something; return what ``perf_event_open`` counted on this thread."""
        from fusec.systems import linux_counters

        return linux_counters.count(run, self.processor())

    def sample(self, run: Callable[[], object]) -> Samples:
        """Run something; return where ``perf_event_open`` saw this thread."""
        from fusec.systems import linux_samples

        return linux_samples.sample(run)

    def mapped_at(self, path: str) -> tuple[int, int] | None:
        """Return where a library lies, as ``/proc`` has it."""
        from fusec.systems import linux_samples

        return linux_samples.mapped_at(path)

    def last_cache(self) -> int:
        """Return the bytes of the last cache before the memory."""
        try:
            size = os.sysconf("SC_LEVEL3_CACHE_SIZE")
        except (ValueError, OSError):
            size = 0
        return size if size > 0 else super().last_cache()
