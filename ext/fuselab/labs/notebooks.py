"""Makes a lab's notebooks of its one source: the student's, the teacher's, nbgrader's, otter's.

The source is a notebook in jupytext's percent format.  A cell tagged ``solution`` begins with
``%%task NAME`` and holds a solution; one tagged ``teacher`` is for teachers alone.  The student's
notebook has the task's own start in place of the solution.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import nbformat

from fuselab.labs.catalog import find_task, labs
from fuselab.labs.lab import Lab, task_in
from fuselab.labs.progress import PRINT_STYLE

SOLUTION, TEACHER = "solution", "teacher"
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def read_source(path: Path) -> Any:
    """Return a source as a notebook.

    Args:
        path: A file in the percent format.
    """
    import jupytext

    notebook = jupytext.read(path, fmt="py:percent")
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03}"  # the same in every build
        cell.metadata.pop("lines_to_next_cell", None)
    notebook.metadata = nbformat.from_dict({"kernelspec": _KERNEL})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def tags(cell: Any) -> list[str]:
    """Return a cell's tags."""
    return list(cell.metadata.get("tags", []))


def task_of(cell: Any) -> tuple[str, str] | None:
    """Return the name and the answer of a cell with a task; None if it has none."""
    return task_in(cell.source) if cell.cell_type == "code" else None


def solutions(path: Path) -> dict[str, str]:
    """Return the solutions in a source, by task."""
    found = (task_of(c) for c in read_source(path).cells if SOLUTION in tags(c))
    return {name: text for each in found if each for name, text in [each]}


def student(source: Any) -> Any:
    """Return the student's notebook."""
    notebook = copy.deepcopy(source)
    notebook.cells = [_for_student(cell) for cell in notebook.cells if TEACHER not in tags(cell)]
    return notebook


def _for_student(cell: Any) -> Any:
    if SOLUTION in tags(cell):
        found = task_of(cell)
        assert found is not None, f"a solution is not a task: {cell.source[:60]}"
        cell.source = f"%%task {found[0]}\n{find_task(found[0]).start.strip()}"
        cell.metadata["tags"] = ["task"]
    return cell


def nbgrader(source: Any) -> Any:
    """Return the student's notebook with nbgrader's marks, and a cell of points after each task."""
    notebook = student(source)
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        found = task_of(cell)
        if found is None:
            continue
        name = found[0]
        # The cell of the task has no mark: nbgrader would put a stub of its own in its place.
        points = nbformat.v4.new_code_cell(
            f"import fuselab.labs\n\nfuselab.labs.points({name!r})", id=f"points-{cell['id']}"
        )
        points.metadata["nbgrader"] = _mark(f"{name}.points", find_task(name).points)
        cells.append(points)
    notebook.cells = cells
    return notebook


def _mark(name: str, points: int) -> dict[str, Any]:
    return {
        "grade": True,
        "grade_id": name.replace(".", "-"),
        "locked": True,
        "schema_version": 3,
        "solution": False,
        "task": False,
        "cell_type": "code",
        "points": points,
    }


def otter(source: Any) -> tuple[Any, dict[str, str]]:
    """Return the student's notebook for otter-grader, and its test files by name."""
    notebook = student(source)
    cells, tests = [], {}
    for cell in notebook.cells:
        cells.append(cell)
        found = task_of(cell)
        if found is None:
            continue
        task = find_task(found[0])
        key = task.name.replace(".", "_")
        check = nbformat.v4.new_code_cell(
            f"import otter\n\notter.Notebook(tests_dir='tests').check({key!r})",
            id=f"check-{cell['id']}",
        )
        cells.append(check)
        points = f"fuselab.labs.points({task.name!r}) == {task.points}"
        case = f">>> import fuselab.labs\n>>> {points}\nTrue"
        test = {
            "name": key,
            "points": task.points,
            "suites": [
                {
                    "cases": [{"code": case, "hidden": False, "locked": False}],
                    "scored": True,
                    "setup": "",
                    "teardown": "",
                    "type": "doctest",
                }
            ],
        }
        tests[f"{key}.py"] = f"OK_FORMAT = True\n\ntest = {json.dumps(test, indent=1)}\n".replace(
            ": true", ": True"
        ).replace(": false", ": False")
    notebook.cells = cells
    return notebook, tests


def build(folder: Path, made: Path | None = None) -> list[Path]:
    """Make the notebooks of every lab that has a source.

    Args:
        folder: Has ``source``; the student's notebooks go there.
        made: Where the others go: ``teacher``, ``nbgrader``, ``otter``; ``folder`` if None.

    Returns:
        The files, in order.
    """
    written = []
    others = made or folder
    for lab in labs():
        path = source_path(folder, lab)
        if not path.is_file():
            continue
        source = read_source(path)
        with_tests, tests = otter(source)
        for place, notebook in (
            (folder / f"{lab.stem}.ipynb", student(source)),
            (others / "teacher" / f"{lab.stem}.ipynb", source),
            (others / "nbgrader" / lab.stem / f"{lab.stem}.ipynb", nbgrader(source)),
            (others / "otter" / lab.stem / f"{lab.stem}.ipynb", with_tests),
        ):
            place.parent.mkdir(parents=True, exist_ok=True)
            nbformat.validate(notebook)
            nbformat.write(notebook, place)
            written.append(place)
        for name, text in tests.items():
            place = others / "otter" / lab.stem / "tests" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
            written.append(place)
    return written


def printable(path: Path) -> str:
    """Return a notebook as a page of HTML that prints whole: long lines of code go on below.

    Args:
        path: A notebook, with its outputs or without.
    """
    import nbconvert

    notebook = nbformat.read(path, as_version=4)
    text, _ = nbconvert.HTMLExporter(embed_images=True).from_notebook_node(notebook)
    return str(text).replace("</head>", f"{PRINT_STYLE}</head>", 1)


def source_path(folder: Path, lab: Lab) -> Path:
    """Return where a lab's source is."""
    return folder / "source" / f"{lab.stem}.py"


__all__ = [
    "build",
    "nbgrader",
    "otter",
    "printable",
    "read_source",
    "solutions",
    "source_path",
    "student",
]
