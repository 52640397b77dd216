"""Random edits, done in processes that stand for notebooks, and what became of them in sum."""

from __future__ import annotations

import queue
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from faults.report import Outcome
from faults.run_edits import Notebook, harm_of

_PATIENCE = 120.0
_GROUP = "A slip of the hand, at random"


def run_fuzz(seeds: Sequence[int], jobs: int = 1, seconds: float = 0.0) -> list[Outcome]:
    """Do the edits of some seeds.

    Args:
        seeds: Which edits.
        jobs: How many notebooks share them.
        seconds: After so many no more is begun; 0 for no limit.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in seeds:
        waiting.put(seed)
    until = time.monotonic() + seconds if seconds else float("inf")
    said: Counter[str] = Counter()
    bad: list[str] = []

    def share() -> None:
        notebook = Notebook(("faults.fuzz_edits",), _PATIENCE)
        try:
            while time.monotonic() < until:
                try:
                    seed = waiting.get_nowait()
                except queue.Empty:
                    return
                found = notebook.ask(str(seed))
                words = _bad(found)
                said["bad" if words else _kind(found)] += 1
                if words:
                    bad.append(f"seed {seed}: {words}")
                    print("\n    ".join([f"  BAD {bad[-1]}", *_details(found)]), file=sys.stderr)
                if isinstance(found, str):
                    notebook.close()
                    notebook = Notebook(("faults.fuzz_edits",), _PATIENCE)
        finally:
            notebook.close()

    with ThreadPoolExecutor(jobs) as pool:
        for ended in [pool.submit(share) for _ in range(jobs)]:
            ended.result()
    kinds = ", ".join(f"{count} {kind}" for kind, count in said.most_common())
    count = sum(said.values())
    words = "; ".join([kinds, *bad])
    return [Outcome(_GROUP, f"{count} random edits", count, count - said["bad"], words, not bad)]


def _kind(found: Any) -> str:
    if found["ok"]:
        return "the same text" if found["same"] else "accepted and right"
    return f"refused ({found['stage']})"


def _bad(found: Any) -> str:
    """Return what is bad about what became of an edit; nothing where it is as it should be."""
    return f"THE NOTEBOOK {found}" if isinstance(found, str) else harm_of(found)


def _details(found: Any) -> list[str]:
    """Return what the edit was, and on which inputs it is off by how much."""
    return [] if isinstance(found, str) else [*found["edit"], *found["numbers"]]


__all__ = ["run_fuzz"]
