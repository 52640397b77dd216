"""The shape of the code in figures, commits side by side: ``python tests/bench/house.py REV ...``.

Lines are those of Python without blank ones, comments and docstrings. A function's length is that
of its body without the docstring; its complexity is McCabe's, and once more with ``and``, ``or``
and conditional expressions counted. Circles are sets of files that import each other, imports
within functions and for annotations included.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"compiler": "fusec", "ext": "fuselab"}
LONG_FILE, LONG_FUNCTION, COMPLEX = 400, 60, 20
TARGETS = re.compile(r"""(["'])(?:cpp|triton)\1""")
DEVICES = re.compile(r"""[=!]= *(["'])cuda\1|(["'])cuda\2 *[=!]=""")


@dataclass
class House:
    """What there is to count in one commit."""

    folders: Counter[str] = field(default_factory=Counter)
    files: int = 0
    long_files: int = 0
    long_functions: int = 0
    complex_functions: int = 0
    many_conditions: int = 0
    target_literals: int = 0
    device_comparisons: int = 0
    in_circles: int = 0

    @property
    def lines(self) -> int:
        """Lines of both packages."""
        return sum(self.folders.values())


def count(root: Path) -> House:
    """Count what stands in a tree with ``compiler`` and ``ext``."""
    house = House()
    imports: dict[str, set[str]] = {}
    sources = {
        path: path.read_text(encoding="utf-8")
        for base, package in PACKAGES.items()
        for path in sorted((root / base / package).rglob("*.py"))
    }
    modules = {_module(path, root): path for path in sources}
    for path, text in sources.items():
        tree = ast.parse(text)
        house.files += 1
        house.long_files += text.count("\n") > LONG_FILE
        parts = path.relative_to(root).parts[1:-1]
        house.folders["/".join(parts[:2])] += _code_lines(text, tree)
        inside = "targets" in parts or "codegen" in parts
        house.target_literals += 0 if inside else len(TARGETS.findall(text))
        house.device_comparisons += len(DEVICES.findall(text))
        for function in ast.walk(tree):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                house.long_functions += _length(function) > LONG_FUNCTION
                house.complex_functions += _complexity(function, conditions=False) > COMPLEX
                house.many_conditions += _complexity(function, conditions=True) > COMPLEX
        imports[_module(path, root)] = set(_imported(tree, _module(path, root), path, modules))
    house.in_circles = len(_in_circles(imports))
    return house


def _module(path: Path, root: Path) -> str:
    name = ".".join(path.relative_to(root).with_suffix("").parts[1:])
    return name.removesuffix(".__init__")


def _code_lines(text: str, tree: ast.Module) -> int:
    """Count the lines that hold code."""
    held: set[int] = set()
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*skipped, tokenize.ENDMARKER):
            held |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            held -= set(range(body[0].lineno, body[0].end_lineno + 1))
    return len(held)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if _is_text(function.body[0]) else function.body
    assert function.end_lineno is not None
    return function.end_lineno - body[0].lineno + 1 if body else 0


def _complexity(function: ast.AST, *, conditions: bool) -> int:
    """Return one more than the branches of a function, those of functions within it left out."""
    found = 1
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        branches = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension)
        found += isinstance(node, branches) + isinstance(node, ast.match_case)
        if conditions:
            found += isinstance(node, (ast.IfExp, ast.Assert))
            found += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
            found += len(node.ifs) if isinstance(node, ast.comprehension) else 0
        waiting += ast.iter_child_nodes(node)
    return found


def _imported(
    tree: ast.Module, name: str, path: Path, modules: Mapping[str, Path]
) -> Iterator[str]:
    """Yield the modules of the packages that a file imports, wherever in it."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        wanted: list[str] = []
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            wanted = [
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
                for alias in node.names
            ]
        yield from (each for each in wanted if each in modules and each != name)


def _in_circles(imports: Mapping[str, set[str]]) -> set[str]:
    """Return the files that import themselves by way of others."""
    left = {name: set(found) for name, found in imports.items()}
    circles: set[str] = set()
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            circle = set(error.args[1])
            # One file of the circle stands for all of it from here on, so that larger ones show.
            kept = min(circle)
            circles |= circle
            merged = set().union(*(left.pop(name) for name in circle)) - circle
            for name, found in left.items():
                left[name] = (found - circle) | ({kept} if found & circle else set())
            left[kept] = merged - {kept}
        else:
            return circles


def at(commit: str, folder: Path) -> Path:
    """Write a commit's tree to a folder; a dot is the working tree."""
    if commit == ".":
        return ROOT
    archive = subprocess.run(
        ["git", "archive", commit, *PACKAGES], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def main(commits: list[str]) -> None:
    """Print a table with a column a commit."""
    commits = commits or ["."]
    houses = []
    for commit in commits:
        with tempfile.TemporaryDirectory() as folder:
            houses.append(count(at(commit, Path(folder))))
    names = [name if name != "." else "working tree" for name in commits]
    rows: list[tuple[str, list[int]]] = [
        ("lines of code", [h.lines for h in houses]),
        ("files", [h.files for h in houses]),
        (f"files over {LONG_FILE} lines", [h.long_files for h in houses]),
        (f"functions over {LONG_FUNCTION} lines", [h.long_functions for h in houses]),
        (f"functions of complexity over {COMPLEX}", [h.complex_functions for h in houses]),
        ("... conditions counted", [h.many_conditions for h in houses]),
        ("names of targets outside of them", [h.target_literals for h in houses]),
        ('comparisons with "cuda"', [h.device_comparisons for h in houses]),
        ("files in a circle of imports", [h.in_circles for h in houses]),
    ]
    print("| | " + " | ".join(names) + " |\n|---|" + "---:|" * len(names))
    for label, values in rows:
        print(f"| {label} | " + " | ".join(f"{value:,}" for value in values) + " |")
    print("\n| lines of code | " + " | ".join(names) + " |\n|---|" + "---:|" * len(names))
    for folder in sorted(set().union(*(h.folders for h in houses))):
        values = [h.folders[folder] for h in houses]
        print(
            f"| `{folder}` | "
            + " | ".join(f"{value:,}" if value else "" for value in values)
            + " |"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
