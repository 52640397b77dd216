"""A class of five made-up hand-ins: nbgrader and otter-grader give the points that we give.

``FUSELAB_GRADERS_PYTHON`` names a Python that has both (``make labs`` makes one in
``build/graders``); without, the tests are skipped.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest

from fuselab.labs.catalog import find_task, labs
from fuselab.labs.grading import grade_folder
from fuselab.labs.notebooks import task_of
from support.lab_answers import LABS, ROOT, solutions

LAB = next(lab for lab in labs() if lab.number == 13)
MODULES = {"nbgrader": "nbgrader", "otter": "otter"}
SCRIPT = ROOT / "tests" / "support" / "graders.py"


def answers() -> dict[str, dict[str, str]]:
    """Return what five students answer, by task; otter knows no part of a task's points."""
    right = solutions(LAB)
    wrong = {name: f"def {find_task(name).entry}(*given):\n    return 7\n" for name in right}
    names = list(right)
    return {
        "ada": right,
        "ben": {},
        "cyd": {**right, names[0]: wrong[names[0]], names[2]: find_task(names[2]).start},
        "dot": {names[1]: right[names[1]], names[3]: "this is not Python"},
        "eve": {**wrong, names[2]: right[names[2]], names[3]: "import sys\n" + right[names[3]]},
    }


def python_with(module: str) -> str:
    chosen = os.environ.get("FUSELAB_GRADERS_PYTHON")
    if chosen:
        found = subprocess.run([chosen, "-c", f"import {module}"], check=False, capture_output=True)
        if found.returncode == 0:
            return chosen
    elif find_spec(module) is not None:
        return sys.executable
    pytest.skip(f"{module} is not installed: `make labs` installs it into build/graders")


def ours(folder: Path) -> dict[str, dict[str, float]]:
    """Grade the same answers as hand-ins of our own."""
    folder.mkdir()
    for student, given in answers().items():
        tasks = {name: {"best": text} for name, text in given.items()}
        data = {"format": 1, "student": student, "tasks": tasks}
        (folder / f"{student}.json").write_text(json.dumps(data))
    names = [task.name for task in LAB.tasks]
    return {
        each.student: {name: each.points.get(name, 0.0) for name in names}
        for each in grade_folder(folder)
    }


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("which", MODULES)
def test_a_class_of_five(which: str, tmp_path: Path) -> None:
    python = python_with(MODULES[which])
    released = LABS / which / LAB.stem
    shutil.copytree(released, tmp_path / "released")
    blank = nbformat.read(released / f"{LAB.stem}.ipynb", as_version=4)
    (tmp_path / "handed_in").mkdir()
    for student, given in answers().items():
        notebook = copy.deepcopy(blank)
        for cell in notebook.cells:
            found = task_of(cell)
            if found is not None and found[0] in given:
                cell.source = f"%%task {found[0]}\n{given[found[0]]}"
        nbformat.write(notebook, tmp_path / "handed_in" / f"{student}.ipynb")
    done = subprocess.run(
        [python, "-P", str(SCRIPT), which, str(tmp_path), LAB.stem],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = {
        student: {name: points.get(_key(name, which), 0.0) for name in points_of(student)}
        for student, points in json.loads(done.stdout).items()
    }
    wanted = ours(tmp_path / "hand_ins")
    assert theirs == wanted
    totals = {student: sum(points.values()) for student, points in wanted.items()}
    assert totals["ada"] == sum(task.points for task in LAB.tasks)
    assert totals["ben"] == 0
    assert len(set(totals.values())) >= 4


def points_of(_: str) -> list[str]:
    return [task.name for task in LAB.tasks]


def _key(name: str, which: str) -> str:
    return name.replace(".", "-" if which == "nbgrader" else "_")
