"""Which lab runs where: the teacher's notebooks, run in environments that lack something.

``python tests/bench/lab_table.py run zig`` runs them where zig is the only compiler, and so on, and
leaves what came of it in ``build/lab_table``; with ``--judge`` only the solutions are judged, which
takes a minute and no Jupyter.  ``table`` writes what is there into ``docs/labs.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuselab.judge import judge
from fuselab.labs.catalog import find_task, labs
from fuselab.labs.lab import Lab
from support.lab_answers import LABS, solutions

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "lab_table"
DOCS = ROOT / "docs" / "labs.md"
BEGIN, END = "<!-- which lab runs where -->", "<!-- end -->"
# Python imports this as it starts: modules that are as if they were not installed.
HIDING = """
import os
from importlib.machinery import PathFinder

hidden, find = os.environ["LABS_HIDE"].split(","), PathFinder.find_spec
PathFinder.find_spec = classmethod(
    lambda cls, name, path=None, target=None: (
        None if name.partition(".")[0] in hidden else find(name, path, target)
    )
)
"""
# What is hidden, and whether there are the system's compilers.
PLACES: dict[str, tuple[str, bool]] = {
    "here": ("", True),
    "zig": ("", False),
    "bare": ("ziglang", False),
    "untritoned": ("triton", True),
    "gpu": ("", True),
}
HEADS = {
    "here": "no GPU (Triton's interpreter)",
    "untritoned": "no Triton",
    "zig": "no C++ compiler but the bundled one",
    "bare": "no C++ compiler at all",
    "gpu": "with a GPU",
}


def environment(place: str, folder: Path) -> dict[str, str]:
    """Return a kernel's environment.

    Args:
        place: One of ``PLACES``.
        folder: Empty; stands first on the path of Python.
    """
    hidden, compilers = PLACES[place]
    (folder / "sitecustomize.py").write_text(HIDING)
    found = {**os.environ, "LABS_HIDE": hidden, "FUSEC_CACHE_DIR": str(folder / "cache")}
    found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    if not compilers:
        found.pop("CXX", None)
        found["PATH"] = str(Path(sys.executable).parent)
    return found


def in_a_kernel(lab: Lab, env: dict[str, str], folder: Path) -> dict[str, Any]:
    """Run the teacher's notebook; return its points and what went wrong."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(LABS / "teacher" / f"{lab.stem}.ipynb", as_version=4)
    client = NotebookClient(
        notebook, timeout=280, allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )
    seconds, errors, failed = [], [], {}
    with client.setup_kernel(env=env):
        for number, cell in enumerate(notebook.cells):
            began = time.monotonic()
            client.execute_cell(cell, number)
            seconds.append(round(time.monotonic() - began, 1))
            for each in cell.get("outputs", []):
                text = each.get("text") or each.get("data", {}).get("text/plain", "")
                if each.output_type == "error":
                    errors.append(f"{cell.source[:60]!r}: {each.ename}: {each.evalue}"[:300])
                elif each.output_type == "execute_result" and cell.source.startswith("%%task"):
                    name = cell.source.split()[1]
                    if not text.startswith(f"{name}: passed"):
                        failed[name] = text.splitlines()[0][:300]
    shown = "".join(str(cell.get("outputs", "")) for cell in notebook.cells)
    most = sum(task.points for task in lab.tasks)
    points = float(re.findall(rf"([\d.]+) of {most}\b", shown)[-1])
    return {
        "points": points,
        "most": most,
        "errors": errors,
        "failed": failed,
        "longest": max(seconds),
        "seconds": round(sum(seconds), 1),
    }


def judged(lab: Lab) -> dict[str, Any]:
    """Judge the solutions here; return their points and what went wrong."""
    right = solutions(lab)
    points, failed, seconds = 0.0, {}, []
    for name, text in right.items():
        verdict = judge(find_task(name), text)
        points += find_task(name).points * verdict.score
        seconds.append(verdict.seconds)
        if not verdict.ok:
            failed[name] = verdict.title[:300]
    most = sum(task.points for task in lab.tasks)
    found = {"points": round(points, 2), "most": most, "errors": [], "failed": failed}
    return {**found, "longest": round(max(seconds), 1), "seconds": round(sum(seconds), 1)}


def run(place: str, chosen: list[Lab], *, kernel: bool, out: Path) -> None:
    """Run labs in a place, and leave what came of it."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{place}.json"
    found = json.loads(path.read_text()) if path.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        env = environment(place, Path(folder))
        for lab in chosen:
            one = in_a_kernel(lab, env, Path(folder)) if kernel else judged(lab)
            found[str(lab.number)] = one
            print(place, lab.number, json.dumps(one), flush=True)
            path.write_text(json.dumps(found, indent=1) + "\n")


def cell(one: dict[str, Any] | None) -> str:
    """Return an entry of the table."""
    if one is None:
        return "not run"
    lacking = []
    if one["failed"]:
        names = ", ".join(name.partition(".")[2] for name in one["failed"])
        lacking.append(f"not {names} ({one['points']:g} of {one['most']} points)")
    if one["errors"]:
        count = len(one["errors"])
        lacking.append(f"not {count} other cell{'s' * (count > 1)}")
    return "; ".join(lacking) or "all"


def table(folder: Path) -> str:
    """Return the table of what is there, in Markdown."""
    found = {
        place: json.loads(path.read_text())
        for place in HEADS
        if (path := folder / f"{place}.json").is_file()
    }
    lines = ["| lab | minutes | points | " + " | ".join(HEADS[place] for place in found) + " |"]
    lines.append("|---" * (3 + len(found)) + "|")
    for lab in labs():
        cells = [cell(found[place].get(str(lab.number))) for place in found]
        points = sum(task.points for task in lab.tasks)
        row = [f"{lab.number} {lab.title}", str(lab.minutes), str(points), *cells]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run labs somewhere, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("place", nargs="?", choices=PLACES, default="here")
    parser.add_argument("--only", nargs="+", type=int, default=[lab.number for lab in labs()])
    parser.add_argument("--judge", action="store_true", help="judge the solutions, without Jupyter")
    parser.add_argument("--missing", action="store_true", help="only labs that have not been run")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    if options.what == "run":
        path = options.out / f"{options.place}.json"
        done = json.loads(path.read_text()) if options.missing and path.is_file() else {}
        chosen = [n for n in labs() if n.number in options.only and str(n.number) not in done]
        if options.judge and "LABS_HIDE" not in os.environ:
            with tempfile.TemporaryDirectory() as folder:
                env = environment(options.place, Path(folder))
                subprocess.run([sys.executable, *sys.argv], env=env, check=True)
            return None
        return run(options.place, chosen, kernel=not options.judge, out=options.out)
    text = DOCS.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    DOCS.write_text(f"{head}{BEGIN}\n{table(options.out)}\n{END}{tail}")


if __name__ == "__main__":
    main()
