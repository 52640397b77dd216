"""What a choice is: the shape of the kernels of a body, and their tunable constants."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.index import Expr, Symbol
from fusec.machine import current_machine

UNKNOWN_SIZE = 8192  # what a symbolic size without a hint is taken for


@dataclass(frozen=True)
class Knob:
    """A tunable constant of the text: its value, what is worth trying, what it means."""

    name: str
    value: int
    choices: tuple[int, ...]
    meaning: str


@dataclass(frozen=True)
class Choice:
    """How a body becomes kernels.

    Attributes:
        kind: ``scalar``, ``flat``, ``tiled``, ``rows``: tiles of which a loop takes a row at a
            time, ``persistent``, ``looped``, ``split``, or ``crossed``: rows and columns at once.
        groups: The independent axes of each outer dimension, slowest first.
        reduced: The reduced axes, slowest first.
        inner_last: Whether the reduced dimension is the contiguous one, the tile's last.
        scalar_rows: Whether a program takes one row, so that the row is a scalar.
        knobs: The tunables.
        row_block: The fixed width of a persistent row; 0 otherwise.
        sized: Whether the width of a persistent row is settled by each call.
        walked: Reduced axes, not among ``reduced``, whose positions a loop takes one by one.
    """

    kind: str
    groups: tuple[tuple[Symbol, ...], ...]
    reduced: tuple[Symbol, ...] = ()
    inner_last: bool = True
    scalar_rows: bool = False
    knobs: tuple[Knob, ...] = ()
    row_block: int = 0
    sized: bool = False
    walked: tuple[Symbol, ...] = ()

    def __str__(self) -> str:
        lines = [f"kind: {self.kind}"]
        groups = " x ".join("+".join(a.name for a in group) or "1" for group in self.groups)
        lines.append(f"programs: tiles of {groups}")
        if self.reduced:
            lines.append(f"reduced: {', '.join(axis.name for axis in self.reduced)}")
        lines += [f"{knob.name}: {knob.value} ({knob.meaning})" for knob in self.knobs]
        return "\n".join(lines)


def sms() -> int:
    """Return how many multiprocessors the GPU has."""
    return current_machine().gpu.processors


def kept_in_l2() -> int:
    """Return the bytes that surely stay in the L2 between two passes of a kernel."""
    return current_machine().gpu.kept


def known(size: Expr) -> int:
    """Return a size; where it is symbolic, what it was in the call that is compiled for."""
    value = size.constant
    if value is not None:
        return value
    guess = size.evaluate(lambda s: UNKNOWN_SIZE if s.hint is None else s.hint)
    assert isinstance(guess, int)
    return max(guess, 1)


def power_of_two(value: int) -> int:
    """Return the smallest power of two that is not below ``value``."""
    return 1 << max(value - 1, 0).bit_length()


def warps(value: int) -> Knob:
    """Return the tunable for the threads of a program."""
    return Knob("NUM_WARPS", value, (1, 2, 4, 8, 16, 32), "warps a program, 32 threads each")


def stages(value: int = 1) -> Knob:
    """Return the tunable for the steps whose loads are under way at once."""
    return Knob("NUM_STAGES", value, (1, 2, 3, 4), "steps of the loop that are loaded ahead")


def unroll(value: int = 1) -> Knob:
    """Return the tunable for the steps that are one: their loads begin together."""
    return Knob("UNROLL", value, (1, 2, 4), "steps of the loop that are written as one")
