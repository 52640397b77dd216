"""What was found of the numbers in a graph, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fusec.report import SourceLine


@dataclass(frozen=True)
class ElementPlace:
    """One element of a tensor.

    Attributes:
        index: Where.
        value: What it is.
        exact: What it is in float64; nan where that is not known.
    """

    index: tuple[int, ...]
    value: float
    exact: float


@dataclass(frozen=True)
class TensorError:
    """How far a tensor that a step writes is from float64.

    Attributes:
        step: The kernel's name, or the operator's.
        tensor: What the user calls it.
        dtype: Of its elements.
        compiled: Relative error of what was really written: root mean square of the difference
            over that of the values; nan where one has a NaN or infinity and the other has not.
        eager: The same for eager operators, one after the other, in the tensors' own dtypes.
        worst: The element that is furthest off.
        is_kernel: Whether a generated kernel wrote it.
    """

    step: str
    tensor: str
    dtype: str
    compiled: float
    eager: float
    worst: ElementPlace
    is_kernel: bool


@dataclass(frozen=True)
class LineError:
    """How the error grows at one line of the user's code, inside of a kernel.

    Attributes:
        kernel: Its name.
        where: The line.
        operator: The operator after which the error is largest on this line.
        error: Relative error there, in the tensors' own dtypes against float64.
        entering: The largest relative error among the values that the line takes.
    """

    kernel: str
    where: SourceLine
    operator: str
    error: float
    entering: float

    @property
    def growth(self) -> float:
        """How many times as large the error is after the line as before it; inf from nothing."""
        return self.error / self.entering if self.entering else math.inf


@dataclass(frozen=True)
class Anomaly:
    """Where a NaN or an infinity first appears.

    Attributes:
        kind: ``NaN`` or ``infinity``.
        step: The kernel's or operator's name.
        operator: What yields it: ``log``, ``truediv`` ...
        where: The user's line.
        index: The element, over the kernel's loops.
        arguments: What the operator was given there, all finite.
        count: How many elements of the value have it.
        exact_too: Whether float64 has it as well: then the mathematics asks for it.
    """

    kind: str
    step: str
    operator: str
    where: SourceLine | None
    index: tuple[int, ...]
    arguments: tuple[float, ...]
    count: int
    exact_too: bool


@dataclass(frozen=True)
class Trace:
    """What was found in one part of a graph.

    Attributes:
        tensors: Every tensor that a step writes, in order.
        lines: Inside of the kernels, in order of the user's lines.
        anomalies: Where NaN and infinities first appear.
        skipped: Kernels that were too large to look into.
    """

    tensors: tuple[TensorError, ...]
    lines: tuple[LineError, ...]
    anomalies: tuple[Anomaly, ...]
    skipped: tuple[str, ...]


__all__ = ["Anomaly", "ElementPlace", "LineError", "TensorError", "Trace"]
