"""``python -m fuselab.labs``: ``list``, ``grade``, ``rank``, ``print``, ``build``, ``serve``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fuselab.errors import NotJudged
from fuselab.labs.catalog import labs


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is asked; return 0, or 1 where a hand-in could not be graded."""
    parser = argparse.ArgumentParser(prog="python -m fuselab.labs")
    ways = parser.add_subparsers(dest="way", required=True)
    ways.add_parser("list", help="the labs and their tasks")
    grade = ways.add_parser("grade", help="judge a folder of hand-ins; the points as CSV")
    grade.add_argument("folder", type=Path)
    grade.add_argument("--out", type=Path, help="a file for the CSV in place of the output")
    grade.add_argument("--untimed", action="store_true", help="leave the limits of speed out")
    grade.add_argument("--reasons", action="store_true", help="say why, on standard error")
    rank = ways.add_parser("rank", help="a class's open kernels (lab 14): bytes, kernels, share")
    rank.add_argument("folder", type=Path)
    build = ways.add_parser("build", help="make the notebooks from their sources")
    build.add_argument("folder", type=Path)
    build.add_argument("--made", type=Path, help="where all but the student's notebooks go")
    paper = ways.add_parser("print", help="a notebook as a page to be printed, nothing cut off")
    paper.add_argument("notebook", type=Path)
    paper.add_argument("--out", type=Path, help="the page; beside the notebook by default")
    ways.add_parser("serve", help="the judge over the labs' tasks, as a server of the MCP")
    given = parser.parse_args(arguments)
    if given.way == "list":
        for lab in labs():
            needs = f" (needs: {', '.join(lab.needs)})" if lab.needs else ""
            print(f"{lab.number:2} {lab.title}, {lab.minutes} minutes{needs}")
            for task in lab.tasks:
                print(f"   {task.name}: {task.title} ({task.points})")
        return 0
    if given.way == "build":
        from fuselab.labs.notebooks import build as build_all

        for path in build_all(given.folder, given.made):
            print(path)
        return 0
    if given.way == "print":
        from fuselab.labs.notebooks import printable

        page = given.out or given.notebook.with_suffix(".html")
        page.write_text(printable(given.notebook))
        print(page)
        return 0
    if given.way == "serve":
        from fuselab.judge.server import main as serve

        return serve([], {task.name: task for lab in labs() for task in lab.tasks})
    return _rank(given.folder) if given.way == "rank" else _grade(given)


def _rank(folder: Path) -> int:
    from fuselab.labs.ranking import as_text, rank_folder

    if not folder.is_dir():
        print(f"fuselab.labs: there is no folder {folder}", file=sys.stderr)
        return 2
    try:
        print(as_text(rank_folder(folder)), end="")
    except NotJudged as error:
        print(f"fuselab.labs: {error}", file=sys.stderr)
        return 1
    return 0


def _grade(given: argparse.Namespace) -> int:
    from fuselab.labs.grading import as_csv, grade_folder

    if not given.folder.is_dir():
        print(f"fuselab.labs: there is no folder {given.folder}", file=sys.stderr)
        return 2
    graded = grade_folder(given.folder, timed=not given.untimed)
    if not graded:
        said = f"there are no hand-ins in {given.folder}: students write them with %hand_in"
        print(f"fuselab.labs: {said} (hand_in_NAME.json)", file=sys.stderr)
        return 2
    text = as_csv(graded)
    if given.out:
        given.out.write_text(text)
    else:
        print(text, end="")
    if given.reasons:
        for each in graded:
            for name, reason in each.reasons.items():
                print(f"{each.file}: {name}: {reason}", file=sys.stderr)
    return int(any(each.problem for each in graded))


if __name__ == "__main__":
    sys.exit(main())
