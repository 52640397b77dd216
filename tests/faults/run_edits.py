"""The table of edits, done in processes that stand for notebooks."""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from faults.edits import FAULTS, TITLES, Fault
from faults.report import Outcome
from support import cpp_library

# A check takes some seconds at the very most; more is a hang, which a user would end. A compiler
# may have a minute.
PATIENCE = 100.0
# Until a notebook is there: it waits for the native part, whose build gives way to all else.
_START = 900.0


class Notebook:
    """A process that stands for a notebook.

    Args:
        arguments: What runs in it, and how.
        patience: Seconds that anything may take.
    """

    def __init__(
        self, arguments: Sequence[str] = ("faults.notebook",), patience: float = PATIENCE
    ) -> None:
        self.patience = patience
        tests = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH", "")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._rest = b""
        if self.read(_START) != {"ready": True}:
            raise RuntimeError("the notebook did not start")

    def read(self, patience: float) -> Any:
        """Return the next message, or how the process ended."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + patience
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return "hangs"
            block = os.read(self.process.stdout.fileno(), 1 << 16)
            if not block:
                return f"ended with status {self.process.wait()}"
            self._rest += block
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError:  # what a kernel has printed
            return self.read(patience)

    def attempt(self, fault: Fault) -> Any:
        """Return what became of an edit, or how the process ended, and whether it was kept."""
        return self.ask(fault.name)

    def ask(self, name: str) -> Any:
        """Return what became of what has a name, or how the process ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name}\n".encode())
        self.process.stdin.flush()
        found = self.read(self.patience)
        kept = isinstance(found, dict) and "kept" in found
        if kept:
            found = self.read(self.patience)
        return (
            found if isinstance(found, dict) else f"{found}, {'kept' if kept else 'in the check'}"
        )

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def run_edits(
    only: str = "",
    times: int = 1,
    faults: Sequence[Fault] = FAULTS,
    start: Callable[[], Notebook] = Notebook,
    *,
    says: bool = True,
    jobs: int = 1,
) -> list[Outcome]:
    """Do every edit whose name has ``only`` in it, ``times`` times.

    Args:
        only: What to do.
        times: How often.
        faults: The table.
        start: Starts a notebook.
        says: Whether the words of a verdict count, and the line that it names.
        jobs: How many notebooks share the table.
    """
    waiting: queue.SimpleQueue[tuple[int, Fault]] = queue.SimpleQueue()
    chosen = [fault for fault in faults if only in fault.name]
    for numbered in enumerate(chosen):
        waiting.put(numbered)
    outcomes: dict[int, Outcome] = {}

    def share() -> None:
        user = _User(start)
        try:
            while True:
                try:
                    place, fault = waiting.get_nowait()
                except queue.Empty:
                    return
                outcomes[place] = user.attempt(fault, times, says=says)
        finally:
            user.notebook.close()

    with ThreadPoolExecutor(jobs) as pool:
        for ended in [pool.submit(share) for _ in range(jobs)]:
            ended.result()
    return [outcomes[place] for place in range(len(chosen))]


class _User:
    """Somebody who has a notebook, and starts another one where that has ended."""

    def __init__(self, start: Callable[[], Notebook]) -> None:
        self._start = start
        self.notebook = start()

    def attempt(self, fault: Fault, times: int, *, says: bool) -> Outcome:
        """Do an edit some times, and say what became of it."""
        saw: dict[str, None] = {}
        survived, good = 0, True
        for _ in range(times):
            found = self.notebook.attempt(fault)
            if isinstance(found, str):
                self.notebook.close()
                self.notebook = self._start()
                saw[f"THE NOTEBOOK {found}"] = None
                good = False
                continue
            harm = harm_of(found)
            survived += not harm
            good &= not harm and _as_it_should(fault, found, says)
            line = f"line {found['line']}: " if found["line"] else ""
            said = f"{line}{found['reason']} ({found['seconds']:.1f} s)"
            saw["; ".join(filter(None, [("accepted: " if found["ok"] else "") + said, harm]))] = (
                None
            )
        print(f"  {'ok ' if good else 'BAD'} {fault.name}: {next(iter(saw))}", file=sys.stderr)
        return Outcome(TITLES[fault.group], fault.name, times, survived, next(iter(saw)), good)


def harm_of(found: Any) -> str:
    """Return what an edit did that none may do, in words; nothing where it did nothing."""
    parts = []
    if found["wrong"]:
        parts.append(f"{found['wrong']} results wrong")
    if found["processes"]:
        parts.append(f"{found['processes']} processes left")
    if found["changed"]:
        parts.append(f"changed: {', '.join(found['changed'])}")
    return "; ".join(parts)


def _as_it_should(fault: Fault, found: Any, says: bool) -> bool:
    if fault.group == "right":
        return bool(found["ok"])
    if found["ok"]:
        return False
    if says and found["reason"].startswith(cpp_library.PUT_IN):
        return cpp_library.is_put_in()  # refused for that, whatever else it is
    if says and fault.says not in found["reason"]:
        return False
    return not (says and fault.line) or found["line"] is not None
