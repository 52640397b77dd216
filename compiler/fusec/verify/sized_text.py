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
    if len(ours) != len(theirs):
        return None
    declared = {t.line for t in read_tunables(generated)}
    place: dict[int, str] = {}
    sizes: set[int] = set()
    meant: dict[str, set[str]] = {}
    for at, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if mine.text != other.text and not (mine.number and other.number):
            return None
        if mine.number and generated.count("\n", 0, mine.start) + 1 not in declared:
            place[at] = other.text
            if mine.text != other.text:
                sizes.add(at)
            meant.setdefault(mine.text, set()).add(other.text)
    replaced: dict[int, str] = {}
    match = SequenceMatcher(None, [t.text for t in ours], [t.text for t in edited], autojunk=False)
    gone, new = Counter(ours[at].text for at in sizes), Counter[str]()
    kept = set()
    for start, other_start, length in match.get_matching_blocks():
        for step in range(length):
            kept.add(other_start + step)
            if start + step in place:
                replaced[other_start + step] = place[start + step]
            if start + step in sizes:
                gone[ours[start + step].text] -= 1
    for at, other in enumerate(edited):
        if at in kept:
            continue
        new[other.text] += 1
        values = meant.get(other.text, set())
        if len(values) > 1:
            return None  # a size here, a stride there: which one is it
        if values:
            replaced[at] = next(iter(values))
    if gone - new:
        return None  # a size was taken out: what stands for it now may be one as well
    pieces, end = [], 0
    for at in sorted(replaced):
        pieces += [text[end : edited[at].start], replaced[at]]
        end = edited[at].end
    return "".join([*pieces, text[end:]])


__all__ = ["at_sizes"]
