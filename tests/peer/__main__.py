"""``make peer``: a peer's test files with our backend; what passes, and what fails, by name.

The files are the user's own: none comes with the repository. Each test runs in a child process
with a time limit; one that dies costs the test that it was at. Where a test fails, another backend
is asked the same (``--beside``), so that what is of torch's version or of the peer's own text is
told apart from what is ours.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from support.children import in_threads, json_lines

_AT_ONCE = 12  # tests that one process runs, one after the other


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(prog="make peer", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="test files, of unittest's form")
    parser.add_argument("--backend", default="fusec", help="in the place of every other")
    parser.add_argument(
        "--beside",
        default="aot_eager",
        help="the backend that is asked where a test fails; as-written: the file's own",
    )
    parser.add_argument(
        "--graphs", action="store_true", help="compare each graph with eager, on copies of inputs"
    )
    parser.add_argument(
        "--share", default="0/1", help="K/N: of the tests that are chosen, every N-th from K on"
    )
    parser.add_argument("-k", dest="words", nargs="+", default=[], help="parts of tests' names")
    parser.add_argument("--without", nargs="+", default=[], help="parts of names to leave out")
    parser.add_argument("--jobs", type=int, default=2, help="tests at once")
    parser.add_argument("--timeout", type=float, default=120, help="seconds a test")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for all of it")
    parser.add_argument("--report", type=Path, default=Path("build/peer.jsonl"))
    parser.add_argument("--again", action="store_true", help="also what the report has already")
    return parser.parse_args(arguments)


class Child:
    """A process that runs tests of one file with one backend.

    Args:
        path: The file.
        backend: The backend.
        timeout: Seconds a test.
        cache: Folder in which kernels are kept: that of all processes of a run, so that what
            every process needs is built once.
        graphs: Whether each graph is compared with eager.
    """

    def __init__(
        self, path: Path, backend: str, timeout: float, cache: str, *, graphs: bool = False
    ) -> None:
        self.timeout = timeout
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "FUSEC_STRICT": "1",  # what fails inside is to be seen, not to run in eager
            "FUSEC_CACHE_DIR": f"{cache}/fusec",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "peer.child", str(path), backend, *(["graphs"] * graphs)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            process_group=0,
        )
        self.names = self._answer(300)

    def run(self, name: str) -> dict[str, Any]:
        """Run a test; returns what became of it."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
        except OSError:
            return {"verdict": "crash", "why": "the process had ended"}
        return self._answer(self.timeout)

    def _answer(self, seconds: float) -> Any:
        assert self.process.stdout is not None
        began = time.monotonic()
        timer = threading.Timer(seconds, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if line:
            return json.loads(line)
        expired = time.monotonic() - began >= seconds
        return {"verdict": "timeout" if expired else "crash", "why": f"{self.process.wait()}"}

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


class Run:
    """A run: its tests, and what became of each.

    Args:
        options: Of the run.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.ends = time.monotonic() + options.seconds
        self.lock = threading.Lock()
        self.files: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self.waiting: queue.SimpleQueue[tuple[Path, list[str]]] = queue.SimpleQueue()
        self.rows: list[dict[str, Any]] = list(json_lines(options.report))
        self.done = {(row["file"], row["test"]) for row in self.rows}
        self.count = self.over = 0
        self.cache = ""

    def go(self) -> None:
        """Run the tests that the report has not yet."""
        for path in self.options.files:
            self.files.put(path.resolve())
        jobs = self.options.jobs
        with tempfile.TemporaryDirectory() as self.cache:
            in_threads(jobs, partial(_each, self.files, self._collect), self._stop)
            in_threads(jobs, partial(_each, self.waiting, self._run_some), self._stop)

    def _collect(self, path: Path) -> None:
        child = Child(path, self.options.backend, self.options.timeout, self.cache)
        child.end()
        if isinstance(child.names, dict):
            print(f"{path} cannot be imported: python -m peer.child {path} eager", flush=True)
            return
        words, without = self.options.words, self.options.without
        names = [n for n in child.names if not words or any(w in n for w in words)]
        names = [n for n in names if not any(w in n for w in without)]
        place, of = map(int, self.options.share.split("/"))
        names = [n for n in names[place::of] if (path.name, n) not in self.done]
        with self.lock:
            self.count += len(names)
        for first in range(0, len(names), _AT_ONCE):
            self.waiting.put((path, names[first : first + _AT_ONCE]))

    def _stop(self) -> None:
        self.ends = 0.0

    def _run_some(self, given: tuple[Path, list[str]]) -> None:
        path, names = given
        children: dict[str, Child] = {}

        def run(backend: str, name: str) -> dict[str, Any]:
            if backend not in children:
                children[backend] = Child(
                    path, backend, self.options.timeout, self.cache, graphs=self.options.graphs
                )
            said = children[backend].run(name)
            if said["verdict"] in ("crash", "timeout"):
                children.pop(backend).end()
            return said

        for name in names:
            if time.monotonic() > self.ends:
                break
            row: dict[str, Any] = {"file": path.name, "test": name}
            row |= run(self.options.backend, name)
            if row["verdict"] not in ("passed", "skipped"):
                row["beside"] = run(self.options.beside, name)["verdict"]
            self._take(row)
        for child in children.values():
            child.end()

    def _take(self, row: dict[str, Any]) -> None:
        with self.lock:
            self.rows.append(row)
            self.options.report.parent.mkdir(parents=True, exist_ok=True)
            with self.options.report.open("a") as file:
                file.write(json.dumps(row) + "\n")
            self.over += 1
            if row.get("beside") in ("passed", "skipped"):
                print(f"{row['verdict']}: {row['test']}: {row.get('lines', '')[-200:]}")
                print(f"    {row.get('error', '')}: {row['why'][:300]}", flush=True)
            if self.over % 50 == 0 or self.over == self.count:
                print(f"{self.over} of {self.count} tests", flush=True)


def _each(waiting: queue.SimpleQueue[Any], work: Callable[[Any], None]) -> None:
    """Do what waits in a queue, until there is nothing more."""
    while True:
        try:
            given = waiting.get_nowait()
        except queue.Empty:
            return
        work(given)


def totals(rows: Sequence[dict[str, Any]], beside: str) -> str:
    """Return a line a file: how many tests passed, and what the other backend says of the rest."""
    said = []
    for file in sorted({row["file"] for row in rows}):
        own = [row for row in rows if row["file"] == file]
        count = Counter(row["verdict"] for row in own)
        ours = [row for row in own if row.get("beside") in ("passed", "skipped")]
        also = sum("beside" in row for row in own) - len(ours)
        words = ", ".join(f"{number} {verdict}" for verdict, number in count.most_common())
        said += [f"{file}: {words}; of what did not pass, {beside} passes {len(ours)}, not {also}"]
    return "\n".join(said)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests; returns 1 if one fails that another backend passes."""
    options = parse(arguments)
    if options.again:
        options.report.unlink(missing_ok=True)
    run = Run(options)
    run.go()
    print(totals(run.rows, options.beside))
    return int(any(row.get("beside") == "passed" for row in run.rows))


if __name__ == "__main__":
    sys.exit(main())
