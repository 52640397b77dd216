"""The block of helpers at the end of a kernel's text, and what compilers see of it.

A reader wants to see what a kernel computes before how an exponential is computed; a compiler wants
it the other way round.  So a kernel's text includes its helpers near the top, as a program includes
a header, and has the header's text at its end.  ``with_helpers`` puts it where it is included:
compilers and exported files get that; the lines keep their numbers for the compiler's messages.
A text without that line, such as one that a user has put together, stays as it is.
"""

from __future__ import annotations

import re

NAME = "helpers.h"
INCLUDE = f'#include "{NAME}" // at the end of this file'
HEAD = f"// ---- {NAME}: the functions that the kernel calls ----"
_INCLUDE = re.compile(rf'^[ \t]*#[ \t]*include[ \t]*"{re.escape(NAME)}"')
_HEAD = re.compile(rf"^// -+ {re.escape(NAME)}\b")


def with_helpers(text: str, file: str = "") -> str:
    """Return a text that compiles by itself.

    Args:
        text: A kernel's text.
        file: What its lines are to be numbered as lines of; without it they are not.
    """
    lines = text.split("\n")
    place = next((n for n, line in enumerate(lines) if _INCLUDE.match(line)), None)
    begin = next((n for n, line in enumerate(lines) if _HEAD.match(line)), None)
    if place is None or begin is None or begin < place:
        return text
    block = lines[begin:]
    while block and not block[-1].strip():
        block.pop()
    middle = lines[place + 1 : begin]
    while middle and not middle[-1].strip():
        middle.pop()
    if file:
        block = [f'#line {begin + 1} "{file}"', *block, f'#line {place + 2} "{file}"']
    return "\n".join([*lines[:place], *block, *middle, ""])


def without_helpers(text: str) -> tuple[str, str]:
    """Return the kernel itself and the block of helpers, either of which may be empty."""
    lines = text.split("\n")
    begin = next((n for n, line in enumerate(lines) if _HEAD.match(line)), len(lines))
    return "\n".join(lines[:begin]), "\n".join(lines[begin:])


__all__ = ["HEAD", "INCLUDE", "NAME", "with_helpers", "without_helpers"]
