"""Grades notebooks with nbgrader or otter-grader: ``python graders.py WHICH FOLDER STEM``.

``python graders.py install FOLDER`` installs both into an environment of their own, which sees
what this Python has; ``WHICH`` is run by a Python that has them.  FOLDER has ``released`` (the
assignment as it is handed out; for otter with its ``tests``) and ``handed_in``, a notebook a
student.  Prints JSON: of each student the points by task.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LABS = ROOT / "notebooks" / "labs"
Points = dict[str, dict[str, float]]


def with_nbgrader(folder: Path, stem: str) -> Points:
    """Release the assignment, take in what was handed in, grade it, read the gradebook."""
    from nbgrader.api import Gradebook
    from nbgrader.apps import NbGraderAPI
    from traitlets.config import PyFileConfigLoader

    course = folder / "course"
    (course / "source" / stem).mkdir(parents=True)
    shutil.copy(folder / "released" / f"{stem}.ipynb", course / "source" / stem)
    config = PyFileConfigLoader("nbgrader_config.py", str(LABS / "nbgrader")).load_config()
    config.CourseDirectory.root = str(course)
    config.CourseDirectory.course_id = "labs"
    config.IncludeHeaderFooter.header = ""
    os.chdir(course)
    api = NbGraderAPI(config=config)
    done: Any = api.generate_assignment(stem, create=True)
    assert done["success"], done.get("log") or done
    found: Points = {}
    for path in sorted((folder / "handed_in").glob("*.ipynb")):
        place = course / "submitted" / path.stem / stem
        place.mkdir(parents=True)
        shutil.copy(path, place / f"{stem}.ipynb")
        done = api.autograde(stem, path.stem)
        assert done["success"], done.get("log") or done
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        for submission in book.assignment_submissions(stem):
            grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
            points = {grade.name.removesuffix("-points"): float(grade.score) for grade in grades}
            found[submission.student.id] = points
    return found


def with_otter(folder: Path, stem: str) -> Points:
    """Make the autograder of the assignment's tests, and run it on what was handed in."""
    from otter.api import grade_submission
    from otter.generate import main as generate

    archive = folder / "autograder.zip"
    generate(
        tests_dir=str(folder / "released" / "tests"),
        output_path=str(archive),
        no_config=True,
        no_requirements=True,
        no_environment=True,
    )
    found: Points = {}
    for path in sorted((folder / "handed_in").glob("*.ipynb")):
        results = grade_submission(str(path), str(archive), quiet=True)
        found[path.stem] = {
            name: float(results.get_score(name)) for name in results.results if name != "public"
        }
    return found


def install(folder: Path) -> None:
    """Make an environment with both graders, beside what this Python has installed."""
    python = folder / "bin" / "python"
    if (folder / ".installed").is_file():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "nbgrader", "otter-grader"]
    subprocess.run(command, check=True)
    found = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    )
    # Last on the path: the graders' own versions go first.
    here = sysconfig.get_path("purelib")
    Path(found.stdout.strip(), "zz_beside.pth").write_text(f"{here}\n{ROOT}/compiler\n{ROOT}/ext\n")
    (folder / ".installed").touch()


def main() -> None:
    """Grade and print."""
    if sys.argv[1] == "install":
        return install(Path(sys.argv[2]))
    which, folder, stem = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    grade = with_nbgrader if which == "nbgrader" else with_otter
    # nbgrader starts a program that is installed beside it.
    here = os.path.dirname(sys.executable)
    os.environ["PATH"] = os.pathsep.join((here, os.environ.get("PATH", "")))
    kept = os.dup(1)
    os.dup2(2, 1)  # what graders print is no answer
    found = grade(folder, stem)
    os.write(kept, json.dumps(found).encode())


if __name__ == "__main__":
    main()
