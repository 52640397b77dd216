"""The child processes of a run: each runs one name after the other, with a time limit.

A child that dies or takes too long costs the unit that it was at, no other: a new one goes on
behind it.
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
from collections.abc import Iterator, Sequence
from typing import Any

from ops import report
from support import repro
from support.children import in_threads


class Run:
    """The children of a run, and what they report.

    Args:
        options: Of the suite.
        names: What to run: (database, name).
        done: The report's units so far, by key; new ones are added.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        names: Sequence[tuple[str, str]],
        done: dict[str, Any],
    ) -> None:
        self.options = options
        self.done = done
        self.waiting: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        marks = {(u["database"], u["op"], u["run"]) for u in done.values() if u.get("last")}
        self.kind = options.kind
        todo = [each for each in names if (*each, self.kind) not in marks]
        for each in todo:
            self.waiting.put(each)
        self.count, self.started = len(todo), time.monotonic()
        self.lock = threading.Lock()
        self.over = 0
        self.stopped = False

    def go(self) -> None:
        """Run everything; an interrupt lets what is running end."""
        with tempfile.TemporaryDirectory() as self.peers_cache:
            in_threads(self.options.jobs, self._work, self._stop)

    def _stop(self) -> None:
        self.stopped = True

    def _work(self) -> None:
        child: Child | None = None
        while not self.stopped:
            try:
                database, name = self.waiting.get_nowait()
            except queue.Empty:
                break
            over = False
            while not over and not self.stopped:
                child = child or Child(self.options, self.peers_cache)
                skip = [key for key, unit in list(self.done.items()) if unit["op"] == name]
                problem = child.run(database, name, skip, self._take)
                over = not problem
                if problem:
                    child.end()
                    over = not child.at  # it died before it came to a unit
                    unit = child.at or {"key": f"{database} {name}", "dtype": "-", "direction": "-"}
                    lost = {"verdict": problem, "detail": "", "kernels": 0, "externs": []}
                    unit = {"database": database, "op": name, "backend": "fusec", **unit}
                    self._take({**unit, "run": self.kind, "samples": [lost], "last": over})
                    child = None
            with self.lock:
                self.over += 1
                if self.over % 20 == 0 or self.over == self.count:
                    seconds = time.monotonic() - self.started
                    print(f"{self.over} of {self.count} operators, {seconds:.0f} s", flush=True)
        if child is not None:
            child.end()

    def _take(self, unit: dict[str, Any]) -> None:
        with self.lock:
            for number, sample in enumerate(unit["samples"]):
                text = sample.pop("program", "")
                place = sample.get("variant") or number
                if text:
                    path = repro.write(self.options.repros, f"{unit['key']} {place}", text)
                    sample["repro"] = str(path)
                if sample["verdict"] in report.BAD:
                    text = f"{unit['key']} {place}: {sample['verdict']}: {sample['detail'][:160]}"
                    print(text, flush=True)
            self.done[unit["key"]] = unit
            report.append(self.options.report, unit)


class Child:
    """A process that runs one name after the other.

    Args:
        options: Of the suite.
        peers_cache: Where TorchInductor keeps what all children need: headers it has compiled,
            what it found out about the processor.

    Attributes:
        at: The unit that it is running, as it announced it.
    """

    def __init__(self, options: argparse.Namespace, peers_cache: str) -> None:
        command = [sys.executable, "-m", "ops", "--child", "--samples", str(options.samples)]
        command += ["--dtypes", *options.dtypes]
        command += ["--target", options.target]
        for flag in options.flags:
            command += [f"--{flag}"] if getattr(options, flag) else []
        self.at: dict[str, Any] | None = None
        self.cache = tempfile.TemporaryDirectory()
        self.timeout = options.timeout
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "FUSEC_STRICT": "1",  # what fails inside is to be seen, not to run in eager
            "FUSEC_CACHE_DIR": f"{self.cache.name}/fusec",
            "TORCHINDUCTOR_CACHE_DIR": peers_cache,
        }
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            process_group=0,  # an interrupt of the run is none of what it is about to end
        )

    def run(self, database: str, name: str, skip: Sequence[str], take: Any) -> str:
        """Run one name; returns ``timeout`` or ``crash`` if it did not end well.

        Args:
            database: Where it is.
            name: What to run.
            skip: Keys of units that are done.
            take: Given what is reported of each unit.
        """
        assert self.process.stdin is not None
        self.at = None
        timer = threading.Timer(self.timeout, self.process.kill)
        timer.start()
        try:
            asked = {"database": database, "name": name, "skip": list(skip)}
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
            for message in self._messages():
                if "begin" in message:
                    self.at = message["begin"]
                elif "over" in message:
                    return ""
                else:
                    take(message)
        except (OSError, ValueError):
            pass
        finally:
            expired = timer.finished.is_set()
            timer.cancel()
        return "timeout" if expired else "crash"

    def _messages(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.cache.cleanup()


def serve(options: argparse.Namespace) -> None:
    """Run, as a child, what is named on standard input; answer with a JSON line a unit."""
    import dataclasses

    import torch

    from fusec.target_api.registry import AUTO
    from ops import judge
    from ops.databases import Asked, database
    from ops.judge import Sample
    from support.validate import Validation, validated

    torch.set_num_threads(1)
    judge.target = options.target
    answers, sys.stdout = sys.stdout, sys.stderr
    backends = ("fusec", "inductor") if options.inductor else ("fusec",)
    directions = {"forward", "backward", "corner", "strided"}
    asked = {name for name in directions if getattr(options, name)} or {"forward", "backward"}

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    for line in sys.stdin:
        given = json.loads(line)
        kind, name, skip = given["database"], given["name"], set(given["skip"])
        wanted = Asked(
            frozenset(asked), frozenset(options.dtypes), options.samples, options.dynamic
        )
        todo = [(b, u) for b in backends for u in database(kind).asked_units(name, wanted)]
        prefix = "" if kind == "operators" else f"{kind} "
        common = {"database": kind, "op": name, "run": options.kind}
        for backend, unit in todo:
            way = f"{unit.direction} dynamic" if options.dynamic else unit.direction
            way += f" {options.target}" if options.target != AUTO else ""
            head = {"key": f"{prefix}{name} {unit.dtype} {way} {backend}", **common}
            head |= {"dtype": unit.dtype, "direction": way, "backend": backend}
            if head["key"] in skip:
                continue
            answer({"begin": head})
            try:
                with validated(options.validate, Validation()) as mistranslated:
                    samples = unit.run(backend)
                samples += [Sample("mistranslated", text) for text in mistranslated]
            except Exception as error:  # of the database's own making
                samples = [Sample("no samples", f"{type(error).__name__}: {error}"[:200])]
            made = [dataclasses.asdict(sample) for sample in samples]
            answer({**head, "samples": made, "last": False})
        empty = {"key": f"{prefix}{name} {options.kind} over", **common, "dtype": "-"}
        answer({**empty, "direction": "-", "backend": "fusec", "samples": [], "last": True})
        answer({"over": name})


__all__ = ["Child", "Run", "serve"]
