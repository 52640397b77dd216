"""``make soak``: a notebook that fuses, edits, tunes and runs again, for a while.

What it holds has to stay level: memory, descriptors, threads, processes, the cache.  The cells and
edits come round again, as they do where somebody works; the first rounds bring what is made once.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import psutil

# Rounds that bring what is made once: kernels, records, the native part of calls, every edit.
FIRST = 12
LEAST = 4  # rounds after them, however long that takes: fewer say nothing
# Kinds of entries that keep what was done: each edit, each search. They grow with the work, to the
# limit of the store.
HISTORY = {"edits", "tuning"}
CELLS = {
    "scale": "a = torch.tanh(x * w + 1.0) * 0.5",
    "normal": "b = torch.softmax(x - w, -1) * x",
    "means": "c = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5)",
    "sums": "d = (x * w).relu().sum(0)",
    "trained": "p = x.clone().requires_grad_()\n(p.sigmoid() * w).sum().backward()\ng = p.grad",
}


@dataclass(frozen=True)
class Level:
    """What a process holds.

    Attributes:
        memory: Bytes that are its own.
        descriptors: Open files.
        threads: Its threads.
        processes: Its children, and theirs.
        cache: Bytes in the cache, without its history.
        files: Files in the cache, without its history.
    """

    memory: float
    descriptors: float
    threads: float
    processes: float
    cache: float
    files: float


# How much more the last quarter of the rounds may hold than the quarter after the first rounds; to
# the cache a search adds plans that the searches before it had no time for.
ROOM = Level(memory=24e6, descriptors=2, threads=2, processes=0, cache=1e6, files=100)


def level(cache: Path) -> Level:
    """Return what this process holds now."""
    gc.collect()
    me = psutil.Process()
    files = [
        Path(folder, name)
        for folder, _, names in os.walk(cache)
        for name in names
        if not HISTORY.intersection(Path(folder).relative_to(cache).parts)
    ]
    return Level(
        me.memory_full_info().uss,
        me.num_fds(),
        me.num_threads(),
        len(me.children(recursive=True)),
        sum(file.stat().st_size for file in files if file.exists()),
        len(files),
    )


class Notebook:
    """An IPython shell with the extension, and somebody who works in it."""

    def __init__(self) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        # Its history is a database of its own in a folder that is removed.
        config = Config({"HistoryManager": {"enabled": False}})
        self.shell: Any = InteractiveShell.instance(config=config)
        self.run("%load_ext fuselab")
        self.run("import torch")
        self.run("torch.manual_seed(0)\nx, w = torch.randn(256, 320), torch.randn(320)")

    def run(self, cell: str) -> None:
        """Run a cell as a notebook does, without keeping its history or its output."""
        from IPython.utils.capture import capture_output

        with capture_output():
            result = self.shell.run_cell(cell, store_history=False)
        result.raise_error()
        self.shell.displayhook.flush()

    def round(self, number: int) -> None:
        """Fuse every cell, edit one kernel, tune another, and run all again."""
        from fuselab import current_session

        for name, cell in CELLS.items():
            self.run(f"%%fuse --name {name}\n{cell}")
        cells = current_session().cells
        chosen = list(CELLS)[number % 4]
        kernel = next(iter(cells[chosen].kernels.values()))
        edited = f"{kernel.source}// edit {number % 3}\n"
        verdict = kernel.keep(edited)
        assert verdict.ok, f"a right edit was refused: {verdict.reason}"
        wrong = kernel.check(edited.replace('extern "C"', 'extern "C" nonsense', 1))
        assert not wrong.ok
        self.run(f"%%fuse --name {chosen}\n{CELLS[chosen]}")
        kernel.revert()
        other = next(iter(cells[list(CELLS)[(number + 1) % 4]].kernels.values()))
        if other.can_be_tuned:
            other.tune(budget=0.5)
            other.revert()
        self.run(
            "torch.testing.assert_close(a, torch.tanh(x * w + 1.0) * 0.5)\n"
            "torch.testing.assert_close(b, torch.softmax(x - w, -1) * x)\n"
            "torch.testing.assert_close(d, (x * w).relu().sum(0), rtol=1e-4, atol=1e-3)"
        )


def risen(levels: list[Level]) -> list[str]:
    """Return what the last quarter of the rounds holds more of than the first, in words."""
    quarter = max(1, len(levels) // 4)
    early, late = levels[:quarter], levels[-quarter:]
    problems = []
    for each, room in zip(fields(Level), astuple(ROOM), strict=True):
        before, after = (
            statistics.median(getattr(level, each.name) for level in part) for part in (early, late)
        )
        if after > before + room:
            problems.append(f"{each.name} rose from {before:,.0f} to {after:,.0f}")
    return problems


def soak(minutes: float) -> list[str]:
    """Work for some minutes; return what is not level."""
    cache = Path(os.environ["FUSEC_CACHE_DIR"])
    notebook, levels = Notebook(), []
    print(f"{minutes:g} minutes, and {FIRST + LEAST} rounds at least", flush=True)
    end, number = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < end or len(levels) < LEAST:
        notebook.round(number)
        number += 1
        found = level(cache)
        if number > FIRST:
            levels.append(found)
        print(
            f"round {number:4}: {found.memory / 1e6:7.1f} MB, {found.descriptors:3} descriptors, "
            f"{found.threads:3} threads, {found.processes} processes, "
            f"cache {found.cache / 1e6:.2f} MB in {found.files} files",
            flush=True,
        )
    return risen(levels)


def main() -> int:
    """Soak; 0 where all stayed level."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        os.environ |= {
            "FUSEC_CACHE_DIR": str(Path(folder, "cache")),
            "IPYTHONDIR": str(Path(folder, "ipython")),
            "MPLBACKEND": "Agg",
        }
        problems = soak(options.minutes)
    print("; ".join(problems) or "level: memory, descriptors, threads, processes, cache")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
