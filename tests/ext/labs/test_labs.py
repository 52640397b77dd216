"""The labs: solutions pass, wrong answers are refused with words, notebooks are as they should."""

from __future__ import annotations

import csv
import json
import os
import re
import time
from collections import Counter
from pathlib import Path

import nbformat
import pytest
import torch

import fusec
from fusec.inspect.glossary import GLOSSARY
from fuselab.judge import judge
from fuselab.judge.engine import judge_for_points
from fuselab.judge.task import Task
from fuselab.judge.verdict import AnswerFinding, AnswerVerdict
from fuselab.labs.__main__ import main
from fuselab.labs.catalog import find_task, labs
from fuselab.labs.content import captures, lab13
from fuselab.labs.grading import as_csv, grade_folder
from fuselab.labs.lab import Lab
from fuselab.labs.notebooks import task_of
from fuselab.labs.progress import (
    HandInError,
    LabProgress,
    TaskState,
    points,
    progress,
    read_hand_in,
)
from fuselab.labs.ranking import StudentEntry, as_text, ranked
from support.lab_answers import EQUIVALENT, LABS, ROOT, solutions, wrong_answers

BUSY = "others want the processors"
LISTED = ROOT / "build" / "wrong_answers"  # what is said of each, to be read
TASKS = [task for lab in labs() for task in lab.tasks]


def lab_with(task: Task) -> Lab:
    return next(lab for lab in labs() if task in lab.tasks)


@pytest.mark.sample(2)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_solution_passes_and_the_start_does_not(task: Task) -> None:
    # As a class is graded: where others have the processors, what the clock refuses is tried again.
    verdict = judge_for_points(task, solutions(lab_with(task))[task.name])
    assert verdict.ok, verdict
    begun = judge(task, task.start)
    assert not begun.ok
    assert begun.score == 0
    assert begun.stage != "rules", begun
    assert len(task.hints) == 3


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lab", labs(), ids=lambda lab: lab.stem)
def test_wrong_answers_are_refused(lab: Lab) -> None:
    """At least 25 a lab, of many kinds; each verdict says more than that it is wrong."""
    right, refused, said = solutions(lab), Counter(), []
    for task in lab.tasks:
        for name, text in wrong_answers(task, right[task.name]):
            if (task.name, re.sub(r" \(\d+\)$", "", name)) in EQUIVALENT:
                continue
            verdict = judge(task, text)
            assert not verdict.ok, (task.name, name, text)
            assert len(verdict.reason) > 20, (task.name, name, verdict)
            refused[task.name] += 1
            said.append(f"{task.name}, {name}: {verdict.reason}")
    LISTED.mkdir(parents=True, exist_ok=True)
    (LISTED / f"{lab.stem}.txt").write_text("\n".join(said) + "\n")
    assert refused.total() >= 25
    assert min(refused.values()) >= 5


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["nothing", "no Python", "half done", "another number", "prints"])
def test_a_few_wrong_answers(kind: str) -> None:
    task = find_task("lab13.pays")
    answers = dict(wrong_answers(task, solutions(lab_with(task))[task.name]))
    name = next(name for name in answers if name.startswith(kind))
    verdict = judge(task, answers[name])
    assert not verdict.ok
    assert len(verdict.reason) > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [[5, 6, 7], [5, 1, 6], [1, 1, 5], [3, 2, 1, 8], [9, 1, 9, 1, 3], [5, 2, 3], [5, 6, 2, 3]],
)
def test_lab_13_counts_compilations_as_the_compiler_does(sizes: list[int]) -> None:
    torch._dynamo.reset()
    calls = [(torch.randn(n),) for n in sizes]
    said = fusec.predict_calls(lambda x: x.sin() + 1, calls)
    assert len({part.graph for part in said.parts}) == lab13.compiles(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("program", captures.PROGRAMS)
def test_lab_2_has_a_table_of_what_really_comes_of_it(program: str) -> None:
    for way in captures.WAYS:
        found = captures.attempt(way, program)
        assert found == captures.outcome(way, program) or found == "missing", way


# -- notebooks ------------------------------------------------------------------------------


@pytest.mark.parametrize("lab", labs(), ids=lambda lab: lab.stem)
def test_notebooks_have_their_tasks_and_students_no_solutions(lab: Lab) -> None:
    student = nbformat.read(LABS / f"{lab.stem}.ipynb", as_version=4)
    found = dict(each for cell in student.cells if (each := task_of(cell)))
    assert list(found) == [task.name for task in lab.tasks]
    right = solutions(lab)
    for task in lab.tasks:
        assert found[task.name].strip() == task.start.strip()
        assert right[task.name].strip() not in json.dumps(student)
    assert not any("teacher" in cell.metadata.get("tags", []) for cell in student.cells)
    assert not any(cell.get("outputs") for cell in student.cells)
    for place in ("nbgrader", "otter"):
        text = (LABS / place / lab.stem / f"{lab.stem}.ipynb").read_text()
        assert all(task.name in text for task in lab.tasks)
    tests = {path.stem for path in (LABS / "otter" / lab.stem / "tests").glob("*.py")}
    assert tests == {task.name.replace(".", "_") for task in lab.tasks}


def test_notebooks_are_those_of_the_sources(tmp_path: Path) -> None:
    pytest.importorskip("jupytext")
    from fuselab.labs.notebooks import build

    (tmp_path / "source").symlink_to(LABS / "source")
    for path in build(tmp_path):
        assert path.read_text() == (LABS / path.relative_to(tmp_path)).read_text(), path.name


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lab", labs(), ids=lambda lab: lab.stem)
@pytest.mark.parametrize("place", ["", "teacher"])
def test_notebooks_run_in_a_kernel(place: str, lab: Lab, tmp_path: Path) -> None:
    """From top to bottom, no cell raises or takes long; the teacher's brings all points."""
    from nbclient import NotebookClient

    notebook = nbformat.read(LABS / place / f"{lab.stem}.ipynb", as_version=4)
    client = NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}})
    seconds = []
    with client.setup_kernel():
        for number, cell in enumerate(notebook.cells):
            for _ in range(3):  # as a verdict on a busy machine says: "judge it again"
                began = time.monotonic()
                client.execute_cell(cell, number)
                seconds.append(time.monotonic() - began)
                if BUSY not in str(cell.get("outputs", "")):
                    break
    assert max(seconds) < 30
    shown = "".join(str(cell.get("outputs", "")) for cell in notebook.cells)
    most = sum(task.points for task in lab.tasks)
    reached = most if place else 0
    assert f"{reached} of {most}" in shown


def test_the_guide_has_the_words_that_results_explain() -> None:
    guide = (ROOT / "docs" / "labs.md").read_text()
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \|$", guide, re.MULTILINE)
    assert rows == sorted(GLOSSARY.items())
    broken = AnswerFinding("breaks", "1", "at most 0", False)
    shown = AnswerVerdict("lab13.scores", False, "counts", "it breaks", findings=(broken,))
    html = shown._repr_mimebundle_()["text/html"]
    assert "<b>graph break</b>: a place where capture stops" in html
    assert "roofline" not in html


# -- progress and grading -------------------------------------------------------------------


def test_hints_progress_and_hand_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = LabProgress()
    name = "lab01.bytes"
    assert "Run a %%task cell first" in mine.hint()
    assert not mine.judge(name, "def bytes_moved(n, k): return 8 * n, 8 * n\n").ok
    texts = [mine.hint() for _ in range(4)]
    assert [text[:11] for text in texts] == ["Hint 1 of 3", "Hint 2 of 3", "Hint 3 of 3"] + [
        "Hint 3 of 3"
    ]
    assert ["once more" in text for text in texts] == [False, False, False, True]
    assert main(["grade", str(tmp_path)]) == 2
    assert "there are no hand-ins in" in capsys.readouterr().err
    right = "def bytes_moved(n, k): return 8 * n * k, 8 * n\n"
    assert mine.judge(name, right).ok
    assert not mine.judge(name, "def bytes_moved(n, k): return 0\n").ok
    table = mine.table()
    assert table.points == 1
    assert "1 of 1" in str(table)
    assert table.rows[0].attempts == 3
    for student in ("=Ada", "Grace"):
        mine.hand_in(tmp_path / f"{student.strip('=')}.json", student)
    forged = json.loads((tmp_path / "Grace.json").read_text())
    assert forged["edits"] == []
    forged["tasks"]["lab01.softmax"] = {"best": "def softmax_bytes(r, c): return 1", "score": 1.0}
    forged["tasks"]["lab99.none"] = {"best": "x = 1", "score": 1.0}
    (tmp_path / "Grace.json").write_text(json.dumps(forged))
    (tmp_path / "broken.json").write_text("{")
    assert main(["grade", str(tmp_path), "--reasons"]) == 1
    out = capsys.readouterr()
    rows = {row["file"]: row for row in csv.DictReader(out.out.splitlines())}
    assert rows["Ada.json"]["student"] == "'=Ada", "no spreadsheet takes it for a formula"
    assert rows["Ada.json"]["lab01.bytes"] == rows["Ada.json"]["total"] == "1"
    assert rows["Grace.json"]["lab01.softmax"] == "0", "what a file says of itself counts nothing"
    assert rows["Ada.json"]["lab01.roofline"] == "0", "a column of every task of a lab"
    assert "it is not JSON" in rows["broken.json"]["note"]
    assert "Grace.json: lab99.none: there is no task" in out.err


def test_one_hand_in_for_all_labs(tmp_path: Path) -> None:
    """Every lab is a notebook of its own; the next one's %hand_in keeps what the last one wrote."""
    path = tmp_path / "hand_in_ada.json"
    one, other = LabProgress(), LabProgress()
    right = "def bytes_moved(n, k): return 8 * n * k, 8 * n\n"
    assert one.judge("lab01.bytes", right).ok
    one.hand_in(path, "Ada")
    assert not other.judge("lab01.bytes", "def bytes_moved(n, k): return 0\n").ok
    other.judge("lab13.overhead", "def saved(*given): return 7\n")
    other.hand_in(path, "Ada")
    student, answers = read_hand_in(path)
    assert student == "Ada"
    assert answers["lab01.bytes"] == right, "the better one"
    assert "lab13.overhead" in answers
    with pytest.raises(HandInError, match=r"hand_in_ada\.json is Ada's"):
        other.hand_in(path, "ADA")
    path.write_text("{")
    other.hand_in(path, "Ada")
    assert "lab13.overhead" in read_hand_in(path)[1]
    assert list(tmp_path.iterdir()) == [path]


def test_a_notebook_becomes_a_page_that_prints_whole(tmp_path: Path) -> None:
    pytest.importorskip("nbconvert")
    page = tmp_path / "page.html"
    assert main(["print", str(LABS / "lab13_slower.ipynb"), "--out", str(page)]) == 0
    text = page.read_text()
    assert text.index("pre-wrap !important") < text.index("</head>")
    assert "lab13.pays" in text


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ([], "its format is not 1"),
        ({"format": 1, "tasks": {}}, "no student"),
        ({"format": 1, "student": "A", "tasks": {"lab01.bytes": {"best": 3}}}, "is not a text"),
    ],
)
def test_what_is_no_hand_in(tmp_path: Path, data: object, why: str) -> None:
    from fuselab.labs.grading import grade_file

    path = tmp_path / "a.json"
    path.write_text(json.dumps(data))
    assert why in grade_file(path).problem


def test_points_are_those_of_this_notebook() -> None:
    progress().tasks.clear()
    assert points("lab13.overhead") == 0
    (lab,) = (lab for lab in labs() if "lab13.overhead" in solutions(lab))
    progress().judge("lab13.overhead", solutions(lab)["lab13.overhead"])
    assert points("lab13.overhead") == 1
    progress().tasks["lab13.pays"] = TaskState(best="def calls_until_it_pays(*n): pass", score=1.0)
    assert points("lab13.pays") == 0, "what a notebook says of itself counts nothing"
    progress().tasks.clear()


def test_a_class_goes_on_whatever_is_handed_in(tmp_path: Path) -> None:
    right = '{"format": 1, "student": "Ada", "tasks": {"lab01.bytes": {"best": "%s"}}}'
    answer = "def bytes_moved(n, k): return 8 * n * k, 8 * n"
    (tmp_path / "a.json").write_text(right % answer)
    (tmp_path / "b.json").write_text("[" * 100_000)
    (tmp_path / "c.json").write_text('{"format": 1, "student": "\\ud800", "tasks": {}}')
    (tmp_path / "d.json").mkdir()
    os.mkfifo(tmp_path / "e.json")
    (tmp_path / "f.json").write_text(right % ("x = " + "-" * 50_000 + "1"))
    graded = grade_folder(tmp_path)
    assert [each.total for each in graded] == [1, 0, 0, 0, 0, 0]
    assert all("is not a hand-in" in each.problem for each in graded[1:5])
    assert "nested too deeply" in graded[5].reasons["lab01.bytes"]
    assert as_csv(graded).count("\n") == 7


# -- the ranking of lab 14 --------------------------------------------------------------------


def test_places_go_by_bytes_kernels_and_share() -> None:
    entries = [
        StudentEntry("Ada", 100, 2, 0.5),
        StudentEntry("Ben", 100, 2, 0.51),
        StudentEntry("Cyd", 100, 2, 0.8),
        StudentEntry("Dot", 100, 1, 0.1),
        StudentEntry("Eve", 90, 9, None),
        StudentEntry("Fay", None, None, 0.9),
    ]
    found = [(place, each.student) for place, each in ranked(entries)]
    assert found == [(1, "Eve"), (2, "Dot"), (3, "Cyd"), (4, "Ada"), (4, "Ben"), (6, "Fay")]
    text = as_text(ranked(entries))
    assert "4      Ben      100    2        51%" in text
    assert "6      Fay      -      -        90%" in text


@pytest.mark.slow
def test_a_class_is_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = solutions(lab_with(find_task("lab14.gates")))
    for student, answers in {
        "Ada": right,
        "Ben": {"lab14.gates": find_task("lab14.gates").start},
        "Cyd": {"lab14.router": "no C++"},
    }.items():
        tasks = {name: {"best": text} for name, text in answers.items()}
        data = {"format": 1, "student": student, "tasks": tasks}
        (tmp_path / f"{student}.json").write_text(json.dumps(data))
    assert main(["rank", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["1", "Ada"], ["2", "Ben"]]
    assert lines[1].split()[2] == "5,600,000"
    assert lines[1].endswith("%")
