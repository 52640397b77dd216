"""Mistakes of a user: one class each, one line each, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from fusec.errors import FusecError

_MOST = 12  # names that are listed


class FuselabError(FusecError):
    """Base of the extension's own errors."""

    def _render_traceback_(self) -> list[str]:
        """Show IPython one line: the stack is ours, not the user's."""
        return [f"{type(self).__name__}: {self}"]


class UnknownName(FuselabError, KeyError):
    """A kernel, a cell or a task that does not exist, with those that do."""

    def __init__(
        self,
        what: str,
        name: str,
        known: Iterable[str],
        nothing: str,
        cell: str = "",
        cells: Iterable[str] = (),
    ) -> None:
        """Say so.

        Args:
            what: A kernel, a cell, a task.
            name: The one asked for.
            known: Those that there are.
            nothing: What to do where there are none.
            cell: The cell whose they are; all of the notebook's if empty.
            cells: Whose names stand for what they have.
        """
        self.name = name
        names = list(known)
        message = f"there is no {what} named {name!r}" if name else f"there is no {what} yet"
        has = "there is" if len(names) == 1 else "there are"
        if cell == name != "":
            message, has = f"{name} is a cell with several {what}s", "name one"
        elif cell:
            message, has = f"{cell} has no {what} named {name!r}", "it has"
        more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
        hint = f"{has}: {', '.join(names[:_MOST])}{more}" if names else nothing
        similar = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
        ends = [each for each in names if name and each.endswith(f".{name}")]
        if ends:  # a task without its lab
            hint = f"did you mean {' or '.join(ends)}?"
        elif similar and cell != name:
            hint = f"did you mean {similar[0]}?" + (f" {hint}" if len(names) > 1 else "")
        elif whole := difflib.get_close_matches(name, list(cells), n=1, cutoff=0.6):
            hint = f"did you mean the cell {whole[0]}? %fuse_kernels {whole[0]} lists its {what}s"
        super().__init__(message, hint)

    # KeyError would quote the message.
    __str__ = Exception.__str__


class NotJudged(FuselabError, RuntimeError):
    """An answer that the machine left no time: nothing was found out about it, so it is no 0."""

    def __init__(self, why: str) -> None:
        super().__init__(f"it was not judged: {why}", "judge it again when less is going on")


class CellSyntaxError(FuselabError):
    """A cell that is not Python: its own line and the place in it, and nothing of ours.

    No ``SyntaxError``: IPython shows those with the whole way to them.

    Attributes:
        lineno: The line, as the gutter shows it.
        text: The line itself.
    """

    def __init__(self, error: SyntaxError) -> None:
        self.lineno = error.lineno or 0
        self.text = (error.text or "").rstrip("\n")
        self.offset = error.offset or 0
        super().__init__(str(error.msg), f"line {self.lineno}: {self.text.strip()}")
        self._message = str(error.msg)

    def _render_traceback_(self) -> list[str]:
        """Show IPython the line, a caret below it, and what is wrong."""
        lines = [f"line {self.lineno}", f"    {self.text}"] if self.lineno else []
        if self.lineno and self.offset > 0:
            lines.append(" " * (3 + self.offset) + "^")
        return [*lines, f"SyntaxError: {self._message}"]
