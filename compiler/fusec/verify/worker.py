"""The clean process that candidates are forked from: ``python -m fusec.verify.worker``.

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

from fusec.verify.protocol import Message, receive, send

# How often to look whether the parent is still there; closing the socket is the usual sign.
_HEARTBEAT = 5.0
_LOG_SHOWN = 4000


def serve(sock: socket.socket) -> None:
    """Answer requests until the other side is gone."""
    parent = os.getppid()
    while True:
        ready, _, _ = select.select([sock], [], [], _HEARTBEAT)
        if not ready:
            if os.getppid() != parent:
                return
            continue
        request, descriptors = receive(sock)
        if request is None:
            return
        try:
            if request["do"] == "import":
                for module in request["modules"]:
                    __import__(module)
                gc.freeze()
                reply: Message = {"done": True}
            else:
                answer = _fork_and_watch(sock, request, descriptors)
                if answer is None:
                    return
                reply = answer
        except Exception as error:
            # A failed import or fork is the caller's news, not this process's end.
            reply = {"failed": f"{type(error).__name__}: {error}"}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        send(sock, reply)


def _fork_and_watch(
    sock: socket.socket, request: Message, descriptors: tuple[int, ...]
) -> Message | None:
    from fusec.verify import child

    if request["target"] == "triton":
        import triton.language  # noqa: F401  # once, for all later children
    data_file, result_file = descriptors
    reading, writing = os.pipe()
    log = os.memfd_create("fusec-log", 0)
    started = time.monotonic()
    try:
        pid = os.fork()
        if pid == 0:
            # `child.main` never returns; nothing above it on the stack runs in the child.
            os.setpgid(0, 0)
            sock.close()
            os.close(reading)
            child.main(request, data_file, result_file, writing, log)
        # Also from here: whichever comes first, the group exists before it may be killed.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        os.close(writing)
        lines, ended = _watch(sock, reading, started + request["timeout"])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        status = _reap(pid)
        if ended == "parent gone":
            return None
        return {
            "reports": lines,
            "timeout": ended == "timeout",
            "status": status,
            "log": os.pread(log, _LOG_SHOWN, 0).decode(errors="replace"),
            "seconds": time.monotonic() - started,
        }
    finally:
        os.close(reading)
        os.close(log)


def _watch(sock: socket.socket, reading: int, deadline: float) -> tuple[list[Message], str]:
    """Collect the child's lines until its result, its end, or the deadline."""
    buffer = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return _lines(buffer), "timeout"
        ready, _, _ = select.select([reading, sock.fileno()], [], [], left)
        if sock.fileno() in ready:
            # Nothing is sent while a candidate runs: the parent closed its end.
            return _lines(buffer), "parent gone"
        if reading in ready:
            block = os.read(reading, 1 << 16)
            buffer += block
            if not block:
                return _lines(buffer), "ended"


def _lines(buffer: bytes) -> list[Message]:
    found = []
    for line in buffer.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def _reap(pid: int) -> int:
    """Return the exit status, or the signal that ended the process as a negative number."""
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def main(descriptor: int) -> None:
    """Import what candidates need, say so, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    import numpy  # noqa: F401
    import torch  # noqa: F401

    import fusec.verify.child  # noqa: F401

    # Objects made so far stay for good: the collector need not touch, and so copy, their
    # pages in a child.
    gc.collect()
    gc.freeze()
    gc.disable()
    send(sock, {"ready": True, "pid": os.getpid()})
    serve(sock)


if __name__ == "__main__":
    main(int(sys.argv[1]))
