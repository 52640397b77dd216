"""Whether a text still declares the C function that the host program calls.

Checked on the text, before anything is built: a changed parameter list would build, and then
be called with the wrong arguments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fusec.report import counted

_COMMENT_OR_STRING = re.compile(
    # (what has no end goes on to the text's)
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""",
    re.DOTALL,
)
_QUALIFIERS = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|restrict|std::)\b|std::")


@dataclass(frozen=True)
class Mismatch:
    """What is wrong with the entry point, and where.

    Attributes:
        stage: ``signature``, or ``compile`` where the text cannot even be parsed.
        reason: In one line.
        line: The 1-based line, where there is one.
    """

    stage: str
    reason: str
    line: int | None = None


@dataclass(frozen=True)
class _Declaration:
    result: str
    parameters: tuple[tuple[str, str], ...]
    line: int


def check_c_entry(text: str, entry: str, generated: str) -> Mismatch | None:
    """Return how the declaration of ``entry`` in ``text`` differs from the generated one's."""
    wanted = _declaration(generated, entry)
    found = _declaration(text, entry)
    if found is None:
        if re.search(rf"\b{re.escape(entry)}\s*\(", blank_comments(text)):
            return Mismatch(
                "signature", f'`{entry}` is not declared as extern "C" int {entry}(...)'
            )
        return Mismatch("signature", f'the entry point extern "C" int {entry}(...) is missing')
    if wanted is None:
        return None
    if found.result != wanted.result:
        reason = f"`{entry}` returns {found.result}; it must return {wanted.result}"
        return Mismatch("signature", reason, found.line)
    for number, (mine, theirs) in enumerate(
        zip(found.parameters, wanted.parameters, strict=False), start=1
    ):
        if mine[0] != theirs[0]:
            reason = (
                f"parameter {number} of `{entry}` is `{' '.join(mine)}`; "
                f"it must stay `{' '.join(theirs)}`"
            )
            return Mismatch("signature", reason, found.line)
    if len(found.parameters) != len(wanted.parameters):
        reason = (
            f"`{entry}` takes {counted(len(found.parameters), 'parameter')}; "
            f"it must keep its {len(wanted.parameters)}"
        )
        return Mismatch("signature", reason, found.line)
    return None


def blank_comments(text: str) -> str:
    """Return C++ text with comments and strings blanked, every character in its place."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        if found == '"C"':
            return found
        return re.sub(r"[^\n]", " ", found)

    return _COMMENT_OR_STRING.sub(blank, text)


def _declaration(text: str, entry: str) -> _Declaration | None:
    plain = blank_comments(text)
    closing = _braces(plain)
    blocks = [m.end() - 1 for m in re.finditer(r'extern\s+"C"\s*\{', plain)]
    name = re.escape(entry)
    pattern = rf'(?P<extern>extern\s+"C"\s+)?(?P<result>(?<![\w:])[\w:]+[\s*&]+)\b{name}\s*\('
    for match in re.finditer(pattern, plain):
        inside = any(block < match.start() < closing.get(block, len(plain)) for block in blocks)
        if not match["extern"] and not inside:
            continue
        end = _closing(plain, match.end() - 1)
        inner = plain[match.end() : end]
        parameters = tuple(_parameter(part) for part in _split(inner) if part.strip())
        line = plain.count("\n", 0, match.start() + len(match["extern"] or "")) + 1
        return _Declaration(_type(match["result"]), parameters, line)
    return None


def _braces(text: str) -> dict[int, int]:
    """Return where each brace closes that does."""
    found, opened = {}, []
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            found[opened.pop()] = brace.start()
    return found


def _closing(text: str, opening: int) -> int:
    """Return where the bracket that opens at ``opening`` closes."""
    depth = 0
    for place in range(opening, len(text)):
        if text[place] in "([{":
            depth += 1
        elif text[place] in ")]}":
            depth -= 1
            if depth == 0:
                return place
    return len(text)


def _split(parameters: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for place, character in enumerate(parameters):
        if character in "(<[":
            depth += 1
        elif character in ")>]":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(parameters[start:place])
            start = place + 1
    return [*parts, parameters[start:]]


def _parameter(text: str) -> tuple[str, str]:
    plain = _QUALIFIERS.sub(" ", text).replace("[]", "*")
    name = re.search(r"([A-Za-z_]\w*)\s*\*?$", plain.strip())
    words = plain.split()
    if name and (len(words) > 1 or "*" in plain):
        label = name[1]
        kept = re.sub(rf"\b{label}\b(?=\s*\*?$)", " ", plain.strip())
        return _type(kept), label
    return _type(plain), ""


def _type(text: str) -> str:
    plain = " ".join(_QUALIFIERS.sub(" ", text).split())
    return re.sub(r"\s*([*&])\s*", r"\1", plain)


__all__ = ["Mismatch", "blank_comments", "check_c_entry"]
