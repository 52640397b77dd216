"""``make mutants``: how many mistakes made on purpose in the compiler the tests find.

First it records which test runs which line (once; ``--record`` does it again), then it runs, for
each mutant, the tests that run its lines, until one fails.  The result is a file of JSON lines; a
run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mutants import report, server
from mutants.choose import PLACES, Covering, Test, draw, sources_of
from mutants.mutate import Mutant

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "mutants"
QUICK = "not slow and not serial and not timing and not gpu and not browser"
# Whose tests are asked: what is around the compiler looks at none of its decisions.
ASKED = ("compiler", "nets")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="mutants drawn")
    parser.add_argument("--seed", type=int, default=31, help="draws them")
    parser.add_argument("--first", type=int, default=0, help="run so many of them; all by default")
    parser.add_argument("--only", nargs="+", default=[], help="keys of mutants, drawn or not")
    parser.add_argument("--again", nargs="*", help="verdicts to run again: survived ...")
    parser.add_argument("--seconds", type=float, default=240, help="of tests a mutant, at most")
    parser.add_argument("--jobs", type=int, default=1, help="mutants, or files recorded, at once")
    parser.add_argument("--until", type=float, default=0, help="begin none after so many seconds")
    parser.add_argument("--leave-out", nargs="+", default=[], help="words in names of tests")
    parser.add_argument("--record", action="store_true", help="which test runs which line, anew")
    parser.add_argument("--file-seconds", type=float, help="a file of tests is recorded, at most")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run none")
    parser.add_argument("--results", type=Path, default=FOLDER / "results.jsonl")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants; returns 1 if one survives that has no reason."""
    started = time.monotonic()
    options = parse(sys.argv[1:] if arguments is None else arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    chosen = draw(ROOT, options.count, options.seed)
    if options.only:
        chosen = [each for each in chosen if each[1].key in options.only]
    if options.first:
        chosen = chosen[: options.first]
    if options.list:
        for stratum, mutant in chosen:
            print(f"{mutant.key} {stratum} {mutant.file}:{mutant.lines[0]} {mutant.kind}")
            print(f"  - {mutant.original}\n  + {mutant.mutated}")
        return 0
    os.nice(10)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["FUSEC_STRICT"] = "1"
    kernels = FOLDER / "kernels"
    kernels.mkdir(mode=0o700, exist_ok=True)
    os.environ.setdefault("MUTANTS_CACHE", str(kernels))
    lines = FOLDER / "lines.jsonl"
    if options.record or not lines.exists():
        record(lines, options.jobs, options.file_seconds)
        print(f"recorded in {time.monotonic() - started:.0f} s", flush=True)
    until = started + options.until if options.until else float("inf")
    run(chosen, Covering(lines, options.leave_out), options, until)
    rows = report.read(options.results)
    text = report.totals([rows[m.key] for _, m in chosen if m.key in rows], report.reasons())
    print(f"\n{text}")
    return int("survived" in text)


def record(path: Path, jobs: int = 1, seconds: float | None = None) -> None:
    """Write which lines each quick test runs; a file of tests is a process, some at once.

    Args:
        path: Where to.
        jobs: How many at once.
        seconds: For a file at most: what it has not come to by then is not asked.
    """
    tests = ROOT / "tests"
    found = [p for folder in ASKED for p in sorted((tests / folder).rglob("test_*.py"))]
    files = sorted(
        (p for p in found if "mutants" not in p.name), key=lambda p: p.stat().st_size, reverse=True
    )
    path.unlink(missing_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(jobs) as pool,
        path.open(
            "a"
        ) as whole,  # as files are done: a record that is cut off holds what it came to
    ):

        def recorded(number: int) -> None:
            lines = Path(folder, f"{number}.jsonl")
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", QUICK]
            command += ["-p", "mutants.coverage", "-p", "mutants.shared_cache", str(files[number])]
            command += ["--lines-to", str(lines), "--lines-of", *PLACES]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False, timeout=seconds
                )
            rows = lines.read_text() if lines.exists() else ""
            whole.write(rows[: rows.rfind("\n") + 1])  # a test that was cut off wrote half a row
            whole.flush()
            print(f"recorded {files[number].name}", flush=True)

        list(pool.map(recorded, range(len(files))))


def run(
    chosen: Sequence[tuple[str, Mutant]],
    covering: Covering,
    options: argparse.Namespace,
    until: float = float("inf"),
) -> None:
    """Run what has no result yet, in as many processes as are asked for."""
    sources = sources_of(ROOT)
    known = report.read(options.results)
    again = set(options.again or ())
    todo = [
        (stratum, mutant)
        for stratum, mutant in chosen
        if mutant.key not in known or known[mutant.key]["verdict"] in again
    ]
    server.warm()
    os.chdir(ROOT)
    if options.jobs == 1:
        judge_all(todo, covering, sources, options, until)
        return
    turns = multiprocessing.get_context("fork").Value("i", 0)

    def taken() -> Iterable[tuple[str, Mutant]]:
        while True:
            with turns.get_lock():
                number = turns.value
                turns.value += 1
            if number >= len(todo):
                return
            yield todo[number]

    children = []
    for _ in range(min(options.jobs, len(todo))):
        child = os.fork()
        if not child:
            status = 1
            try:
                judge_all(taken(), covering, sources, options, until)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def judge_all(
    chosen: Iterable[tuple[str, Mutant]],
    covering: Covering,
    sources: Mapping[str, str],
    options: argparse.Namespace,
    until: float,
) -> None:
    """Judge mutants one after the other; a line of JSON each."""
    for stratum, mutant in chosen:
        started = time.monotonic()
        if started > until:
            return
        tests = within(covering.tests_of(mutant, sources), options.seconds)
        outcome = judge(mutant, tests, sources[mutant.file])
        row: dict[str, Any] = {
            "key": mutant.key,
            "stratum": stratum,
            "file": mutant.file,
            "where": mutant.where,
            "line": mutant.lines[0],
            "kind": mutant.kind,
            "original": mutant.original,
            "mutated": mutant.mutated,
            "number": mutant.number,
            "verdict": outcome.verdict,
            "test": outcome.test,
            "detail": outcome.detail,
            "tests": len(tests),
            "seconds": round(time.monotonic() - started, 1),
        }
        with options.results.open("a") as file:
            file.write(json.dumps(row) + "\n")  # in one piece: others write as well
        print(
            f"{mutant.key} {outcome.verdict} {row['seconds']} s {mutant.file}:{row['line']} "
            f"{outcome.test}",
            flush=True,
        )


def within(tests: Sequence[Test], seconds: float) -> list[Test]:
    """Return the first tests that take so long together."""
    chosen, total = [], 0.0
    for test in tests:
        if total + test.seconds <= seconds:
            chosen.append(test)
            total += test.seconds
    return chosen


def judge(mutant: Mutant, tests: Sequence[Test], source: str) -> server.Outcome:
    """Run the tests on a mutant, a few first: most are caught by one of those."""
    if not tests:
        return server.Outcome("not covered")
    text = mutant.applied(source)
    module = (server.module_of(mutant.file), ROOT / mutant.file, text)
    log = FOLDER / f"{mutant.key}.log"
    options = ["--basetemp", str(FOLDER / f"tmp-{os.getpid()}")]
    start = 0
    for size in (6, 24, len(tests)):
        part = tests[start : start + size]
        start += len(part)
        if not part:
            break
        named = [(test.name, test.seconds) for test in part]
        outcome = server.run(module, named, log, options=options)
        if outcome.verdict != "passed":
            verdict = "caught" if outcome.verdict == "failed" else outcome.verdict
            return server.Outcome(verdict, outcome.test, outcome.detail)
    log.unlink(missing_ok=True)
    return server.Outcome("survived")


if __name__ == "__main__":
    sys.exit(main())
