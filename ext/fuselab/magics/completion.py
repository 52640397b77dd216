"""Tab completion of the magics: their options, the options' values, and names of kernels and cells.

On the line of one of our magics nothing else is offered: Python's names, files and keywords would
stand before the options, and asking for them takes seconds the first time.
"""

from __future__ import annotations

import argparse
import re
import weakref
from typing import Any

from IPython.core.completer import SimpleCompletion, completion_matcher

_known: weakref.WeakSet[Any] = weakref.WeakSet()
_OURS = re.compile(r"\s*%%?((?:fuse|kernel|predict)\w*)\s")
_CLASSES = ("FuseMagics", "PredictMagics", "CacheMagics", "PackageMagics")  # where they are
_KERNELS = frozenset({"kernel", "fuse_revert", "fuse_export", "fuse_compare"})
_CELLS = frozenset({"fuse_report", "fuse_share", "fuse_kernels", "fuse_compare", "fuse_package"})
_ASSIGNED = re.compile(r"^([A-Za-z_]\w*)[^\S\n]*(?::[^=\n]+)?=(?!=)", re.MULTILINE)
_FIRST = 10_000  # before IPython's own matchers, which then are not asked


def register(shell: Any) -> None:
    """Let a shell complete what our magics take; once a shell, whatever is loaded again."""
    completer = getattr(shell, "Completer", None)
    if completer is None or completer in _known:
        return
    _known.add(completer)

    @completion_matcher(identifier="fuselab", priority=_FIRST, api_version=2)
    def match(context: Any) -> dict[str, Any]:
        line = context.line_with_cursor[: _column(context)]
        head = _OURS.match(line)
        known = shell.magics_manager.registry
        owners = [known.get(name) for name in _CLASSES] if head else []
        magics = next((each for each in owners if head and hasattr(each, head[1])), None)
        if magics is None:
            return {"completions": [], "suppress": False}
        symbol = "" if line[-1:].isspace() else line.split()[-1]
        found = completions(magics, line, symbol, context.full_text)
        return {
            "completions": [SimpleCompletion(text=text, type="option") for text in found],
            "matched_fragment": symbol,
            "suppress": True,
            "ordered": True,
        }

    completer.custom_matchers.append(match)


def _column(context: Any) -> int:
    """Return where the cursor is in its line."""
    before = context.full_text[: context.cursor_position]
    # Some callers give all of the text up to the cursor, others its line alone.
    column = len(before) - (before.rfind("\n") + 1)
    return min(column, len(context.line_with_cursor)) or len(context.line_with_cursor)


def completions(magics: Any, line: str, symbol: str, cell: str = "") -> list[str]:
    """Return what may stand at the end of a line.

    Args:
        magics: ``FuseMagics``, or one of the others for what that has.
        line: All of it, up to the cursor.
        symbol: The word that the cursor is in.
        cell: All of the cell, whose names ``--out`` takes.
    """
    head, _, rest = line.lstrip().lstrip("%").partition(" ")
    magic = getattr(magics, head, None)
    parser: argparse.ArgumentParser | None = getattr(magic, "parser", None)
    if parser is None or not line.rstrip("\n").lstrip().startswith("%"):
        return []
    words = rest.split()
    if words and words[-1] == symbol:
        words.pop()
    option = next(
        (a for a in parser._actions if words and words[-1] in a.option_strings and a.nargs != 0),
        None,
    )
    if option is not None and option.choices:
        return _starting([str(choice) for choice in option.choices], symbol)
    if option is not None and option.dest == "out":
        return _starting(_ASSIGNED.findall(cell), symbol)
    options = [a.option_strings for a in parser._actions if a.option_strings]
    found = [names[-1] for names in options if not {*names} & {*words}]
    if head in _KERNELS or (option is not None and option.dest == "edit"):
        found = [*magics.session.kernels, *found]
    if head in _CELLS:
        found = [*magics.session.cells, *found]
    return _starting(found, symbol)


def _starting(words: list[str], symbol: str) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.startswith(symbol)]
