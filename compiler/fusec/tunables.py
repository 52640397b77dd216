"""Tunables: the named constants at the top of a kernel's text.

A kernel is its source text, so a tunable lives in that text and nowhere else.  A line that
ends in a ``tunable`` comment declares one::

    constexpr int64_t GRAIN = 4;    // tunable: 1 2 4 8 16 (rows a thread takes at a time)
    XBLOCK = 1024  # tunable: 256 512 1024 2048 (elements a program handles)

Setting one is replacing its value in the text; an edited kernel is tuned by the same rule as
a generated one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_DECLARATION = re.compile(
    r"^(?P<head>\s*(?:static\s+)?(?:constexpr\s+\w+\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*)"
    r"(?P<value>-?\d+)"
    r"(?P<tail>\s*;?\s*(?://|\#)\s*tunable:\s*(?P<choices>-?\d+(?:\s+-?\d+)*)"
    r"(?:\s*\((?P<meaning>[^)]*)\))?.*)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Tunable:
    """One constant that a search or a slider may change.

    Attributes:
        name: The identifier in the kernel's text.
        value: Its value in this text.
        choices: The values worth trying, ascending; ``value`` need not be among them.
        meaning: What it stands for, in a few words, with its unit.
        line: The 1-based line of its declaration.
    """

    name: str
    value: int
    choices: tuple[int, ...]
    meaning: str
    line: int


def read_tunables(text: str) -> tuple[Tunable, ...]:
    """Return the tunables that ``text`` declares, in order of their lines."""
    found = []
    for match in _DECLARATION.finditer(text):
        found.append(
            Tunable(
                name=match["name"],
                value=int(match["value"]),
                choices=tuple(sorted({int(word) for word in match["choices"].split()})),
                meaning=(match["meaning"] or "").strip(),
                line=text.count("\n", 0, match.start("name")) + 1,
            )
        )
    return tuple(found)


def set_tunables(text: str, values: Mapping[str, int]) -> str:
    """Return ``text`` with the named tunables set to ``values``.

    Raises:
        KeyError: A name in ``values`` is declared nowhere in ``text``.
    """
    missing = dict(values)

    def replace(match: re.Match[str]) -> str:
        if match["name"] not in values:
            return match[0]
        missing.pop(match["name"], None)
        return f"{match['head']}{values[match['name']]}{match['tail']}"

    changed = _DECLARATION.sub(replace, text)
    if missing:
        raise KeyError(f"no such tunable: {', '.join(missing)}")
    return changed
