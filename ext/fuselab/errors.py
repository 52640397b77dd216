"""Mistakes of a user: one class each, one line each, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from fusec.errors import FusecError


class FuselabError(FusecError):
    """Base of the extension's own errors."""

    def _render_traceback_(self) -> list[str]:
        """Show IPython one line: the stack is ours, not the user's."""
        return [f"{type(self).__name__}: {self}"]


class UnknownName(FuselabError, KeyError):
    """A kernel, a cell or an option that does not exist."""

    def __init__(self, what: str, name: str, known: Iterable[str], nothing: str) -> None:
        self.name = name
        names = list(known)
        hint = f"known: {', '.join(names)}" if names else nothing
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
        if near:
            hint = f"did you mean {near[0]}? {hint}"
        super().__init__(f"there is no {what} {name!r}", hint)

    # KeyError would quote the message.
    __str__ = Exception.__str__
