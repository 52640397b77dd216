"""What somebody expected of a cell beside what it will be: ``%%predict --kernels 2``."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from fusec.inspect.predict import Prediction, size_text
from fusec.inspect.terminal import fitted, terminal_width

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}
_DECIMAL = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_CLOSE = 0.05  # of bytes: what rounding a figure to two digits changes

SUBJECTS = {
    "kernels": "kernels",
    "calls": "extern calls",
    "breaks": "graph breaks",
    "reads": "bytes read",
    "writes": "bytes written",
}


def read_size(text: str) -> int:
    """Read ``8MB``, ``8 MiB`` or a number of bytes.

    Raises:
        ValueError: It is none of these.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a size such as 8MB, 8MiB or 8000000")
    return round(float(match[1]) * _UNITS[match[2]])


def _size(count: int) -> str:
    """Return bytes as people guess them, in powers of ten, and as results show them."""
    if count < 1000:
        return size_text(count)
    unit, divisor = next(each for each in _DECIMAL if count >= each[1])
    return f"{count / divisor:.3g} {unit} ({size_text(count)})"


@dataclass(frozen=True)
class GuessRow:
    """One thing that was guessed.

    Attributes:
        subject: What: a key of ``SUBJECTS``.
        said: The guess.
        is_so: What it will be; -1 for bytes that depend on a symbolic size.
    """

    subject: str
    said: int
    is_so: int

    @property
    def right(self) -> bool:
        """Whether the guess holds; bytes within a twentieth."""
        slack = _CLOSE * self.is_so if self.subject in {"reads", "writes"} else 0
        return abs(self.said - self.is_so) <= slack

    def cells(self) -> tuple[str, str, str, str]:
        """Return the row of a table."""
        sizes = self.subject in {"reads", "writes"}
        said, is_so = (_size(n) if sizes else str(n) for n in (self.said, self.is_so))
        return SUBJECTS[self.subject], said, is_so, "right" if self.right else "not so"


@dataclass(frozen=True)
class Guessed:
    """A prediction with the guesses that were made before it was shown."""

    prediction: Prediction
    rows: tuple[GuessRow, ...]

    @property
    def score(self) -> float:
        """The share of guesses that are right, from 0 to 1."""
        return sum(row.right for row in self.rows) / len(self.rows)

    def __str__(self) -> str:
        head = ("", "you said", "it will be", "")
        table = [head, *(row.cells() for row in self.rows)]
        widths = [max(len(row[n]) for row in table) for n in range(4)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in table]
        return "\n".join([*(line.rstrip() for line in lines), "", str(self.prediction)])

    __repr__ = __str__

    def _repr_mimebundle_(self, **given: object) -> dict[str, str]:
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row.cells()) + "</tr>"
            for row in self.rows
        )
        head = "<tr><th></th><th>you said</th><th>it will be</th><th></th></tr>"
        below = self.prediction._repr_mimebundle_()["text/html"]
        text = fitted(str(self), terminal_width())
        return {"text/plain": text, "text/html": f"<table>{head}{rows}</table>{below}"}


def guessed(prediction: Prediction, guesses: dict[str, int]) -> Guessed:
    """Put guesses beside a prediction.

    Args:
        prediction: What it will be.
        guesses: By the keys of ``SUBJECTS``.
    """
    is_so = {
        "kernels": len(prediction.kernels),
        "calls": len(prediction.externs),
        "breaks": len(prediction.breaks),
        "reads": prediction.read_bytes,
        "writes": prediction.written_bytes,
    }
    rows = [GuessRow(name, said, is_so[name]) for name, said in guesses.items()]
    return Guessed(prediction, tuple(rows))


__all__ = ["SUBJECTS", "GuessRow", "Guessed", "guessed", "read_size"]
