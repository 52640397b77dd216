"""The clean process that candidates are forked from: ``python -m fusec.verify.isolation.worker``.

A process that has entered an OpenMP region cannot fork a child that enters one: the child
hangs for ever.  The notebook's process has, so it starts this one, which imports torch and
never computes anything itself.  A fork of it takes some milliseconds, runs one candidate and
is thrown away; this process outlives every crash, and ends when its parent does.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass

from fusec.errors import in_words
from fusec.systems import this_system
from fusec.verify.protocol import Message, receive, send

# How often to look whether the parent is still there; closing the socket is the usual sign.
_HEARTBEAT = 5.0
_LOG_SHOWN = 4000
# How often to look for how long a candidate has had processors, and how long it has to be silent
# at least: many threads use up any such time at once.
_LOOK = 0.1
_SILENT = 0.25


@dataclass
class Spare:
    """A child that is forked ahead of time and waits for its one request.

    Attributes:
        pid: Its process, and process group.
        sock: Where it gets the request.
        report: Where it writes its report.
        log: Memory file with what the kernel prints.
        processor: Seconds for which it has had a processor, once it has ended.
    """

    pid: int
    sock: socket.socket
    report: int
    log: int
    processor: float = 0.0

    @classmethod
    def fork(cls, others: tuple[socket.socket, ...]) -> Spare:
        """Fork one; ``others`` are this process's own sockets."""
        from fusec.verify.isolation import child

        mine, theirs = this_system().message_pair()
        reading, writing = os.pipe()
        log = this_system().memory_file("fusec-log")
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            # `child.main` never returns; nothing above it on the stack runs in the child.
            os.setpgid(0, 0)
            for sock in (*others, mine):
                sock.close()
            os.close(reading)
            child.main(theirs, writing, log, parent)
        # Also from here: whichever comes first, the group exists before it may be killed.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        theirs.close()
        os.close(writing)
        return cls(pid, mine, reading, log)

    def seconds_so_far(self) -> float:
        """Return for how long it has had processors by now; 0.0 where the system does not say."""
        return this_system().processor_seconds(self.pid) or 0.0

    def end(self) -> int:
        """Kill it and what it started; return its exit status, or minus the signal's number."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        _, status, used = os.wait4(self.pid, 0)
        self.processor = used.ru_utime + used.ru_stime
        # What left its group is this process's child by now.
        this_system().end_orphans()
        self.sock.close()
        os.close(self.report)
        os.close(self.log)
        return os.waitstatus_to_exitcode(status)


class Zygote:
    """Answers requests until the other side is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.spare: Spare | None = None
        self.modules: set[str] = set()

    def serve(self) -> None:
        """Answer one request after the other."""
        parent = os.getppid()
        while True:
            if self.spare is None:
                self.spare = Spare.fork((self.sock,))
            ready, _, _ = select.select([self.sock], [], [], _HEARTBEAT)
            if not ready:
                if os.getppid() != parent:
                    return
                continue
            request, descriptors = receive(self.sock)
            if request is None:
                return
            try:
                reply = self.answer(request, descriptors)
            except Exception as error:
                # A failed import or fork is the caller's news, not this process's end.
                reply = {"failed": in_words(error)}
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            if reply is None:
                return
            send(self.sock, reply)

    def close(self) -> None:
        """End the waiting child."""
        if self.spare is not None:
            self.spare.end()
            self.spare = None

    def answer(self, request: Message, descriptors: tuple[int, ...]) -> Message | None:
        """Return the reply; None where the parent went away meanwhile."""
        if request["do"] == "read":
            return _read(request["library"])
        for module in request["modules"]:
            if module not in self.modules:
                # Once here, for all children to come.
                __import__(module)
                self.modules.add(module)
                gc.freeze()
                self.close()
        if request["do"] == "import":
            return {"done": True}
        child = self.spare or Spare.fork((self.sock,))
        self.spare = None
        started = time.monotonic()
        ended = "parent gone"
        lines: list[Message] = []
        log = ""
        try:
            try:
                send(child.sock, request, descriptors)
            except OSError:
                # Something outside has ended the one that waited.
                child.end()
                child = Spare.fork((self.sock,))
                send(child.sock, request, descriptors)
            lines, ended = _watch(
                self.sock,
                child,
                started + request["timeout"],
                request["step"],
                request.get("busy"),
            )
            log = os.pread(child.log, _LOG_SHOWN, 0).decode(errors="replace")
        finally:
            status = child.end()
        if ended == "parent gone":
            return None
        return {
            "reports": lines,
            "timeout": ended == "timeout",
            "status": status,
            "log": log,
            "seconds": time.monotonic() - started,
            "processor": child.processor,
        }


def _read(library: str) -> Message:
    """Return what a library's file says; this process may load nothing of it."""
    from fusec.verify.static.binary import library_facts

    try:
        return {"facts": asdict(library_facts(library))}
    except (OSError, ValueError) as error:
        return {"failed": f"cannot read the kernel's library: {error}"}


def _watch(
    sock: socket.socket, child: Spare, deadline: float, step: float, busy: float | None
) -> tuple[list[Message], str]:
    """Collect the child's lines until its result, its end, or one of the limits.

    Args:
        sock: The parent's end.
        child: It runs.
        deadline: When all of it has to be over.
        step: Seconds that it may be silent.
        busy: Seconds of processors that it may use up in silence; None for any.
    """
    reading, buffer = child.report, b""
    spoke, used = time.monotonic(), child.seconds_so_far()
    while True:
        now = time.monotonic()
        left = min(deadline, spoke + step) - now
        if left <= 0:
            return _lines(buffer), "timeout"
        if busy is not None:
            left = min(left, _LOOK)
            if now - spoke > _SILENT and child.seconds_so_far() - used > busy:
                return _lines(buffer), "timeout"
        ready, _, _ = select.select([reading, sock.fileno()], [], [], left)
        if sock.fileno() in ready:
            # Nothing is sent while a candidate runs: the parent closed its end.
            return _lines(buffer), "parent gone"
        if reading in ready:
            block = os.read(reading, 1 << 16)
            buffer += block
            spoke, used = time.monotonic(), child.seconds_so_far()
            if not block:
                return _lines(buffer), "ended"


def _lines(buffer: bytes) -> list[Message]:
    found = []
    for line in buffer.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def main(descriptor: int) -> None:
    """Import what candidates need, say so, and serve."""
    this_system().ignore_interrupts()
    this_system().adopt_orphans()
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    import iced_x86  # noqa: F401
    import lief  # noqa: F401
    import numpy  # noqa: F401
    import torch  # noqa: F401

    import fusec.verify.isolation.child  # noqa: F401

    # Objects made so far stay for good: the collector need not touch, and so copy, their
    # pages in a child.
    gc.collect()
    gc.freeze()
    gc.disable()
    send(sock, {"ready": True, "pid": os.getpid()})
    zygote = Zygote(sock)
    try:
        zygote.serve()
    finally:
        zygote.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
