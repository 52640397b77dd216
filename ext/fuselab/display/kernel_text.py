"""Where the kernel itself is in its file: below what it declares, above its helpers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fusec.target_api.registry import find_target

_DECORATED = re.compile(r"^@triton\.jit\b.*\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class Extent:
    """The lines of a kernel's body, 1-based; what is before and after them is folded away.

    Attributes:
        first: The line of its signature.
        last: The line that ends it.
        count: Lines of the file.
    """

    first: int
    last: int
    count: int


def extent_of(text: str, target: str) -> Extent:
    """Return where the kernel is in a file; all of the file where nobody knows.

    Args:
        text: The file, generated or edited.
        target: The name of its target.
    """
    count = len(text.splitlines())
    language = find_target(target).language
    found = _python_kernel(text) if language == "python" else _c_kernel(text, target)
    if found is None:
        return Extent(1, count, count)
    first, last = found
    return Extent(first, min(max(last, first), count), count)


def _c_kernel(text: str, target: str) -> tuple[int, int] | None:
    place = text.find(find_target(target).head)
    if place < 0:
        return None
    first = text.count("\n", 0, place) + 1
    # Nothing but the end of a function is a brace at the very left.
    end = re.compile(r"^\}", re.MULTILINE).search(text, place)
    return first, text.count("\n", 0, end.start()) + 1 if end else text.count("\n") + 1


def _python_kernel(text: str) -> tuple[int, int] | None:
    launch = text.find("\ndef launch(")
    if launch < 0:
        return None
    launched = set(re.findall(r"\b(\w+)\[", text[launch:]))
    found = [match for match in _DECORATED.finditer(text) if match[1] in launched]
    if not found:
        return None
    first = text.count("\n", 0, found[0].start()) + 1
    # Several kernels follow one another; what they call stands before them or between.
    end = re.compile(r"^\S", re.MULTILINE).search(text, found[-1].end())
    lines = text[: end.start() if end else len(text)].rstrip("\n")
    # A signature of several lines ends in a line that begins at the left.
    while end is not None and text[end.start()] == ")":
        end = re.compile(r"^\S", re.MULTILINE).search(text, end.end())
        lines = text[: end.start() if end else len(text)].rstrip("\n")
    return first, lines.count("\n") + 1


__all__ = ["Extent", "extent_of"]
