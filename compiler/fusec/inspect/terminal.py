"""Text at the width of the terminal that it is shown in.

A terminal breaks a long line wherever its edge is, in the middle of words and figures. Here lines
are broken between words, and go on below where they began: a sentence below its first word, a
row of a table below its last column, where that leaves room. What goes elsewhere stays as it is.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap

LEAST = 40  # letters: nothing is narrower, whatever a terminal says of itself
ROOM = 30  # letters that a row's last column needs, to go on below itself
_COLUMN = re.compile(r"\S  +(?=\S)")


def terminal_width() -> int | None:
    """Return how many letters fit beside each other where text goes now; None where all do."""
    if not sys.stdout.isatty():
        return None
    return max(shutil.get_terminal_size().columns, LEAST)


def fitted(text: str, width: int | None) -> str:
    """Break the lines of a text that are too long.

    Args:
        text: Sentences and tables; code is not for this.
        width: How many letters fit; None leaves the text alone.
    """
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _broken(line, width))


def _broken(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip())
    columns = [column.end() for column in _COLUMN.finditer(line)]
    below = indent + 2
    if columns:  # a narrow last column would be a tower of single words
        below = columns[-1] if columns[-1] + ROOM <= width else indent + 4
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * below,
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )


__all__ = ["fitted", "terminal_width"]
