"""What a student types in a lab."""

from __future__ import annotations

import json

import pytest
from IPython.core.error import UsageError

from fuselab.labs.progress import progress
from support.shell import run

ANSWER = "def bytes_moved(n, operators):\n    return 8 * n * operators, 8 * n\n"


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    progress().tasks.clear()
    progress().latest = ""
    monkeypatch.chdir(tmp_path)


def test_a_task_is_judged_and_lands(shell, tmp_path):
    verdict = run(shell, "%%task lab01.bytes\n" + ANSWER)
    assert verdict.ok
    assert shell.user_ns["bytes_moved"](1, 1) == (8, 8)
    assert "1 of 1" in str(run(shell, "%progress 1"))
    hint = run(shell, "%hint")
    assert "Hint 1 of 3 about lab01.bytes" in repr(hint)
    assert "white-space: pre-line" in hint._repr_mimebundle_()["text/html"]
    said = run(shell, "%hand_in Ada Lovelace")
    assert "written to hand_in_ada_lovelace.json: give it" in repr(said)
    data = json.loads((tmp_path / "hand_in_ada_lovelace.json").read_text())
    assert data["tasks"]["lab01.bytes"]["best"] == ANSWER
    assert "with what it had of other labs" in repr(run(shell, "%hand_in Ada Lovelace"))


def test_what_is_refused_does_not_run(shell):
    verdict = run(shell, "%%task lab01.bytes\nimport os\nran = 1\n")
    assert verdict.stage == "rules"
    assert "ran" not in shell.user_ns


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%%task\nx = 1", "takes a task's name"),
        ("%%task lab01.byte\nx = 1", r"did you mean lab01.bytes\?"),
        ("%hint lab99.none", "there is no task"),
        ("%progress 99", "takes the number of a lab"),
        ("%hand_in", "takes your name"),
    ],
)
def test_mistakes(shell, cell, message):
    with pytest.raises(UsageError, match=message):
        run(shell, cell)
