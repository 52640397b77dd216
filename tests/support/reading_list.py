"""The list of what to read in ``docs/tour.md``: files, or some of their functions, with lengths.

A row is ``| 3 | `compiler/fusec/x.py`: `Name`, `other` | why | 120 |``; without names it is the
whole file. Lengths are there to plan an evening with, so a tenth more or less is no mistake.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROW = re.compile(
    r"^\| *\d+ *\| \[?`(?P<path>[\w/.]+)`(?:\]\([^)]*\))?(?:: (?P<names>[^|]+?))? *\|"
    r"(?P<why>[^|]*)\| *(?P<lines>\d+) *\|$"
)
SHARE, LEAST = 0.1, 10


@dataclass(frozen=True)
class Reading:
    """A row of the list.

    Attributes:
        path: From the root of the tree.
        names: Functions and classes, ``Class.method``; empty for the whole file.
        lines: As the page has it.
    """

    path: str
    names: tuple[str, ...]
    lines: int

    def count(self, root: Path) -> int:
        """Return how many lines it is now.

        Raises:
            KeyError: A name that is not there.
        """
        text = (root / self.path).read_text()
        if not self.names:
            return len(text.splitlines())
        spans = dict(_spans(ast.parse(text).body, ""))
        missing = [name for name in self.names if name not in spans]
        if missing:
            raise KeyError(f"{self.path} has no {', '.join(missing)}")
        return sum(spans[name] for name in self.names)

    def is_off(self, root: Path) -> bool:
        """Whether the page's number is no use any more."""
        now = self.count(root)
        return abs(now - self.lines) > max(LEAST, SHARE * now)


def _spans(body: list[ast.stmt], before: str) -> Iterator[tuple[str, int]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield before + node.name, (node.end_lineno or start) - start + 1
            if isinstance(node, ast.ClassDef):
                yield from _spans(node.body, f"{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield before + target.id, (node.end_lineno or node.lineno) - node.lineno + 1


def readings(text: str) -> list[Reading]:
    """Return the rows of a page's list, in order."""
    return [_reading(match) for line in text.splitlines() if (match := ROW.match(line))]


def _reading(match: re.Match[str]) -> Reading:
    names = tuple(re.findall(r"`([\w.]+)`", match["names"] or ""))
    return Reading(match["path"], names, int(match["lines"]))


def counted_again(text: str, root: Path) -> str:
    """Return a page with the lengths of today, and their sum where it says ``N lines in all``."""
    lines = text.splitlines()
    total = 0
    for number, line in enumerate(lines):
        if match := ROW.match(line):
            now = _reading(match).count(root)
            total += now
            lines[number] = f"{line[: match.start('lines')]}{now}{line[match.end('lines') :]}"
    joined = "\n".join(lines) + "\n"
    return re.sub(r"\b[\d,]+ lines in all", f"{total:,} lines in all", joined)
