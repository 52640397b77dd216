"""What Linux and macOS share."""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import functools
import mmap
import os
import resource
import shutil
import signal
import socket
import stat
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from fusec.systems.face import Fault, System

_FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_SA_SIGINFO = 4
_PROT_NONE = 0
_FAILED = ctypes.c_void_p(-1).value
_LENGTH = struct.Struct("=I")
_MOST_DESCRIPTORS = 8

_SHELL = "/bin/sh"
_BLOCK = 512  # bytes, of what POSIX's ulimit counts in
# A child of the shell waits for the end of a pipe that the process which began all this holds open:
# also where that was killed, and could end nobody. What a signal ends, the shell ends by as well.
_GUARD = """\
exec 3<&0 </dev/null
ulimit -c 0 2>/dev/null
ulimit -f "$1" 2>/dev/null
ulimit -v "$2" 2>/dev/null
ulimit -t "$3" 2>/dev/null
shift 3
(read -r nothing <&3; kill -9 0) >/dev/null 2>&1 &
watch=$!
exec 3<&-
"$@"
status=$?
kill -9 "$watch"
[ "$status" -le 128 ] || kill -"$((status - 128))" "$$"
exit "$status"
"""

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

# Of the 8 MiB that a process mostly has: as much as a candidate may use.
_STACK = 4 << 20


class _Action(ctypes.Structure):
    """``struct sigaction`` of glibc."""

    _fields_: ClassVar[Any] = (
        ("handler", _Handler),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class Posix(System):
    """A system with users, forks, signals, and pages that may not be touched."""

    name = "posix"
    isolates = True
    # Flags of a mapping that takes no memory before it is touched.
    _reserved = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    # ``struct sigaction``, the flag for a handler that is told of the fault, and where in its
    # ``siginfo_t`` the code and the address are.
    _action: type[Any] = _Action
    _told = _SA_SIGINFO
    _si_code = 8
    _si_address = 16

    def __init__(self) -> None:
        self._kept: list[object] = []

    # -- files --------------------------------------------------------------------------------

    def is_own(self, status: os.stat_result) -> bool:
        """Whether a file belongs to this user."""
        return status.st_uid == os.geteuid()

    def others_write(self, status: os.stat_result) -> bool:
        """Whether other users may write to a file or folder, as far as its mode says."""
        return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))

    # -- processes ----------------------------------------------------------------------------

    def detached(self) -> dict[str, Any]:
        """Return arguments for ``Popen`` that start a session of its own."""
        return {"start_new_session": True}

    def guarded(
        self, command: Sequence[str], *, memory: int, written: int, seconds: int = 0
    ) -> list[str]:
        """Return a command that a shell runs: it kills its session where its input ends."""
        program = command[0]
        if shutil.which(program) is None:
            code = errno.EACCES if Path(program).exists() else errno.ENOENT
            raise OSError(code, os.strerror(code), program)
        if not os.access(_SHELL, os.X_OK):
            return list(command)
        limits = [str(written // _BLOCK)]
        limits += [str(most or "unlimited") for most in (memory // 1024, seconds)]
        return [_SHELL, "-c", _GUARD, "compile", *limits, *command]

    def end_tree(self, process: subprocess.Popen[Any]) -> None:
        """Kill a process that was started ``detached``, and those that it started."""
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)

    def started(self, process: int) -> int | None:
        """Return 0 where there is such a process."""
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return None
        except OSError:
            return 0  # somebody else's
        return 0

    def after_fork(self, in_child: Callable[[], object]) -> None:
        """Have a function called in every fork of this process."""
        os.register_at_fork(after_in_child=in_child)

    # -- the process that runs a candidate ----------------------------------------------------

    def message_pair(self) -> tuple[socket.socket, socket.socket]:
        """Return two ends of a stream; a message in it has its length before it."""
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def send(self, sock: socket.socket, data: bytes, descriptors: tuple[int, ...]) -> None:
        """Send one message with descriptors of files, which go with its first byte."""
        framed = _LENGTH.pack(len(data)) + data
        sent = socket.send_fds(sock, [framed], list(descriptors))
        sock.sendall(framed[sent:])

    def receive(self, sock: socket.socket, most: int) -> tuple[bytes, tuple[int, ...]]:
        """Return the next message and its descriptors; no bytes once the other side is gone."""
        head, ancillary = self._part(sock, _LENGTH.size)
        found = list(ancillary)
        while head and len(head) < _LENGTH.size:
            more, _ = self._part(sock, _LENGTH.size - len(head))
            if not more:
                return b"", tuple(found)
            head += more
        if not head:
            return b"", tuple(found)
        (length,) = _LENGTH.unpack(head)
        if length > most:
            raise OSError(f"a message of {length} bytes is too long")
        data = b""
        while len(data) < length:
            more, _ = self._part(sock, length - len(data))
            if not more:
                return b"", tuple(found)
            data += more
        return data, tuple(found)

    def _part(self, sock: socket.socket, most: int, flags: int = 0) -> tuple[bytes, list[int]]:
        room = socket.CMSG_LEN(_MOST_DESCRIPTORS * array.array("i").itemsize)
        data, ancillary, _, _ = sock.recvmsg(most, room, flags)
        found = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
        for descriptor in found:
            os.set_inheritable(descriptor, False)
        return data, found.tolist()

    def limit(self, *, seconds: int, memory: int, written: int) -> None:
        """Limit this process for good."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_FSIZE, (written, written))
        # Where a notebook calls it, others are on the stack already.
        most, hard = resource.getrlimit(resource.RLIMIT_STACK)
        if most == resource.RLIM_INFINITY or most > _STACK:
            resource.setrlimit(resource.RLIMIT_STACK, (_STACK, hard))
        now = self._address_space()
        if now:
            resource.setrlimit(resource.RLIMIT_AS, (now + memory, now + memory))

    def _address_space(self) -> int:
        """Return the bytes of this process's address space; 0 where nobody says."""
        return 0

    def report_faults(self, report: Callable[[Fault], None]) -> None:
        """Have a function called with a fatal fault of this process; it never returns.

        It is Python called through ctypes.  That is enough: a kernel runs with the interpreter's
        lock released, and a faulting thread of an OpenMP team can take it.
        """

        def handle(number: int, info: int, context: int) -> None:
            code = ctypes.c_int.from_address(info + self._si_code).value
            address = ctypes.c_uint64.from_address(info + self._si_address).value
            write = self._wrote(context) if number == signal.SIGSEGV else None
            report(Fault(number, code, address, write, self._instruction(number, info, context)))

        action = self._action()
        action.handler, action.flags = _Handler(handle), self._told
        # The system calls it for as long as the process lives.
        self._kept.append(action)
        for number in _FATAL:
            self._libc.sigaction(int(number), ctypes.byref(action), None)

    def flush(self) -> None:
        """Write what C has printed and still holds."""
        self._libc.fflush(None)

    def _instruction(self, number: int, info: int, context: int) -> bytes:
        """Return the bytes of the instruction at fault, where they tell more than the address."""
        if number != signal.SIGILL:
            return b""
        return ctypes.string_at(ctypes.c_uint64.from_address(info + self._si_address).value, 4)

    def _wrote(self, context: int) -> bool | None:
        """Return from a fault's context whether memory was written to; None if unknown."""
        return None

    # -- memory -------------------------------------------------------------------------------

    @functools.cached_property
    def _libc(self) -> ctypes.CDLL:
        libc = ctypes.CDLL(None, use_errno=True)
        address, size = ctypes.c_void_p, ctypes.c_size_t
        libc.mmap.restype = address
        libc.mmap.argtypes = [address, size, *[ctypes.c_int] * 3, ctypes.c_int64]
        libc.mprotect.argtypes = [address, size, ctypes.c_int]
        libc.madvise.argtypes = [address, size, ctypes.c_int]
        libc.munmap.argtypes = [address, size]
        libc.memcmp.argtypes = [address, address, size]
        return libc

    @property
    def page(self) -> int:
        """Bytes of a page."""
        return mmap.PAGESIZE

    def memory_size(self) -> int:
        """Return the bytes of the machine's memory."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def map_file(self, descriptor: int, size: int) -> int:
        """Map a file; Python's own mapping would keep a descriptor of it open."""
        access = mmap.PROT_READ | mmap.PROT_WRITE
        base = self._libc.mmap(None, size, access, mmap.MAP_SHARED, descriptor, 0)
        if base is None or base == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(base)

    def reserve(self, size: int, hint: int = 0) -> int:
        """Return the address of whole pages that may not be touched."""
        base = self._libc.mmap(hint or None, size, _PROT_NONE, self._reserved, -1, 0)
        if base is None or base == _FAILED:
            raise MemoryError("there is not enough address space")
        return int(base)

    def open_pages(self, address: int, size: int) -> None:
        """Let reserved pages be read and written."""
        if size and self._libc.mprotect(address, size, mmap.PROT_READ | mmap.PROT_WRITE):
            raise MemoryError("no memory")

    def lock_pages(self, address: int, size: int) -> None:
        """Let pages be read and no longer written, until they are opened again."""
        if size and self._libc.mprotect(address, size, mmap.PROT_READ):
            raise MemoryError("no memory")

    def same_bytes(self, one: int, other: int, size: int) -> bool:
        """Whether the bytes at two addresses are the same."""
        return not size or self._libc.memcmp(one, other, size) == 0

    def release(self, address: int, size: int) -> None:
        """Give reserved pages back, all of them."""
        self._libc.munmap(address, size)
