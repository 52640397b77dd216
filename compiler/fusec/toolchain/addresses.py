"""Which lines of a text the instructions of its library are of, by the notes for debuggers."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

TOOLS = ("addr2line", "llvm-addr2line")
DEBUG_FLAG = "-g1"  # lines and what was inlined where, no variables: the code stays the same
_SECONDS = 60.0
_FRAME = re.compile(r"(.*):(\d+)(?: \(discriminator \d+\))?$")


def find_tool() -> str | None:
    """Return what reads the notes: it comes with the linker."""
    return next((found for name in TOOLS if (found := shutil.which(name))), None)


def lines_at(
    tool: str, library: Path, addresses: Sequence[int], source: str
) -> Mapping[int, tuple[int, ...]]:
    """Return the lines of a source that instructions are of: of what was inlined, then its callers.

    Args:
        tool: What ``find_tool`` found.
        library: Built with ``DEBUG_FLAG``.
        addresses: In the library, from its beginning.
        source: The file's name; frames of other files are left out.
    """
    wanted = sorted(set(addresses))
    done = subprocess.run(
        [tool, "-e", str(library), "-i", "-a"],
        input="".join(f"{address:#x}\n" for address in wanted),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    return read_frames(done.stdout, source)


def read_frames(said: str, source: str) -> dict[int, tuple[int, ...]]:
    """Return what ``addr2line -i -a`` said: addresses, each with the lines that it is of."""
    found: dict[int, list[int]] = {}
    current: list[int] = []
    for line in said.splitlines():
        if line.startswith("0x"):
            current = found.setdefault(int(line, 16), [])
        elif (frame := _FRAME.match(line)) and Path(frame[1]).name == source:
            current.append(int(frame[2]))
    return {address: tuple(lines) for address, lines in found.items()}


__all__ = ["DEBUG_FLAG", "TOOLS", "find_tool", "lines_at", "read_frames"]
