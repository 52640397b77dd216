"""Which line makes a side effect: found in the code that TorchDynamo went through."""

from __future__ import annotations

import dis
import linecache
from collections import defaultdict
from collections.abc import Iterable
from types import CodeType

from fusec.report import SideEffect, SourceLine

_SETS = frozenset(("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "STORE_NAME", "STORE_DEREF"))
_PARTS = frozenset(("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"))
_CHANGING = frozenset(
    "append extend insert pop remove clear update add discard setdefault popitem sort reverse "
    "appendleft popleft".split()
)


def line_of(effect: SideEffect, codes: Iterable[CodeType]) -> SourceLine | None:
    """Return the first line that sets what an effect names, or changes its elements."""
    name = effect.name.rpartition(".")[2]
    for code in codes:
        for line, done in _by_line(code).items():
            names = {value for _, value in done}
            sets = any(what in _SETS and value == name for what, value in done)
            changes = any(what in _PARTS for what, _ in done) or bool(names & _CHANGING)
            if sets or (name in names and changes):
                text = linecache.getline(code.co_filename, line).strip()
                return SourceLine(code.co_filename, line, text)
    return None


def _by_line(code: CodeType) -> dict[int, list[tuple[str, object]]]:
    found: dict[int, list[tuple[str, object]]] = defaultdict(list)
    for each in dis.get_instructions(code):
        if each.positions is not None and each.positions.lineno is not None:
            found[each.positions.lineno].append((each.opname, each.argval))
    return found


__all__ = ["line_of"]
