"""``make ops``: torch's operator database through fusec, and TorchInductor on request.

Operators run in child processes, some at a time, each with a time limit. The report is a file of
JSON lines, one an operator, dtype and direction; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ops import report

BACKENDS = ("fusec", "inductor")
DTYPES = "float32 float64 bfloat16 float16 int64 int32 uint8 bool complex64".split()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(prog="make ops", description=__doc__)
    parser.add_argument("ops", nargs="*", help="names; by default a sample of the database")
    parser.add_argument("--all", action="store_true", help="every operator")
    parser.add_argument("--count", type=int, default=60, help="operators of the sample")
    parser.add_argument("--seed", type=int, default=0, help="chooses the sample")
    parser.add_argument("--samples", type=int, default=2, help="samples an operator and dtype")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--forward", action="store_true", help="only forward")
    parser.add_argument("--backward", action="store_true", help="only backward")
    parser.add_argument("--corner", action="store_true", help="odd shapes, layouts, values too")
    parser.add_argument("--validate", action="store_true", help="say which translation is wrong")
    parser.add_argument("--inductor", action="store_true", help="TorchInductor as well")
    parser.add_argument("--jobs", type=int, default=2, help="operators at once")
    parser.add_argument("--timeout", type=float, default=300, help="seconds an operator")
    parser.add_argument("--report", type=Path, default=Path("build/ops.jsonl"))
    parser.add_argument("--again", action="store_true", help="also what the report has already")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; returns 1 if fusec was wrong or failed anywhere."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.child:
        _child(options)
        return 0
    from torch.testing._internal.common_methods_invocations import op_db

    from support.opinfo import name_of

    known = list(dict.fromkeys(name_of(op) for op in op_db))
    unknown = set(options.ops) - set(known)
    if unknown:
        print(f"no such operator: {', '.join(sorted(unknown))}")
        return 2
    chosen = options.ops or known
    if not options.ops and not options.all:
        chosen = sorted(random.Random(options.seed).sample(known, options.count))
    if options.again:
        options.report.unlink(missing_ok=True)
    done = report.read(options.report)
    run = _Run(options, chosen, done)
    run.go()
    text = report.totals(done.values())
    options.report.with_suffix(".md").write_text(text)
    print(f"\n{text}")
    return int(any(s["verdict"] in report.BAD for u in done.values() for s in u["samples"]))


class _Run:
    """The children of a run, and what they report."""

    def __init__(
        self, options: argparse.Namespace, ops: Sequence[str], done: dict[str, Any]
    ) -> None:
        self.options = options
        self.done = done
        self.waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        finished = {unit["op"] for unit in done.values() if unit.get("last")}
        todo = [name for name in ops if name not in finished]
        for name in todo:
            self.waiting.put(name)
        self.count, self.started = len(todo), time.monotonic()
        self.lock = threading.Lock()
        self.over = 0
        self.stopped = False

    def go(self) -> None:
        threads = [threading.Thread(target=self._work) for _ in range(self.options.jobs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self.stopped = True
            print("stopping; the same command goes on from here")
            for thread in threads:
                thread.join()

    def _work(self) -> None:
        child: _Child | None = None
        while not self.stopped:
            try:
                name = self.waiting.get_nowait()
            except queue.Empty:
                break
            child = child or _Child(self.options)
            problem = child.run(name, self._take)
            if problem:
                child.end()
                child = None
                lost = {"verdict": problem, "detail": "", "kernels": 0, "externs": []}
                self._take(
                    {
                        "key": f"{name} {problem}",
                        "op": name,
                        "dtype": "-",
                        "direction": "-",
                        "backend": "fusec",
                        "samples": [lost],
                        "last": True,
                    }
                )
            with self.lock:
                self.over += 1
                if self.over % 20 == 0 or self.over == self.count:
                    seconds = time.monotonic() - self.started
                    print(f"{self.over} of {self.count} operators, {seconds:.0f} s", flush=True)
        if child is not None:
            child.end()

    def _take(self, unit: dict[str, Any]) -> None:
        with self.lock:
            self.done[unit["key"]] = unit
            report.append(self.options.report, unit)
            for number, sample in enumerate(unit["samples"]):
                if sample["verdict"] in report.BAD:
                    place = sample.get("variant") or number
                    text = f"{unit['key']} {place}: {sample['verdict']}: {sample['detail'][:160]}"
                    print(text, flush=True)


class _Child:
    """A process that runs one operator after the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        command = [sys.executable, "-m", "ops", "--child", "--samples", str(options.samples)]
        command += ["--dtypes", *options.dtypes]
        for flag in ("forward", "backward", "corner", "inductor", "validate"):
            command += [f"--{flag}"] if getattr(options, flag) else []
        self.cache = tempfile.TemporaryDirectory()
        self.timeout = options.timeout
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "FUSEC_CACHE_DIR": f"{self.cache.name}/fusec",
            "TORCHINDUCTOR_CACHE_DIR": f"{self.cache.name}/inductor",
        }
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, name: str, take: Any) -> str:
        """Run one operator; returns ``timeout`` or ``crash`` if it did not end well."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        timer = threading.Timer(self.timeout, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
            for line in self.process.stdout:
                unit = json.loads(line)
                take(unit)
                if unit["last"]:
                    return ""
        except (OSError, ValueError):
            pass
        finally:
            expired = timer.finished.is_set()
            timer.cancel()
        return "timeout" if expired else "crash"

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.cache.cleanup()


def _child(options: argparse.Namespace) -> None:
    """Run the operators named on standard input; answer with a JSON line a unit."""
    import torch

    from ops.unit import Sample, find, run_unit, units
    from support.validate import Validation, validated

    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, sys.stderr
    asked = options.forward or options.backward or options.corner
    forward, backward = options.forward or not asked, options.backward or not asked
    for line in sys.stdin:
        op = find(line.strip())
        todo = [
            (backend, direction, dtype)
            for backend in BACKENDS[: 2 if options.inductor else 1]
            for direction, dtype in units(op, forward, backward, options.corner)
            if str(dtype).removeprefix("torch.") in options.dtypes
        ]
        for number, (backend, direction, dtype) in enumerate(todo):
            try:
                with validated(options.validate, Validation()) as mistranslated:
                    samples = run_unit(op, direction, dtype, backend, options.samples)
                samples += [Sample("mistranslated", text) for text in mistranslated]
            except Exception as error:  # of the database's own making
                samples = [Sample("no samples", f"{type(error).__name__}: {error}"[:200])]
            short = str(dtype).removeprefix("torch.")
            unit = {
                "key": f"{line.strip()} {short} {direction} {backend}",
                "op": line.strip(),
                "dtype": short,
                "direction": direction,
                "backend": backend,
                "samples": [dataclasses.asdict(sample) for sample in samples],
                "last": number == len(todo) - 1,
            }
            print(json.dumps(unit), file=answers, flush=True)
        if not todo:
            empty = {"key": f"{line.strip()} -", "op": line.strip(), "dtype": "-"}
            empty |= {"direction": "-", "backend": "fusec"}
            print(json.dumps(empty | {"samples": [], "last": True}), file=answers, flush=True)


if __name__ == "__main__":
    sys.exit(main())
