"""Where a node of a graph was written: the user's line in its stack trace."""

from __future__ import annotations

import functools
import os
import re

import torch

from fusec.report import SourceLine

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*(?:\n\s+(?P<text>.*))?')
_TORCH = os.path.dirname(torch.__file__) + os.sep


@functools.lru_cache(maxsize=512)  # the operators of one line have one trace among them
def user_line(stack_trace: str | None) -> SourceLine | None:
    """Return the innermost line of a stack trace that is not torch's own."""
    found = None
    for match in _FRAME.finditer(stack_trace or ""):
        if not match["file"].startswith(_TORCH):
            text = (match["text"] or "").strip()
            found = SourceLine(match["file"], int(match["line"]), text)
    return found


__all__ = ["user_line"]
