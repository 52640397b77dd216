"""What a compiler says: heard within a time, and no more of it than anybody reads."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from fusec.systems import this_system

# What a compiler may take of the machine, so that no text makes one take all of it.
_MEMORY = 4 << 30
_LEAST_MEMORY = 2 << 30
_WRITTEN = 256 << 20
# Characters that are kept of what one compiler prints; the rest is read, or it would wait for ever.
MOST = 1 << 20
_BLOCK = 1 << 16


def start(
    command: Sequence[str],
    folder: str | None,
    environment: Mapping[str, str],
    *,
    errors: int = subprocess.STDOUT,
    limited: bool = True,
    processor: int = 0,
) -> subprocess.Popen[str]:
    """Start a program in a session of its own, which ends when this process does.

    Args:
        command: What to run.
        folder: Where; the working folder if None.
        environment: All of its environment.
        errors: Where what it prints as errors goes.
        limited: Whether it has a compiler's limit of memory.
        processor: Seconds of a processor's for each of its processes; 0 for no limit.

    Raises:
        OSError: It cannot be started.
    """
    system = this_system()
    memory = min(_MEMORY, max(_LEAST_MEMORY, system.memory_size() // 2)) if limited else 0
    return subprocess.Popen(
        system.guarded(command, memory=memory, written=_WRITTEN, seconds=processor),
        cwd=folder,
        # g++ finds its assembler and its linker on the path alone.
        env={"PATH": os.defpath, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        errors="replace",
        **system.detached(),
    )


def end(process: subprocess.Popen[str]) -> None:
    """End what was started, if it still runs, with all that it has started."""
    if process.poll() is None:
        this_system().end_tree(process)
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


def listen(process: subprocess.Popen[str], seconds: float) -> str:
    """Return the first part of what a process prints, once it has ended.

    Args:
        process: Started with a pipe for its output.
        seconds: How long it may take.

    Raises:
        subprocess.TimeoutExpired: It took longer; it still runs.
    """
    heard: list[str] = []

    def read() -> None:
        left = MOST
        assert process.stdout is not None
        with process.stdout as stream:
            while block := stream.read(_BLOCK):
                heard.append(block[:left])
                left -= len(heard[-1])

    end = time.monotonic() + seconds
    # A thread, as there is no other way to stop reading in time on every system.
    reader = threading.Thread(target=read, name="fusec-listen", daemon=True)
    reader.start()
    reader.join(seconds)
    if reader.is_alive():
        raise subprocess.TimeoutExpired(process.args, seconds)
    process.wait(max(1.0, end - time.monotonic()))
    return "".join(heard)


def run(
    command: Sequence[str],
    folder: str | None,
    environment: Mapping[str, str],
    seconds: float,
    *,
    errors: int = subprocess.DEVNULL,
) -> tuple[int, str]:
    """Run a compiler; return its status and its standard output. Nothing that it started stays.

    Args:
        command: What to run.
        folder: Where; the working folder if None.
        environment: All of its environment.
        seconds: How long it may take.
        errors: Where what it prints as errors goes; lost by default.

    Raises:
        OSError: It cannot be started.
        TimeoutError: It took longer.
    """
    process = start(command, folder, environment, errors=errors)
    try:
        output = listen(process, seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{command[0]} does not answer in {seconds:g} s") from None
    finally:
        # Also at an interrupt, and what a script has left running behind it.
        end(process)
    return process.returncode, output


__all__ = ["MOST", "end", "listen", "run", "start"]
