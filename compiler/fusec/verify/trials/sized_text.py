"""The sizes in a kernel's text, replaced by others: see ``small``."""

from __future__ import annotations

import io
import itertools
import tokenize
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher

from fusec.tunables import read_tunables


@dataclass(frozen=True)
class _Token:
    text: str
    start: int
    end: int
    number: bool


def _tokens(text: str) -> list[_Token]:
    """Return a Python text's tokens less what it says in words, and how its lines are broken."""
    lines = list(itertools.accumulate((len(x) for x in text.splitlines(keepends=True)), initial=0))
    found: list[_Token] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.STRING):
            continue
        start = lines[token.start[0] - 1] + token.start[1]
        number = token.type == tokenize.NUMBER
        if token.string == ")" and found and found[-1].text == ",":
            found.pop()
        found.append(_Token(token.string, start, start + len(token.string), number))
    return found


def at_sizes(generated: str, smaller: str, text: str) -> str | None:
    """Return a text with the sizes of another generated text; None where that is not sure.

    Args:
        generated: The generated text, at its own sizes.
        smaller: The same at others.
        text: Made from ``generated`` by somebody's edits.
    """
    try:
        ours, theirs, edited = _tokens(generated), _tokens(smaller), _tokens(text)
    except (tokenize.TokenError, SyntaxError):
        return None
    numbers = _numbers(generated, ours, theirs)
    replaced = _replacements(numbers, ours, edited) if numbers is not None else None
    if replaced is None:
        return None
    pieces, end = [], 0
    for at in sorted(replaced):
        pieces += [text[end : edited[at].start], replaced[at]]
        end = edited[at].end
    return "".join([*pieces, text[end:]])


@dataclass(frozen=True)
class _Numbers:
    """The numbers in a generated text, those of its tunables apart.

    Attributes:
        other: By token: what stands there at the other sizes.
        sizes: The tokens where that is another number.
        meant: By number: all that it stands for.
    """

    other: dict[int, str]
    sizes: set[int]
    meant: dict[str, set[str]]


def _numbers(generated: str, ours: list[_Token], theirs: list[_Token]) -> _Numbers | None:
    """Compare a text with itself at other sizes; None where they differ in more than numbers."""
    if len(ours) != len(theirs):
        return None
    declared = {t.line for t in read_tunables(generated)}
    found = _Numbers({}, set(), {})
    for at, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if mine.text != other.text and not (mine.number and other.number):
            return None
        if mine.number and generated.count("\n", 0, mine.start) + 1 not in declared:
            found.other[at] = other.text
            if mine.text != other.text:
                found.sizes.add(at)
            found.meant.setdefault(mine.text, set()).add(other.text)
    return found


def _replacements(
    numbers: _Numbers, ours: list[_Token], edited: list[_Token]
) -> dict[int, str] | None:
    """Return what each number of an edited text becomes, by its token; None: not sure."""
    replaced: dict[int, str] = {}
    match = SequenceMatcher(None, [t.text for t in ours], [t.text for t in edited], autojunk=False)
    gone, new = Counter(ours[at].text for at in numbers.sizes), Counter[str]()
    kept = set()
    for start, other_start, length in match.get_matching_blocks():
        for step in range(length):
            kept.add(other_start + step)
            if start + step in numbers.other:
                replaced[other_start + step] = numbers.other[start + step]
            if start + step in numbers.sizes:
                gone[ours[start + step].text] -= 1
    for at, other in enumerate(edited):
        if at in kept:
            continue
        new[other.text] += 1
        values = numbers.meant.get(other.text, set())
        if len(values) > 1:
            return None  # a size here, a stride there: which one is it
        if values:
            replaced[at] = next(iter(values))
    # a size that was taken out: what stands for it now may be one as well
    return None if gone - new else replaced


__all__ = ["at_sizes"]
