"""Many mutants in little time: ``python -m mutants.quick --tests FOLDER...``.

The tests are imported once, with the compiler; each mutant is a fork of that process, in which the
functions it changes get their new code.  What cannot be put in place so (a table made when a module
is imported) is left to ``make mutants``, and counted.  It shows where tests look at nothing; the
score is what ``make mutants`` says.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import multiprocessing
import os
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from mutants import report, server
from mutants.__main__ import FOLDER, QUICK, within
from mutants.choose import Covering, draw, everything, sources_of
from mutants.mutate import Mutant

ROOT = Path(__file__).resolve().parents[2]
Place = tuple[str, int]  # a function's qualified name and its first line


def parse() -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(prog="python -m mutants.quick", description=__doc__)
    parser.add_argument("--lines", type=Path, default=FOLDER / "lines.jsonl", help="recorded lines")
    parser.add_argument("--tests", nargs="+", required=True, help="files and folders of tests")
    parser.add_argument(
        "--files", nargs="*", default=[], help="every mutant of what has this in its name"
    )
    parser.add_argument("--where", nargs="*", default=[], help="words in the functions' names")
    parser.add_argument("--kinds", nargs="*", default=[], help="of mistakes, these")
    parser.add_argument("--strata", nargs="*", default=[], help="of what is drawn, these")
    parser.add_argument("--count", type=int, default=300, help="mutants drawn; 0 is all there are")
    parser.add_argument("--seed", type=int, default=31, help="draws them")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at once")
    parser.add_argument("--seconds", type=float, default=5, help="of tests a mutant, at most")
    parser.add_argument("--until", type=float, default=1e9, help="begin none after so many seconds")
    parser.add_argument("--results", type=Path, default=FOLDER / "quick.jsonl")
    return parser.parse_args()


def places_of(code: CodeType) -> Iterator[tuple[Place, CodeType]]:
    """Return the functions of a module's code, those within others as well."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield (each.co_qualname, each.co_firstlineno), each
            yield from places_of(each)


class Placing:
    """Puts the code of mutants in the place of what was imported."""

    def __init__(self) -> None:
        self.functions: dict[str, dict[Place, list[FunctionType]]] = {}
        self.caches: list[Any] = []
        frozen = gc.get_freeze_count() > 0
        gc.unfreeze()  # what is frozen is not listed
        there = gc.get_objects()
        if frozen:
            gc.freeze()
        for each in there:
            if type(each) is FunctionType and "fusec" in each.__code__.co_filename:
                code = each.__code__
                of_file = self.functions.setdefault(code.co_filename, {})
                of_file.setdefault((code.co_qualname, code.co_firstlineno), []).append(each)
            elif type(each) is functools._lru_cache_wrapper and "fusec" in each.__module__:
                self.caches.append(each)

    def put(self, mutant: Mutant, source: str) -> bool:
        """Change what is imported; False if that cannot be done here."""
        path, name = ROOT / mutant.file, server.module_of(mutant.file)
        text = mutant.applied(source)
        if name not in sys.modules:
            sys.meta_path.insert(0, server.Replaced(name, str(path), text))
            return True
        if mutant.imported or "@triton.jit" in source:  # Triton has read its text
            return False
        before, after = (
            dict(places_of(compile(t, str(path), "exec", dont_inherit=True)))
            for t in (source, text)
        )
        known, placed = self.functions.get(str(path), {}), False
        for place, code in after.items():
            for function in known.get(place, ()):
                same = before.get(place) == code
                if not same and len(code.co_freevars) == len(function.__code__.co_freevars):
                    function.__code__ = code
                    placed = True
        for each in self.caches:
            each.cache_clear()
        return placed


class Quick:
    """A plugin of pytest that runs mutants instead of the tests that were collected."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.failed = ""
        self.started = time.monotonic()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge the mutants, in as many processes as are asked for."""
        items = {item.nodeid: item for item in session.items}
        sources = sources_of(ROOT)
        chosen, covering = self.chosen(sources), Covering(self.options.lines)
        # What all tests share is set up once, and whatever the first one needs is imported.
        session.items[0].ihook.pytest_runtest_protocol(
            item=session.items[0],
            nextitem=session.items[-1],  # so that nothing of its own stays
        )
        placing = Placing()
        gc.freeze()  # forks share what is there
        self.options.results.unlink(missing_ok=True)
        nothing = replace(chosen[0][1], span=(0, 0), text="")
        passing = [items[name] for name in covering.tests if name in items][:10]
        said = self.judge(placing, nothing, sources[nothing.file], passing, 300)
        if said[0] != "survived":
            raise RuntimeError(f"tests fail where nothing is changed: {said}")
        turns = multiprocessing.get_context("fork").Value("i", 0)
        children = []
        for _ in range(self.options.jobs):
            child = os.fork()
            if not child:
                try:
                    while time.monotonic() - self.started < self.options.until:
                        with turns.get_lock():
                            number = turns.value
                            turns.value += 1
                        if number >= len(chosen):
                            break
                        self.one(chosen[number], items, sources, covering, placing)
                finally:
                    sys.stdout.flush()
                    os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        rows = [json.loads(row) for row in self.options.results.read_text().splitlines()]
        counts = Counter(row["verdict"] for row in rows)
        print(f"{dict(counts)} in {time.monotonic() - self.started:.0f} s")
        return True

    def one(
        self,
        each: tuple[str, Mutant],
        items: dict[str, pytest.Item],
        sources: dict[str, str],
        covering: Covering,
        placing: Placing,
    ) -> None:
        """Judge a mutant, and write what came of it."""
        stratum, mutant = each
        tests = [t for t in covering.tests_of(mutant, sources) if t.name in items]
        taken = within(tests, self.options.seconds)
        named, limit = [items[t.name] for t in taken], 20 + 10 * sum(t.seconds for t in taken)
        verdict, test = self.judge(placing, mutant, sources[mutant.file], named, limit)
        row: dict[str, Any] = {"key": mutant.key, "stratum": stratum, "file": mutant.file}
        row |= {"where": mutant.where, "line": mutant.lines[0], "kind": mutant.kind}
        row |= {"original": mutant.original, "mutated": mutant.mutated}
        row |= {"number": mutant.number, "verdict": verdict, "test": test, "tests": len(named)}
        with self.options.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if verdict in ("survived", "not covered"):
            print(f"{verdict} {mutant.file}:{row['line']} {mutant.where} ({len(named)} tests)")
            print(f"    - {mutant.original}\n    + {mutant.mutated}", flush=True)

    def chosen(self, sources: dict[str, str]) -> list[tuple[str, Mutant]]:
        """Return the mutants asked for: a draw, or all, in an order of which any part is fair."""
        asked = self.options
        if asked.count and not asked.files:
            found = draw(ROOT, asked.count, asked.seed)
        else:
            found = everything(ROOT, asked.seed)
        return [
            (stratum, m)
            for stratum, m in found
            if stratum in (asked.strata or [stratum])
            and m.kind in (asked.kinds or [m.kind])
            and any(word in m.where for word in asked.where or [""])
            and any(word in m.file for word in asked.files or [""])
        ]

    def judge(
        self, placing: Placing, mutant: Mutant, source: str, items: list[pytest.Item], limit: float
    ) -> tuple[str, str]:
        """Run the tests on a mutant in a fork; returns the verdict and the test."""
        row: dict[str, Any] = {
            "file": mutant.file,
            "where": mutant.where,
            "original": mutant.original,
        }
        if report.identity({**row, "mutated": mutant.mutated, "number": mutant.number}) in KNOWN:
            return "equivalent", ""
        if not items:
            return "not covered", ""
        readable, writable = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.setpgid(0, 0)
                nothing = os.open(os.devnull, os.O_RDWR)
                for number in (0, 1, 2):
                    os.dup2(nothing, number)
                if not mutant.is_valid(source):
                    answer = "invalid\n"
                else:
                    placed = not mutant.text or placing.put(mutant, source)
                    answer = self.asked(items) if placed else "imported\n"
                os.write(writable, answer.encode())
            finally:
                os._exit(0)
        os.close(writable)
        said = b"timeout" if not select.select([readable], [], [], limit)[0] else b""
        said = said or os.read(readable, 4096) or b"crash"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.close(readable)
        os.waitpid(child, 0)
        verdict, _, test = said.decode().strip().partition(" ")
        return verdict, test

    def asked(self, items: list[pytest.Item]) -> str:
        """Run tests until one fails."""
        items[0].session._setupstate.teardown_exact(items[0])  # of the first test of all
        for item, following in zip(items, [*items[1:], items[-1]], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return f"caught {self.failed}\n"
        return "survived\n"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


KNOWN = report.reasons()


if __name__ == "__main__":
    asked = parse()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["FUSEC_STRICT"] = "1"
    os.chdir(ROOT)
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "mutants.shared_cache", "-m", QUICK]
    arguments += ["-o", "timeout=0", "-s", *asked.tests]
    sys.exit(pytest.main(arguments, plugins=[Quick(asked)]))
