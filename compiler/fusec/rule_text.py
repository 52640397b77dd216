"""Rules as a user writes them: ``gelu:layer_norm``, a pair of what is to be one kernel or not;
``softmax: rows prefetch=0``, how the loops of a kernel are to run.

What they mean for the steps of a program, ``schedule.rules`` says.
"""

from __future__ import annotations

import re

from fusec.errors import BadOption

ALLOWED = ("pairs of computations as the fusion graph calls them: gelu:layer_norm, add#2:sum",)
LOOPS_ALLOWED = ("a computation and what is wanted of its loops: softmax: rows prefetch=0 ROWS=4",)
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


def read_loop_rules(given: object) -> tuple[str, ...]:
    """Return rules as they are kept: a tuple of ``name: kind setting=value``.

    Args:
        given: A text with semicolons between the rules, or a sequence of texts.

    Raises:
        BadOption: Something that is no rule.
    """
    texts = given.split(";") if isinstance(given, str) else given
    if not isinstance(texts, (list, tuple)):
        raise BadOption("loops", given, LOOPS_ALLOWED)
    found = []
    for text in texts:
        name, strategy, settings = loop_rule(str(text))
        words = [strategy] if strategy else []
        words += [f"{key}={value}" for key, value in settings]
        found.append(f"{name}: {' '.join(words)}")
    return tuple(dict.fromkeys(found))


def loop_rule(text: str) -> tuple[str, str, tuple[tuple[str, int], ...]]:
    """Return the computation that a rule is about, the kind of loops, and the settings.

    After the colon stand, in any order, a kind of loops, techniques to leave out (with 0) and
    sizes; which there are is for the kernel's target to say (``targets/cpp/plan/wanted.py``).

    Raises:
        BadOption: It is no rule.
    """
    name, colon, rest = (part.strip() for part in text.partition(":"))
    strategy, settings = "", []
    for word in rest.replace(",", " ").split():
        key, sign, value = word.partition("=")
        if sign and value.lstrip("-").isdigit():
            settings.append((key, int(value)))
        elif sign or strategy:
            raise BadOption("loops", text, LOOPS_ALLOWED)
        else:
            strategy = word
    if not (name and colon and rest):
        raise BadOption("loops", text, LOOPS_ALLOWED)
    return name, strategy, tuple(settings)


__all__ = ["ALLOWED", "loop_rule", "name_parts", "read_loop_rules", "read_rules"]
