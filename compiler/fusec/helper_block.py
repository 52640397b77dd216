"""The block of helpers at the end of a kernel's text, and what compilers see of it.

A reader wants to see what a kernel computes before how an exponential is computed; a compiler wants
it the other way round.  So a kernel's text includes its helpers near the top, as a program includes
a header, and has the header's text at its end.  ``with_helpers`` puts it where it is included, for
compilers; the lines keep their numbers for the compiler's messages. ``kernel_first`` leaves it at
the end of a file that compiles by itself, for exported files.
A text without that line, such as one that a user has put together, stays as it is.
"""

from __future__ import annotations

import re

NAME = "helpers.h"
INCLUDE = f'#include "{NAME}" // at the end of this file'
HEAD = f"// ---- {NAME}: the functions that the kernel calls ----"
# A name is looked for in the file's own folder; not every compiler knows it without the folder.
_ITSELF = """\
#ifndef HELPERS // they are at the end of this file, which includes itself
#define HELPERS
#ifdef __FILE_NAME__
#include __FILE_NAME__
#else
#include __FILE__
#endif""".split("\n")
_INCLUDE = re.compile(rf'^[ \t]*#[ \t]*include[ \t]*"{re.escape(NAME)}"')
_HEAD = re.compile(rf"^// -+ {re.escape(NAME)}\b")


def with_helpers(text: str, file: str = "") -> str:
    """Return a text that compiles by itself.

    Args:
        text: A kernel's text.
        file: What its lines are to be numbered as lines of; without it they are not.
    """
    parts = _parts(text)
    if parts is None:
        return text
    before, middle, block = parts
    if file:
        begin = text.split("\n").index(block[0]) + 1
        block = [f'#line {begin} "{file}"', *block, f'#line {len(before) + 2} "{file}"']
    return "\n".join([*before, *block, *middle, ""])


def kernel_first(text: str) -> str:
    """Return a text that compiles by itself and begins with the kernel: it includes itself."""
    parts = _parts(text)
    if parts is None:
        return text
    before, middle, block = parts
    return "\n".join([*before, *_ITSELF, *middle, "", "#else", *block, "#endif", ""])


def header_of(text: str) -> tuple[str, str]:
    """Return a text that includes ``helpers.h``, and that header; the text and nothing if not."""
    return without_helpers(text) if _parts(text) is not None else (text, "")


def _parts(text: str) -> tuple[list[str], list[str], list[str]] | None:
    """Return the lines before the include, those after it, and the block; None without them."""
    lines = text.split("\n")
    place = next((n for n, line in enumerate(lines) if _INCLUDE.match(line)), None)
    begin = next((n for n, line in enumerate(lines) if _HEAD.match(line)), None)
    if place is None or begin is None or begin < place:
        return None
    return lines[:place], _stripped(lines[place + 1 : begin]), _stripped(lines[begin:])


def _stripped(lines: list[str]) -> list[str]:
    """Return lines without the blank ones at their end."""
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def without_helpers(text: str) -> tuple[str, str]:
    """Return the kernel itself and the block of helpers, either of which may be empty."""
    lines = text.split("\n")
    begin = next((n for n, line in enumerate(lines) if _HEAD.match(line)), len(lines))
    return "\n".join(lines[:begin]), "\n".join(lines[begin:])


__all__ = [
    "HEAD",
    "INCLUDE",
    "NAME",
    "header_of",
    "kernel_first",
    "with_helpers",
    "without_helpers",
]
