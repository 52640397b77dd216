"""A kernel's text as the compiler's preprocessor leaves it, for whoever reads texts."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fusec.cache import scratch
from fusec.toolchain.compiler import find_compiler
from fusec.toolchain.listen import run

_SECONDS = 10.0
_NAME = "kernel.cpp"
# What joins two words into one, or goes on in the next line within a word.
_JOINS = re.compile(r"##|%:%:|\\\r?\n")
_MARKER = re.compile(r'# (\d+) "([^"]*)"')


def joins_words(text: str) -> bool:
    """Whether words of a text may stand in it in parts."""
    return _JOINS.search(text) is not None


def expanded(text: str) -> str:
    """Return a text's own lines, each where it was, with its macros written out.

    What headers bring is left out. A text that cannot be read so is returned as it is.
    """
    compiler = find_compiler()
    with scratch() as folder:
        Path(folder, _NAME).write_text(text, encoding="utf-8")
        flags = [flag for flag in compiler.flags if flag.startswith(("-std", "-march", "-mcpu"))]
        command = [compiler.path, *compiler.facts.full, *flags, "-E", "-x", "c++", _NAME]
        environment = {**os.environ, "LC_ALL": "C", **compiler.environment(folder)}
        try:
            status, output = run(command, folder, environment, _SECONDS)
        except (OSError, TimeoutError):
            return text
    return _own_lines(output) if status == 0 else text


def _own_lines(output: str) -> str:
    lines: dict[int, str] = {}
    at, own = 1, True
    for line in output.splitlines():
        marker = _MARKER.match(line)
        if marker:
            at, own = int(marker.group(1)), marker.group(2) == _NAME
            continue
        if own:
            lines[at] = f"{lines.get(at, '')} {line}"
        at += 1
    return "\n".join(lines.get(number, "") for number in range(1, max(lines, default=0) + 1))


__all__ = ["expanded", "joins_words"]
