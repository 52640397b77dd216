"""Recipes under ``docs/recipes``, followed to the letter in a copy of the tree.

A block with a title is an edit of the file that the title names: one of ``diff`` changes it where
its lines stand, any other is the whole of a new file. The blocks of Python without a title are run
afterwards, as those of every page (``pages.py``).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from support.pages import TRY, Block, blocks

COPIED = ("compiler/fusec", "ext/fuselab")


class NotToTheLetter(Exception):
    """What a recipe says cannot be done."""


def edits(text: str) -> list[Block]:
    """Return the blocks of a recipe that change files, in order."""
    return [block for block in blocks(text) if block.title not in ("", TRY)]


def copy_tree(root: Path, folder: Path) -> None:
    """Copy what a recipe may change, compiled files with it: importing those is quicker."""
    for part in COPIED:
        left_out = shutil.ignore_patterns("node_modules")
        shutil.copytree(root / part, folder / part, ignore=left_out)


def follow(text: str, root: Path) -> list[str]:
    """Make the edits of a recipe; return the files that it touched, in order.

    Raises:
        NotToTheLetter: A new file is there already; a line to change is not there, or twice.
    """
    for block in edits(text):
        path = root / block.title
        if block.language != "diff":
            if path.exists():
                raise NotToTheLetter(f"{block.title} is no new file")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text + "\n")
            continue
        if not path.exists():
            raise NotToTheLetter(f"there is no {block.title}")
        path.write_text(patched(path.read_text(), block.text, block.title))
    return list(dict.fromkeys(block.title for block in edits(text)))


def patched(text: str, diff: str, name: str) -> str:
    """Return a text with one change: lines that begin with ``-`` go, with ``+`` come, others stay.

    Raises:
        NotToTheLetter: The lines that stay and go are not in the text once.
    """
    old, new = [], []
    for line in diff.splitlines():
        sign, rest = line[:1] or " ", line[1:]
        if sign not in " +-":
            raise NotToTheLetter(f"{name}: {line!r} begins with none of ' ', '+' and '-'")
        if sign != "+":
            old.append(rest)
        if sign != "-":
            new.append(rest)
    lines = text.splitlines()
    places = [n for n in range(len(lines) - len(old) + 1) if lines[n : n + len(old)] == old]
    if len(places) != 1:
        where = "nowhere" if not places else f"{len(places)} times"
        raise NotToTheLetter(f"{name} has these lines {where}:\n" + "\n".join(old))
    lines[places[0] : places[0] + len(old)] = new
    return "\n".join(lines) + "\n"
