"""What is asked of an operating system, each with an answer that holds wherever Python runs."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import socket
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Where nobody says how large the last cache is.
_LAST_CACHE = 32 << 20
_NOBODY_KNOWS = 8 << 30


class NotHere(OSError):
    """This system has no such thing."""


@dataclass(frozen=True)
class Counts:
    """What was counted while something ran.

    Attributes:
        events: How often, by what it is called: cycles, instructions, page faults, ...
        missing: Why not all of it could be, in words; empty where it could.
    """

    events: Mapping[str, int]
    missing: str = ""


@dataclass(frozen=True)
class Samples:
    """Where a thread was, again and again.

    Attributes:
        addresses: Of the instruction that was next, each time.
        by: What said when to look: cycles, or the clock.
        missing: Why nobody could look, in words; else empty.
    """

    addresses: tuple[int, ...]
    by: str
    missing: str = ""


@dataclass(frozen=True)
class Processor:
    """What the system says of the processor.

    Attributes:
        name: As its maker calls it; empty where nobody says.
        vendor: ``AuthenticAMD``, ``GenuineIntel``, or whatever the system says.
        features: Its model and instruction sets, in Linux's words; empty where nobody says.
    """

    name: str = ""
    vendor: str = ""
    features: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Fault:
    """A fatal signal.

    Attributes:
        signal: Its number.
        code: What the system says of it.
        address: The memory that was touched, or the instruction.
        write: Whether it was written to, where that is known.
        instruction: Its bytes, where the system does not say which address was meant.
    """

    signal: int
    code: int
    address: int
    write: bool | None = None
    instruction: bytes = b""


_mapped: list[mmap.mmap] = []


class System:
    """A system of which nothing is known but that Python runs on it."""

    name = "plain"
    # What a built library is called, and where a compiler finds OpenMP's runtime beside torch.
    library = "kernel.so"
    openmp_patterns: tuple[str, ...] = ("libgomp*.so*", "libomp*.so*", "libiomp5*.so*")
    # Whose C++ library torch is built with.
    torchs_library = "libstdc++"
    # What the driver of CUDA is called.
    cuda_driver = "libcuda.so.1"
    # Whether a candidate can run in a process forked for it, with untouchable memory around.
    isolates = False

    # -- files --------------------------------------------------------------------------------

    @property
    def read_flags(self) -> int:
        """Flags for ``os.open`` that read a file's bytes: no child inherits it."""
        return os.O_RDONLY | getattr(os, "O_BINARY", 0) | self._not_inherited

    @property
    def create_flags(self) -> int:
        """Flags for ``os.open`` that make a new file and write bytes."""
        return (
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | self._not_inherited
        )

    @property
    def no_links(self) -> int:
        """The flag that refuses a symbolic link; 0 where there is none."""
        return getattr(os, "O_NOFOLLOW", 0)

    @property
    def _not_inherited(self) -> int:
        return getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0)

    def is_own(self, status: os.stat_result) -> bool:
        """Whether a file belongs to this user; true where files say nothing of it."""
        return True

    def others_write(self, status: os.stat_result) -> bool:
        """Whether other users may write to a file or folder, as far as its mode says."""
        return False

    def memory_file(self, name: str) -> int:
        """Return the descriptor of an empty file that is nowhere to be found.

        Args:
            name: For whoever looks at the process.
        """
        with tempfile.TemporaryFile(prefix=name) as file:
            return os.dup(file.fileno())

    def map_file(self, descriptor: int, size: int) -> int:
        """Map a file for as long as the process lives, to be written to; return the address.

        Args:
            descriptor: The file, which may be closed afterwards.
            size: Bytes.
        """
        mapped = mmap.mmap(descriptor, size)
        _mapped.append(mapped)
        return ctypes.addressof(ctypes.c_char.from_buffer(mapped))

    # -- libraries ----------------------------------------------------------------------------

    def load_library(self, path: Path, descriptor: int) -> ctypes.CDLL:
        """Map a library.

        Args:
            path: Where it is.
            descriptor: The same file, opened and checked: what is loaded is this very file where
                the system has a way to say so.
        """
        return ctypes.CDLL(str(path))

    def link_flags(self) -> tuple[str, ...]:
        """Return flags with which a linker refuses a function that exists nowhere."""
        return ()

    def runtime_flags(self, runtime: str) -> tuple[str, ...]:
        """Return flags beside an OpenMP runtime of torch's, so that it is found again."""
        return ()

    def torch_flags(self) -> tuple[str, ...]:
        """Return flags before a library of torch's that has to be named in what is built."""
        return ()

    def python_flags(self) -> tuple[str, ...]:
        """Return link flags for what takes Python's functions from the process that loads it."""
        return ()

    def python_headers(self) -> str:
        """Return how to come by ``Python.h``."""
        return "install the headers of this Python"

    # -- processes ----------------------------------------------------------------------------

    def detached(self) -> dict[str, Any]:
        """Return arguments for ``Popen`` that keep the terminal's signals from a child."""
        return {}

    def guarded(
        self, command: Sequence[str], *, memory: int, written: int, seconds: int = 0
    ) -> list[str]:
        """Return a command that ends when this process does, however that ends, and has limits.

        Args:
            command: What to run, ``detached``, with a pipe for its input that stays open.
            memory: Bytes of its address space, of each of its processes; 0 for no limit.
            written: Bytes of the largest file that it may write.
            seconds: Of a processor, for each of its processes; 0 for no limit.

        Raises:
            OSError: There is no such program.
        """
        return list(command)

    def end_tree(self, process: subprocess.Popen[Any]) -> None:
        """Kill a process that was started ``detached``, and those that it started."""
        process.kill()

    def give_way(self) -> None:
        """Let this thread, and what it starts, run behind all others."""

    def follow_priority(self, process: int) -> None:
        """Let a process that this thread started ``detached`` give way as this thread does."""

    def processors(self) -> int:
        """Return on how many processors this process may run."""
        return os.cpu_count() or 1

    def is_busy(self) -> bool:
        """Whether there is work for every processor already, as far as the system says so."""
        try:
            return os.getloadavg()[0] >= self.processors()
        except (AttributeError, OSError):
            return False

    def after_fork(self, in_child: Callable[[], object]) -> None:
        """Have a function called in every fork of this process."""

    def started(self, process: int) -> int | None:
        """Return when a process was started, in the system's own time; None if there is none.

        Where the system does not say when, it is 0 for every process.
        """
        return 0

    def processor_seconds(self, process: int) -> float | None:
        """Return for how long a process has had processors, all its threads; None if unknown."""
        return None

    def ignore_interrupts(self) -> None:
        """Let this process not be ended from the terminal."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    # -- the process that runs a candidate ----------------------------------------------------

    def message_pair(self) -> tuple[socket.socket, socket.socket]:
        """Return two ends over which messages and descriptors travel.

        Raises:
            NotHere: There is no such thing.
        """
        raise NotHere(f"candidates cannot run in a process of their own on {platform.system()}")

    def send(self, sock: socket.socket, data: bytes, descriptors: tuple[int, ...]) -> None:
        """Send one message with descriptors of files."""
        raise NotHere("no messages")

    def receive(self, sock: socket.socket, most: int) -> tuple[bytes, tuple[int, ...]]:
        """Return the next message and its descriptors; no bytes once the other side is gone.

        Args:
            sock: This side.
            most: How long a message is at most.
        """
        raise NotHere("no messages")

    def end_with_parent(self) -> None:
        """Have this process killed when the one that forked it ends, where there is a way."""

    def limit(self, *, seconds: int, memory: int, written: int) -> None:
        """Limit this process for good, as far as the system does.

        Args:
            seconds: Of processor time.
            memory: Bytes of address space beyond what it has now.
            written: Bytes of a file that it writes.
        """

    def limit_tasks(self, threads: int) -> None:
        """Limit how many processes and threads this one may start beyond those that it needs."""

    def dirty_memory(self, byte: int) -> None:
        """Fill what is handed out next without being written: ``malloc``'s memory, the stack."""

    def writes_above(self, function: int, numbers: Sequence[int]) -> bool | None:
        """Call a function on a stack of its own; return whether it wrote above its part of it.

        Args:
            function: Its address; its result is lost.
            numbers: Its arguments, integers or addresses of 64 bits.

        Returns:
            None where that cannot be seen, and it was not called.
        """
        return None

    def call_on(self, function: int, numbers: Sequence[int], stack: tuple[int, int]) -> bool:
        """Call a function on a stack of one's own; return false if that cannot be done here.

        Args:
            function: Its address; its result is lost.
            numbers: Its arguments, integers or addresses of 64 bits.
            stack: The address and the size of memory that it may have as its stack.
        """
        return False

    def adopt_orphans(self) -> None:
        """Let what descendants leave behind become children of this process, where it can be."""

    def end_orphans(self) -> None:
        """Kill and reap every child of this process, those that it adopted too."""

    def state(self, openmp: Path | None) -> Mapping[str, Any]:
        """Return what a kernel has to leave as it was, by what people call each part of it.

        Args:
            openmp: The OpenMP runtime that this process has loaded.
        """
        return {}

    def task_count(self) -> int:
        """Return how many threads this process has; 0 where nobody says."""
        return 0

    def thread_times(self) -> Mapping[int, float]:
        """Return for how many seconds each thread of this process has run; empty where unknown."""
        return {}

    def bytes_in_use(self) -> int:
        """Return what the C library has allocated and not got back; 0 where it does not say."""
        return 0

    def flush(self) -> None:
        """Write what C has printed and still holds."""

    def report_faults(self, report: Callable[[Fault], None]) -> None:
        """Have a function called with a fatal fault of this process; it never returns."""

    # -- memory -------------------------------------------------------------------------------

    @property
    def page(self) -> int:
        """Bytes of a page."""
        return 4096

    def memory_size(self) -> int:
        """Return the bytes of the machine's memory."""
        return _NOBODY_KNOWS

    def reserve(self, size: int, hint: int = 0) -> int:
        """Return the address of whole pages that may not be touched.

        Args:
            size: Bytes.
            hint: Where they should lie if they can; anywhere if 0.

        Raises:
            MemoryError: There is no room.
        """
        raise NotHere("no untouchable memory")

    def open_pages(self, address: int, size: int) -> None:
        """Let reserved pages be read and written.

        Raises:
            MemoryError: There is no memory.
        """
        raise NotHere("no untouchable memory")

    def lock_pages(self, address: int, size: int) -> None:
        """Let pages be read and no longer written, until they are opened again.

        Raises:
            MemoryError: There is no memory.
        """
        raise NotHere("no untouchable memory")

    def release(self, address: int, size: int) -> None:
        """Give reserved pages back, all of them."""
        raise NotHere("no untouchable memory")

    def same_bytes(self, one: int, other: int, size: int) -> bool:
        """Whether the bytes at two addresses are the same."""
        return ctypes.string_at(one, size) == ctypes.string_at(other, size)

    def huge_pages(self) -> Callable[[int, int], object] | None:
        """Return what asks for huge pages from an address on; None where they cannot be had."""
        return None

    # -- the processor ------------------------------------------------------------------------

    def processor(self) -> Processor:
        """Return what the system says of the processor."""
        return Processor(platform.processor())

    def count(self, run: Callable[[], object]) -> Counts:
        """Run something; return what the processor and the system counted on this thread."""
        run()
        return Counts({}, "this system's counters are not read")

    def sample(self, run: Callable[[], object]) -> Samples:
        """Run something, where anybody may look; return where this thread was meanwhile."""
        return Samples((), "", "this system does not say where a thread is")

    def mapped_at(self, path: str) -> tuple[int, int] | None:
        """Return a loaded library's first address and the one behind its last; None if unknown."""
        return None

    def last_cache(self) -> int:
        """Return the bytes of the last cache before the memory."""
        return _LAST_CACHE


def python_library_folder() -> Path:
    """Return where the import library of this Python is, on systems that link with one."""
    return Path(sysconfig.get_config_var("installed_base") or sysconfig.get_paths()["data"], "libs")
