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
_HEAD = re.compile(r"\s*%%?(\w+)\s")
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
        magics = _owner(shell, line)
        if magics is None:
            return {"completions": [], "suppress": False}
        symbol = "" if line[-1:].isspace() else line.split()[-1]
        found = completions(shell, line, symbol, context.full_text)
        return {
            "completions": [SimpleCompletion(text=text, type="option") for text in found],
            "matched_fragment": symbol,
            "suppress": True,
            "ordered": True,
        }

    completer.custom_matchers.append(match)


def _owner(shell: Any, line: str) -> Any:
    """Return the object that has the magic which a line begins with; None if it is not ours."""
    head = _HEAD.match(line)
    for magics in shell.magics_manager.registry.values() if head else ():
        ours = type(magics).__module__.startswith("fuselab.")
        if head and ours and hasattr(getattr(magics, head[1], None), "parser"):
            return magics
    return None


def _column(context: Any) -> int:
    """Return where the cursor is in its line."""
    before = context.full_text[: context.cursor_position]
    # Some callers give all of the text up to the cursor, others its line alone.
    column = len(before) - (before.rfind("\n") + 1)
    return min(column, len(context.line_with_cursor)) or len(context.line_with_cursor)


def completions(shell: Any, line: str, symbol: str, cell: str = "") -> list[str]:
    """Return what may stand at the end of a line.

    Args:
        shell: IPython's.
        line: All of it, up to the cursor.
        symbol: The word that the cursor is in.
        cell: All of the cell, whose names ``--out`` takes.
    """
    magics = _owner(shell, line)
    if magics is None:
        return []
    head, _, rest = line.lstrip().lstrip("%").partition(" ")
    parser: argparse.ArgumentParser = getattr(magics, head).parser
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
