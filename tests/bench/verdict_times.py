"""Seconds of a verdict on each task: ``python tests/bench/verdict_times.py``.

Each lab in a process of its own that got ready as ``%progress`` does.  Of each task the right
answer, its start, and a wrong answer or two are judged; what is shown are the seconds of the right
answer and of the slowest other one.  ``--write`` puts the table into ``docs/labs.md``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuselab.judge import judge
from fuselab.judge.task import FunctionTask
from fuselab.judge.trial import AnswerProgram, import_modules, modules_for
from fuselab.labs.catalog import labs
from fuselab.labs.lab import Lab
from support.lab_answers import solutions, wrong_answers

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "labs.md"
BEGIN, END = "<!-- seconds of a verdict -->", "<!-- end of seconds -->"
FOLDER = ROOT / "build" / "verdict_times"
KINDS = ("another number", "one too many", "half done", "raises")


def times(lab: Lab) -> dict[str, tuple[float, float]]:
    """Return of each task the seconds of the right answer, and of the slowest other one."""
    right = solutions(lab)
    for counted in (False, True):
        program = AnswerProgram("f", triton=any("triton" in text for text in right.values()))
        if not counted or any(isinstance(task, FunctionTask) for task in lab.tasks):
            import_modules(modules_for(program, counted=counted))
    judge(lab.tasks[0], lab.tasks[0].start)  # the process that is forked from is there
    found = {}
    for task in lab.tasks:
        others = [task.start]
        for name, text in wrong_answers(task, right[task.name]):
            if name.startswith(KINDS) and len(others) < 3:
                others.append(text)
        good = judge(task, right[task.name])
        assert good.ok, good
        bad = max(judge(task, text).seconds for text in others)
        found[task.name] = (round(good.seconds, 2), round(bad, 2))
    return found


def table() -> str:
    """Return what was measured as a table, a line a lab."""
    lines = ["| lab | right answer, slowest other one (seconds) |", "|---|---|"]
    for lab in labs():
        path = FOLDER / f"{lab.number}.json"
        if path.is_file():
            found = json.loads(path.read_text())
            cells = [f"{n.partition('.')[2]} {a:.1f}, {b:.1f}" for n, (a, b) in found.items()]
            lines.append(f"| {lab.number} | {'; '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", type=int, default=[lab.number for lab in labs()])
    parser.add_argument("--write", action="store_true", help="write what was measured before")
    parser.add_argument("--one", type=int, help="measure a lab in this process")
    options = parser.parse_args()
    if options.write:
        head, _, rest = DOCS.read_text().partition(BEGIN)
        DOCS.write_text(f"{head}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")
    elif options.one is not None:
        lab = next(lab for lab in labs() if lab.number == options.one)
        FOLDER.mkdir(parents=True, exist_ok=True)
        found = times(lab)
        (FOLDER / f"{lab.number}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(lab.number, found, flush=True)
    else:
        for number in options.only:
            subprocess.run([sys.executable, __file__, "--one", str(number)], check=False)


if __name__ == "__main__":
    main()
