"""The mutation score's own parts, on a module of a few lines."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mutants import report
from mutants.choose import Covering, draw, everything, in_order
from mutants.choose import Test as Recorded
from mutants.mutate import Mutant, mutants
from mutants.quick import Placing
from mutants.server import Replaced
from support.paths import ROOT

SOURCE = '''
"""Not 1 of these < words."""

LIMIT = 4


def smaller(items: list[int], most: int = LIMIT) -> int:
    """Return at most 9."""
    assert most > 0
    found = 0
    for item in items:
        if item < 0 or item == most:
            continue
        found = min(
            max(found, item),
            most,
        )
    return found
'''


def changes() -> dict[tuple[str, str], Mutant]:
    found = mutants("toy.py", SOURCE)
    return {(mutant.kind, mutant.mutated): mutant for mutant in found}


def test_changes_of_each_kind_are_found_where_something_runs() -> None:
    found = changes()
    expected = [
        ("constant", "LIMIT = 5"),
        ("constant", "LIMIT = 3"),
        ("comparison", "if item <= 0 or item == most:"),
        ("comparison", "if item < 0 or item != most:"),
        ("and or", "if item < 0 and item == most:"),
        ("constant", "if item < 1 or item == most:"),
        ("condition negated", "if (not (item < 0 or item == most)):"),
        ("condition fixed", "if True:"),
        ("condition fixed", "if False:"),
        ("continue left out", "pass"),
        ("constant", "found = 1"),
        ("min max", "found = max("),
        ("min max", "min(found, item),"),
    ]
    assert [each for each in expected if each not in found] == []
    assert all("assert" not in text and "def" not in text for _, text in found)
    assert len(found) == len(mutants("toy.py", SOURCE))


def test_a_change_keeps_the_lines_and_its_key() -> None:
    moved = "\n\n" + SOURCE
    for one, other in zip(mutants("toy.py", SOURCE), mutants("toy.py", moved), strict=True):
        text = one.applied(SOURCE)
        assert text != SOURCE
        assert text.count("\n") == SOURCE.count("\n")
        assert one.is_valid(SOURCE)
        assert one.key == other.key
        assert one.lines[0] + 2 == other.lines[0]
        assert one.where == ("" if one.original.startswith("LIMIT") else "smaller")


def test_what_is_drawn_hangs_on_the_seed_alone(tmp_path: Path) -> None:
    folder = tmp_path / "compiler/fusec/graph"
    folder.mkdir(parents=True)
    (folder / "toy.py").write_text(SOURCE)
    first = [m.key for _, m in draw(tmp_path, 40, 1)]
    assert len(set(first)) == 10  # a quarter is that folder's
    (folder / "toy.py").write_text(SOURCE.replace("found = 0", "found = 0  # none"))
    assert len(set(first) & {m.key for _, m in draw(tmp_path, 40, 1)}) >= 8
    assert first != [m.key for _, m in draw(tmp_path, 40, 2)]


def test_fast_tests_come_first_but_soon_some_of_every_file() -> None:
    tests = [Recorded(f"a.py::{n}", 0.01 * n, 100) for n in range(6)]
    tests += [Recorded("b.py::slow", 0.2, 100)]
    names = [test.name for test in in_order(tests)]
    assert names[:2] == ["a.py::0", "a.py::1"]
    assert names.index("b.py::slow") < names.index("a.py::5")


def test_what_is_written_for_a_file_comes_first() -> None:
    names = ["nets/test_a.py::", "compiler/graph/test_b.py::", "compiler/graph/test_toy_rules.py::"]
    tests = [Recorded(f"tests/{name}", 0.1, 100 * n) for n, name in enumerate(names)]
    found = [test.name for test in in_order(tests, "compiler/fusec/graph/toy.py")]
    assert found == [f"tests/{name}" for name in reversed(names)]


def environment_of(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(folder)])}


RUN = """
import sys
from dataclasses import replace
from pathlib import Path
from mutants import server
from mutants.mutate import mutants

folder = Path(sys.argv[1])
source = (folder / "toy.py").read_text()
tests = [("test_toy.py::test_limit", 0.1), ("test_toy.py::test_end", 0.1)]
for change in mutants("toy.py", source):
    if change.mutated in ("LIMIT = 5", "found = 1"):
        module = ("toy", folder / "toy.py", change.applied(source))
        outcome = server.run(module, tests, folder / "log", options=["--rootdir", str(folder)])
        print(change.mutated, "|", outcome.verdict, outcome.test)
print(server.run(None, tests, folder / "log", options=["--rootdir", str(folder)]).verdict)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="mutants run in forked processes")
def test_a_mutant_is_caught_or_survives_and_the_next_one_starts_anew(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(SOURCE)
    (tmp_path / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture(scope='session')\ndef private_folders():\n    pass\n"
    )
    (tmp_path / "test_toy.py").write_text(
        "from toy import smaller\n\n"
        "def test_limit():\n    assert smaller([2, 9]) == 4\n\n"
        "def test_end():\n    assert smaller([-1, 3, 4]) == 3\n    smaller([4]) == 0\n"
    )
    environment = environment_of(tmp_path)
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "LIMIT = 5 | failed test_toy.py::test_limit",
        "found = 1 | passed ",
        "passed",
    ]
    assert (tmp_path / "toy.py").read_text() == SOURCE


def test_who_reads_a_mutants_source_finds_the_mistake(tmp_path: Path) -> None:
    """Triton compiles what it reads."""
    path = str(tmp_path / "toy.py")
    space: dict[str, Any] = {}
    exec(Replaced("toy", path, "def one():\n    return 2\n").get_code("toy"), space)
    assert "return 2" in inspect.getsource(space["one"])


def test_which_test_runs_which_line_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(SOURCE)
    (tmp_path / "test_toy.py").write_text(
        "from toy import smaller\n\ndef test_empty():\n    assert smaller([]) == 0\n\n"
        "def test_one():\n    assert smaller([3]) == 3\n"
    )
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants.coverage", "test_toy.py"]
    command += ["--rootdir", str(tmp_path), "--lines-to", str(lines), "--lines-of", "toy.py"]
    environment = environment_of(tmp_path)
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    covering = Covering(lines)
    found = {mutant.mutated: mutant for mutant in mutants("toy.py", SOURCE)}
    sources = {"toy.py": SOURCE}

    def names(text: str) -> set[str]:
        return {test.name.partition("::")[2] for test in covering.tests_of(found[text], sources)}

    assert names("found = 1") == {"test_empty", "test_one"}
    assert names("pass") == set()  # the line of `continue`
    assert names("if True:") == {"test_one"}
    assert names("LIMIT = 5") == {"test_empty", "test_one"}  # by the line that uses it


def test_what_is_imported_gets_a_mutants_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods and functions within functions, too; what runs on import is left as it is."""
    from fusec.ir import polynomial

    file = "compiler/fusec/ir/polynomial.py"
    source = (ROOT / file).read_text()
    placing = Placing()
    changed = next(m for m in mutants(file, source) if m.where and m.kind == "return left out")
    place = next(p for p in placing.functions[str(ROOT / file)] if p[0] == changed.where)
    (function,) = placing.functions[str(ROOT / file)][place]
    monkeypatch.setattr(function, "__code__", function.__code__)  # put back afterwards
    before = function.__code__
    assert placing.put(changed, source)
    assert function.__code__ != before
    assert function.__code__.co_filename == polynomial.__file__
    assert not placing.put(replace(changed, imported=True), source)


def test_a_line_of_a_constant_runs_with_the_line_above(tmp_path: Path) -> None:
    numbers = "        (1, 2),\n        (3, 4),\n"
    source = f"def f(x):\n    for y in (\n{numbers}    ):\n        x += y[0]\n    return x\n"
    path = tmp_path / "lines.jsonl"
    row = {"test": "test_f", "seconds": 1, "passed": True, "lines": {"toy.py": [1, 2, 6, 7]}}
    path.write_text(json.dumps(row))
    (four,) = [m for m in mutants("toy.py", source) if m.mutated == "(3, 5),"]
    assert [t.name for t in Covering(path).tests_of(four, {"toy.py": source})] == ["test_f"]


def test_of_all_mutants_any_first_part_is_fair(tmp_path: Path) -> None:
    folder = tmp_path / "compiler/fusec/schedule"
    folder.mkdir(parents=True)
    (folder / "toy.py").write_text(SOURCE + "    return min(1, 2) if found else None\n" * 40)
    found = everything(tmp_path, 5)
    assert len(found) == len(set(found)) > 200
    assert found == everything(tmp_path, 5) != everything(tmp_path, 6)
    assert len({mutant.kind for _, mutant in found[:40]}) >= 7


def test_the_score_leaves_out_what_has_a_reason() -> None:
    row = {"file": "a.py", "where": "f", "original": "x < 1", "line": 3, "key": "0"}
    rows = [
        {**row, "stratum": "graph", "mutated": text, "verdict": verdict}
        for text, verdict in [
            ("1", "caught"),
            ("2", "timeout"),
            ("3", "crash"),
            ("4", "survived"),
            ("5", "survived"),
            ("6", "not covered"),
        ]
    ]
    text = report.totals(rows, {("a.py", "f", "x < 1", "4", 0): "x is never 1"})
    assert "| all | 6 | 3 | 1 | 1 | 1 | 60.0 % |" in text
    assert text.count("survived: ") == 1
    assert all(report.reasons().values())  # the committed file reads
