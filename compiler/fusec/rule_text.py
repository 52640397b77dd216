"""Rules about fusion as a user writes them: ``gelu:layer_norm``, pairs of what is to be one kernel.

What they mean for the steps of a program, ``schedule.rules`` says.
"""

from __future__ import annotations

import re

from fusec.errors import BadOption

ALLOWED = ("pairs of computations as the fusion graph calls them: gelu:layer_norm, add#2:sum",)
_NAME = re.compile(r"^(.*?)\s*(?:#\s*(\d+))?$")


def read_rules(option: str, given: object) -> tuple[str, ...]:
    """Return rules as they are kept: a tuple of ``a:b``.

    Args:
        option: What they are called, for the message.
        given: A text with commas between the rules, or a sequence of texts.

    Raises:
        BadOption: Something that is no pair of names.
    """
    texts = given.split(",") if isinstance(given, str) else given
    if not isinstance(texts, (list, tuple)):
        raise BadOption(option, given, ALLOWED)
    found = []
    for text in texts:
        names = [name.strip() for name in str(text).split(":")]
        if len(names) != 2 or not all(names):
            raise BadOption(option, text, ALLOWED)
        found.append(":".join(_normal(name) for name in names))
    return tuple(dict.fromkeys(found))


def _normal(name: str) -> str:
    label, number = name_parts(name)
    return f"{label}#{number}" if number else label


def name_parts(name: str) -> tuple[str, int]:
    """Return the label of a computation, and which of several it is; 0 for all of them."""
    match = _NAME.match(name)
    assert match is not None
    return match[1], int(match[2] or 0)


__all__ = ["ALLOWED", "name_parts", "read_rules"]
