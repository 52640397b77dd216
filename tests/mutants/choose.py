"""Which mutants are run, and which tests are to find each."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from types import CodeType

from mutants.mutate import Mutant, mutants

# What is mutated, and how large a part of the mutants each gets.
STRATA: dict[str, tuple[float, tuple[str, ...]]] = {
    "schedule": (0.25, ("compiler/fusec/schedule/**/*.py",)),
    "bounds": (
        0.15,
        (
            "compiler/fusec/ir/bounds.py",
            "compiler/fusec/ir/index.py",
            "compiler/fusec/ir/polynomial.py",
        ),
    ),
    "codegen": (
        0.35,
        (
            "compiler/fusec/codegen/**/*.py",
            "compiler/fusec/targets/cpp/**/*.py",
            "compiler/fusec/targets/triton/**/*.py",
        ),
    ),
    "graph": (0.25, ("compiler/fusec/graph/**/*.py",)),
}
PLACES = (
    "compiler/fusec/schedule",
    "compiler/fusec/graph",
    "compiler/fusec/codegen",
    "compiler/fusec/targets",
    "compiler/fusec/ir/bounds.py",
    "compiler/fusec/ir/index.py",
    "compiler/fusec/ir/polynomial.py",
)


def draw(root: Path, count: int, seed: int) -> list[tuple[str, Mutant]]:
    """Return mutants, each with its stratum, in an order of which any first part is fair.

    In a stratum each pattern of files gets as many, and each kind of mistake comes in turn.  What
    is drawn hangs on the seed and the mutant alone: a change of some lines changes few of them.
    """
    chosen: list[tuple[str, Mutant]] = []
    for stratum, (share, patterns) in STRATA.items():
        wanted = round(count * share)
        for number, pattern in enumerate(patterns):
            part = wanted * (number + 1) // len(patterns) - wanted * number // len(patterns)
            found = [
                (mutant, source)
                for path in sorted(root.glob(pattern))
                for source in [path.read_text()]
                for mutant in mutants(str(path.relative_to(root)), source)
            ]
            chosen += [(stratum, mutant) for mutant in _in_turn(found, part, seed)]
    return sorted(chosen, key=lambda each: _lot(each[1], seed))


def everything(root: Path, seed: int) -> list[tuple[str, Mutant]]:
    """Return every mutant, with its stratum, valid or not, in an order much like that of a draw.

    One comes early as often as `draw` would take it.
    """
    placed = []
    for stratum, (share, patterns) in STRATA.items():
        for pattern in patterns:
            found = [
                mutant
                for path in sorted(root.glob(pattern))
                for mutant in mutants(str(path.relative_to(root)), path.read_text())
            ]
            kinds = Counter(mutant.kind for mutant in found)
            for mutant in found:
                weight = share / len(patterns) / len(kinds) / kinds[mutant.kind]
                lot = (int(_lot(mutant, seed)[:12], 16) + 1) / 16**12
                placed.append((-log(lot) / weight, stratum, mutant))
    return [(stratum, mutant) for _, stratum, mutant in sorted(placed, key=lambda p: p[0])]


def _lot(mutant: Mutant, seed: int) -> str:
    return hashlib.sha256(f"{seed} {mutant.key}".encode()).hexdigest()


def _in_turn(found: list[tuple[Mutant, str]], count: int, seed: int) -> list[Mutant]:
    kinds: dict[str, list[tuple[Mutant, str]]] = defaultdict(list)
    for mutant, source in sorted(found, key=lambda pair: _lot(pair[0], seed), reverse=True):
        kinds[mutant.kind].append((mutant, source))
    chosen: list[Mutant] = []
    while len(chosen) < count and kinds:
        for kind in sorted(kinds):
            while kinds[kind]:
                mutant, source = kinds[kind].pop()
                if mutant.is_valid(source):
                    chosen.append(mutant)
                    break
            if not kinds[kind]:
                del kinds[kind]
    return sorted(chosen, key=lambda each: _lot(each, seed))[:count]


@dataclass(frozen=True)
class Test:
    """A test that was recorded.

    Attributes:
        name: Its node id.
        seconds: What it took.
        size: How many lines it ran, of those that are mutated.
    """

    name: str
    seconds: float
    size: int

    @property
    def cost(self) -> float:
        """Fast tests first, and of equally fast ones those that run less else."""
        return (self.seconds + 0.02) * (200 + self.size) ** 0.5

    @property
    def file(self) -> str:
        """The file that it is in."""
        return self.name.partition("::")[0]


class Covering:
    """Which tests run which lines.

    Args:
        path: What ``mutants.coverage`` has written.
        left_out: Words; tests with one of them in their name do not count.
    """

    def __init__(self, path: Path, left_out: Collection[str] = ()) -> None:
        self.tests: dict[str, Test] = {}
        self.lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for row in map(json.loads, path.read_text().splitlines()):
            name = row["test"]
            if not row["passed"] or any(word in name for word in left_out):
                continue
            size = sum(map(len, row["lines"].values()))
            self.tests[name] = Test(name, row["seconds"], size)
            for file, lines in row["lines"].items():
                for line in lines:
                    self.lines[file][line].add(name)

    def tests_of(self, mutant: Mutant, sources: Mapping[str, str]) -> list[Test]:
        """Return the tests that run a mutant's lines, in the order in which to run them."""
        if not mutant.imported:
            first, last = mutant.lines
            with_code = _lines_with_code(sources[mutant.file])
            # a line of a constant, a tuple of numbers, is nothing that runs: what is above it is
            while with_code.isdisjoint(range(first, last + 1)) and first > 1:
                first -= 1
            found = self._names_at(mutant.file, range(first, last + 1))
            return in_order((self.tests[name] for name in found), mutant.file)
        # It runs when somebody first imports it, which says nothing: what uses the name counts.
        names: set[str] = set()
        for file, uses in _uses(mutant, sources):
            names |= self._names_at(file, uses)
        names = names or set().union(*self.lines[mutant.file].values())
        return in_order((self.tests[name] for name in names), mutant.file)

    def _names_at(self, file: str, lines: Iterable[int]) -> set[str]:
        known = self.lines[file]
        return set().union(*(known[line] for line in lines if line in known))


# Each further test of a file costs so many times as much, up to some number of them.
AGAIN, MOST_AGAIN = 1.5, 8
# What is written for a file, and what stands in its folder's counterpart, is asked before the rest.
FOR_THE_FILE, FOR_THE_FOLDER = 1 / 64, 1 / 4


def in_order(tests: Iterable[Test], file: str = "") -> list[Test]:
    """Return tests, cheap ones first, but soon some of every file: they look at other things.

    Args:
        tests: What to order.
        file: What is mutated.
    """
    rank: dict[str, int] = defaultdict(int)
    placed = []
    for test in sorted(tests, key=lambda t: t.cost):
        cost = test.cost * AGAIN ** rank[test.file] * _nearness(test.file, file)
        placed.append((cost, test))
        rank[test.file] = min(rank[test.file] + 1, MOST_AGAIN)
    return [test for _, test in sorted(placed, key=lambda pair: pair[0])]


def _nearness(tests: str, file: str) -> float:
    path = Path(file)
    if path.stem in Path(tests).stem:
        return FOR_THE_FILE
    own = path.parent.parts[2:]  # below compiler/fusec, as tests are below tests/compiler
    return FOR_THE_FOLDER if own and own == Path(tests).parent.parts[2:] else 1.0


@cache
def _lines_with_code(source: str) -> frozenset[int]:
    found: set[int] = set()
    left = [compile(source, "", "exec", dont_inherit=True)]
    while left:
        code = left.pop()
        found.update(line for _, _, line in code.co_lines() if line)
        left += [each for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(found)


def _uses(mutant: Mutant, sources: Mapping[str, str]) -> list[tuple[str, list[int]]]:
    """Return where the name that a mutant's statement defines is used, by file."""
    lines = sources[mutant.file].splitlines()
    name = ""
    for line in reversed(lines[: mutant.lines[0]]):  # the statement may have begun above
        match = re.match(r"\s*(?:(?:async )?def |class )?(\w+)\s*(?:[:=(]|$)", line)
        if match and not line.startswith((" ", ")", "]", "}")):
            name = match[1]
            break
    if not name:
        return []
    word = re.compile(rf"\b{re.escape(name)}\b")
    return [
        (file, [n for n, line in enumerate(text.splitlines(), 1) if word.search(line)])
        for file, text in sources.items()
    ]


def sources_of(root: Path, places: Sequence[str] = PLACES) -> dict[str, str]:
    """Return the text of every file that may be mutated, by its name from the root."""
    paths = [p for place in places for p in [root / place, *sorted((root / place).rglob("*.py"))]]
    return {str(p.relative_to(root)): p.read_text() for p in paths if p.suffix == ".py"}


__all__ = ["PLACES", "STRATA", "Covering", "Test", "draw", "everything", "in_order", "sources_of"]
