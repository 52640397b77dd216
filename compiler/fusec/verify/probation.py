"""What edited kernels leave behind where the process ends in the middle of one.

No check finds everything.  So each call of an edited kernel adds one to a number before it and to
another after it, in a file that is mapped into memory: that costs nothing, and what was written
there outlives the process however it ends.  A file whose process is gone and whose numbers differ
says which text ran when it ended; that text is refused from then on, in every session.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusec.cache import default_store
from fusec.systems import this_system
from fusec.verify.words import Finding

FOLDER = ".probation"
_NUMBERS = 16  # two of 64 bits
_TEXT = 64  # where the description begins
_SIZE = 4096
_kept: dict[str, Journal] = {}


@dataclass(frozen=True)
class Journal:
    """The two numbers of a text, in this process.

    Attributes:
        path: The file.
        address: Where it is mapped.
    """

    path: Path
    address: int

    @property
    def calls(self) -> tuple[int, int]:
        """How many calls have begun, and how many have ended."""
        begun, ended = (ctypes.c_int64 * 2).from_address(self.address)
        return begun, ended


def journal(kernel: str, text: str) -> Journal | None:
    """Return the journal of a text in this process; None where no file can be had.

    Args:
        kernel: The kernel's name, for people.
        text: The whole kernel file.
    """
    name = _name(text)
    if name not in _kept:
        store = default_store()
        try:
            folder = store.folder / FOLDER
            folder.mkdir(mode=0o700, exist_ok=True)
            path = folder / f"{name}.{os.getpid()}"
            described = json.dumps({"kernel": kernel, "owner": _owner(), "when": time.time()})
            content = bytes(_TEXT) + described.encode()
            path.write_bytes(content.ljust(_SIZE, b"\0"))
            with path.open("r+b") as file:
                address = this_system().map_file(file.fileno(), _SIZE)
        except OSError:
            return None
        _kept[name] = Journal(path, address)
    return _kept[name]


def crash(text: str) -> Finding | None:
    """Return that an earlier process ended in the middle of a text, if one did.

    What processes that ended well have left is removed.
    """
    folder = default_store().folder / FOLDER
    found = None
    for path in sorted(folder.glob(f"{_name(text)}.*")):
        record = _read(path)
        if record is None:
            with contextlib.suppress(OSError):
                path.unlink()
            continue
        if _lives(record["owner"]):
            continue
        begun, ended = record["calls"]
        if begun <= ended:
            with contextlib.suppress(OSError):
                path.unlink()
            continue
        reason = (
            f"the process of {record['date']} ended in the middle of its call {begun}; "
            "say --trust if it was not to blame"
        )
        found = Finding("unsafe", reason)
    return found


def forgive(text: str) -> None:
    """Forget that a process ended in the middle of a text: its user trusts it."""
    for path in (default_store().folder / FOLDER).glob(f"{_name(text)}.*"):
        record = _read(path)
        if record is None or not _lives(record["owner"]):
            with contextlib.suppress(OSError):
                path.unlink()


def _name(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def _read(path: Path) -> dict[str, Any] | None:
    """Return what a journal says; None where it is damaged."""
    try:
        content = path.read_bytes()
        record = json.loads(content[_TEXT:].rstrip(b"\0"))
        numbers = memoryview(content[:_NUMBERS]).cast("q")
        pid, started = record["owner"]
        if not (isinstance(pid, int) and isinstance(started, int | None)):
            return None
        return {
            "owner": [pid, started],
            "date": time.strftime("%Y-%m-%d %H:%M", time.localtime(float(record["when"]))),
            "calls": (numbers[0], numbers[1]),
        }
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _owner() -> list[int | None]:
    """Return this process's id and when it was started, which no other process shares."""
    pid = os.getpid()
    return [pid, this_system().started(pid)]


def _lives(owner: list[Any]) -> bool:
    started = this_system().started(owner[0])
    return started is not None and started == owner[1]


def _leave() -> None:
    """At an ordinary end of the process: there is nothing to tell."""
    for kept in _kept.values():
        if kept.path.suffix == f".{os.getpid()}":
            with contextlib.suppress(OSError):
                kept.path.unlink()


atexit.register(_leave)

__all__ = ["Journal", "crash", "forgive", "journal"]
