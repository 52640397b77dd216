"""Runs seeds in several processes, each some hundred seeds after each other.

A process that dies or hangs costs the seed that it was at, which counts as wrong; a new one goes on
behind it.  The report is a file of JSON lines, one a seed and net; the same command goes on where
it was stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from support.children import in_threads, json_lines

Row = dict[str, Any]
CHUNK = 250  # seeds of a process: its libraries stay loaded, and what torch remembers grows
TIME_LIMIT = 150.0  # seconds of a seed
ALONE_LIMIT = 100.0  # ... of one that is run once more, in a process of its own
SHOWN = ("target", "device", "train", "halves", "dynamic", "state", "training") + (
    "length",
    "validate",
)
DEFAULTS = {"target": "auto", "device": "cpu"}


def net_of(options: argparse.Namespace) -> str:
    """Return in words what is run, so that a report may hold several."""
    said = [name for name in SHOWN if getattr(options, name) is True]
    said += [
        f"{name} {value}"
        for name in SHOWN
        if (value := getattr(options, name)) not in (True, False, 0, DEFAULTS.get(name))
    ]
    poison = os.environ.get("FUSEC_POISON", "") not in ("", "0")
    return " ".join([*said, *(["poison"] if poison else [])]) or "forward"


def read(path: Path, net: str) -> dict[int, Row]:
    """Return the rows of a net by seed; a line that was cut off is left out."""
    return {row["seed"]: row for row in json_lines(path) if row["net"] == net}


class Jobs:
    """The processes of a run, and what they report.

    Args:
        options: Of the suite.
        seeds: What to run.
        command: What is a child; a test has its own.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        seeds: Sequence[int],
        command: Sequence[str] = (sys.executable, "-m", "programs"),
    ) -> None:
        self.options = options
        self.command = [*command, "--child", *_flags(options)]
        self.net = net_of(options)
        known = read(options.report, self.net)
        self.rows = {seed: known[seed] for seed in seeds if seed in known}
        todo = [seed for seed in seeds if seed not in known]
        size = max(1, min(CHUNK, -(-len(todo) // options.jobs)))
        self.waiting: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        for start in range(0, len(todo), size):
            self.waiting.put(todo[start : start + size])
        self.lock = threading.Lock()
        self.devices = itertools.cycle(_devices(options.device))
        self.started = time.monotonic()
        self.stopped = False

    def go(self) -> dict[int, Row]:
        """Run all seeds, or as many as there is time for; returns a row each."""
        self.options.report.parent.mkdir(parents=True, exist_ok=True)
        _end_line(self.options.report)
        in_threads(self.options.jobs, self._work, self._stop)
        return self.rows

    def _stop(self) -> None:
        self.stopped = True

    @property
    def _is_over(self) -> bool:
        limit = self.options.seconds
        return self.stopped or (bool(limit) and time.monotonic() - self.started > limit)

    def _work(self) -> None:
        with self.lock:
            device = next(self.devices)
        while not self._is_over:
            try:
                seeds = self.waiting.get_nowait()
            except queue.Empty:
                return
            while seeds and not self._is_over:
                seeds = self._run(seeds, device)

    def _run(self, seeds: list[int], device: str) -> list[int]:
        """Run seeds in a new process; returns those behind the one that ended it."""
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            return self._run_beside(seeds, device, errors)

    def _run_beside(self, seeds: list[int], device: str, errors: IO[str]) -> list[int]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": device,
            "PYTHONFAULTHANDLER": "1",  # says where a crash was
        }
        process = subprocess.Popen(
            self.command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        hung = threading.Event()

        def kill() -> None:
            hung.set()
            process.kill()

        left = list(seeds)
        try:
            process.stdin.write(json.dumps(seeds) + "\n")
            process.stdin.flush()
            while left and not self._is_over:
                timer = threading.Timer(TIME_LIMIT, kill)
                timer.start()
                line = process.stdout.readline()
                timer.cancel()
                if not line:
                    break
                self._take(json.loads(line))
                left.pop(0)
        except (OSError, ValueError):
            pass
        finally:
            process.kill()
            status = process.wait()
        if left and not self._is_over:
            seed = left.pop(0)
            if hung.is_set():
                self._take({"seed": seed, "problems": [f"hangs: more than {TIME_LIMIT:.0f} s"]})
            else:
                errors.seek(0)
                row = _ended(seed, status, self.options, self.command, _where(errors.read()))
                self._take(row)
        return left

    def _take(self, row: Row) -> None:
        row = {"net": self.net, **row}
        with self.lock:
            self.rows[row["seed"]] = row
            with self.options.report.open("a") as file:
                print(json.dumps(row), file=file)
            if "problems" in row:
                print(f"# {row['seed']} {row.get('repro', '')}\n{row.get('text', '')}")
                print("\n".join(row["problems"]) + "\n", flush=True)
            if len(self.rows) % 500 == 0:
                took = time.monotonic() - self.started
                print(f"{len(self.rows)} programs ({self.net}), {took:.0f} s", flush=True)


def _end_line(path: Path) -> None:
    """Let what comes next begin a line, where a run was killed in the middle of one."""
    if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        with path.open("a") as file:
            file.write("\n")


def _devices(device: str) -> list[str]:
    """Return the GPUs that processes are spread over, as ``CUDA_VISIBLE_DEVICES`` has them."""
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if device != "cuda":
        return [given or ""]
    return given.split(",") if given else [str(n) for n in range(torch.cuda.device_count())]


def _flags(options: argparse.Namespace) -> list[str]:
    flags = []
    for name in SHOWN:
        value = getattr(options, name)
        if value is True:
            flags.append(f"--{name}")
        elif value:
            flags += [f"--{name}", str(value)]
    return flags


def alone(
    seed: int,
    options: argparse.Namespace,
    command: Sequence[str] = (sys.executable, "-m", "programs"),
) -> Row:
    """Return what comes of a seed in a process that ran no other program before.

    Args:
        seed: Of the program.
        options: Of the suite.
        command: What is a child; a test has its own.
    """
    command = [*command, "--child", "--alone", *_flags(options)]
    row = _answer(seed, command)
    if isinstance(row, int):
        return _ended(seed, row, options, command)
    return row


def _where(errors: str) -> list[str]:
    """Return where a process crashed, if it said so."""
    _, crashed, stack = errors.rpartition("Fatal Python error")
    frames = [line.strip() for line in stack.splitlines() if line.startswith("  File ")]
    shown = frames[:8] + [each for each in frames[8:] if each.endswith("in run_in_eager")]
    return ["; ".join(shown)] if crashed and frames else []


def _ended(
    seed: int,
    status: int,
    options: argparse.Namespace,
    command: Sequence[str],
    where: Sequence[str] = (),
) -> Row:
    """Return what is said of a seed whose process ended: whether eager alone ends it, too."""
    if any("in run_in_eager" in each for each in where):
        return {"seed": seed, "eager_ends": f"crash: {status}, behind other programs"}
    if options.state and isinstance(_answer(seed, [*command, "--eager"]), int):
        return {"seed": seed, "eager_ends": f"crash: {status}"}
    return {"seed": seed, "problems": [f"crash: {status}", *where]}


def _answer(seed: int, command: Sequence[str]) -> Row | int:
    """Return what a child says of a seed, or how it ended."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            input=json.dumps([seed]),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=ALONE_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"seed": seed, "problems": [f"hangs: more than {ALONE_LIMIT:.0f} s"]}
    try:
        return json.loads(done.stdout)  # type: ignore[no-any-return]
    except ValueError:
        return done.returncode


def serve(options: argparse.Namespace) -> None:
    """Run, as a child, the seeds given on standard input; answer with a JSON line each."""
    from programs.examine import examine, prepare

    answers, sys.stdout = sys.stdout, sys.stderr
    prepare(options)
    for seed in json.loads(sys.stdin.readline()):
        print(json.dumps(examine(seed, options).row()), file=answers, flush=True)


__all__ = ["Jobs", "alone", "net_of", "read", "serve"]
