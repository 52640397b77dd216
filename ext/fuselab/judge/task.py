"""What is asked: a task, with what its answers are compared with."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusec.verify.trials.inputs import Kind
from fuselab.judge.calls import call_text

Inputs = Callable[[torch.Generator, int], Sequence[torch.Tensor]]
Reference = Callable[..., Any]


@dataclass(frozen=True)
class Limits:
    """What an answer may cost at most; None where nothing is asked.

    Attributes:
        kernels: Generated kernels, as ``fusec.predict`` counts them.
        calls: Operators that run as ATen's own kernels.
        breaks: Graph breaks.
        bytes: Bytes read and written, at the size that is timed.
        share: Of the machine's own copy speed, from 0 to 1, at least.
        factor: How many times as fast as the baseline, at least.
    """

    kernels: int | None = None
    calls: int | None = None
    breaks: int | None = None
    bytes: int | None = None
    share: float | None = None
    factor: float | None = None

    @property
    def counted(self) -> bool:
        """Whether something of it is counted."""
        return any(n is not None for n in (self.kernels, self.calls, self.breaks, self.bytes))

    @property
    def timed(self) -> bool:
        """Whether something of it is timed."""
        return self.share is not None or self.factor is not None


@dataclass(frozen=True)
class Task:
    """What all tasks have.

    Attributes:
        name: What follows ``%%task``.
        title: A few words.
        entry: The function that the answer defines.
        start: The answer to begin with, which does not pass.
        hints: Three, from a push to nearly the solution.
        points: What it counts in a lab.
        given: How many of the findings hold for the start already; they bring no points.
    """

    name: str
    title: str
    entry: str
    start: str = ""
    hints: tuple[str, ...] = ()
    points: int = 1
    given: int = 0


@dataclass(frozen=True)
class TensorTask(Task):
    """A task whose answers take tensors and yield tensors.

    Attributes:
        reference: What is to be computed, by eager operators.
        inputs: Makes inputs from a generator and a size.
        sizes: Those that answers are tried on; they should be no multiples of anything.
        timed_size: The size for counts and times.
        kinds: Fresh inputs besides those of ``inputs``.
        limits: What an answer may cost.
        baseline: An answer, as text, that ``limits.factor`` refers to.
        slack: How far from float64 a result may be, as a share of the largest, where it may be
            further than eager: sums in the order of a plain loop.
    """

    reference: Reference = field(kw_only=True)
    inputs: Inputs = field(kw_only=True)
    sizes: tuple[int, ...] = field(kw_only=True)
    timed_size: int = field(kw_only=True)
    kinds: tuple[Kind, ...] = ("similar", "adversarial", "nonfinite")
    limits: Limits = Limits()
    baseline: str = ""
    slack: float = 0.0

    def results(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Return the reference's results as a list."""
        with torch.no_grad():
            found = self.reference(*inputs)
        return list(found) if isinstance(found, (tuple, list)) else [found]


@dataclass(frozen=True)
class FunctionTask(TensorTask):
    """Write a Python function of tensors.

    Attributes:
        forbids: Names of torch that may not appear in it: ``softmax``.
    """

    forbids: tuple[str, ...] = ()


@dataclass(frozen=True)
class CppTask(TensorTask):
    """Write a C++ kernel.

    Attributes:
        declaration: How its entry is declared, up to the closing parenthesis.
        arguments: Names of the inputs, then of the outputs.
        numbers: The integers that it takes after its tensors, from the inputs.
        target: What builds it: ``cpp`` (vectors and threads) or ``plain``.
        forbids: Words that may not appear in it, with the reason.
        small: Whether it may hold no more than arrays of a constant size, which lie on the stack.
    """

    declaration: str = field(kw_only=True)
    arguments: tuple[str, ...] = field(kw_only=True)
    numbers: Callable[..., tuple[int, ...]] = field(kw_only=True)
    target: str = "cpp"
    forbids: Mapping[str, str] = field(default_factory=dict)
    small: bool = False


@dataclass(frozen=True)
class TritonTask(TensorTask):
    """Write Triton kernels, and the function that starts them.

    It is judged in Triton's interpreter, where every load and store is looked at, and on a GPU as
    well where there is one.  ``limits.kernels`` and ``limits.bytes`` are counted as programs run:
    starts, and what is loaded and stored; ``limits.share`` holds on a GPU alone.

    Attributes:
        arguments: Names of the inputs, then of the outputs.
        gpu_size: The size that is timed on a GPU.
    """

    arguments: tuple[str, ...] = field(kw_only=True)
    gpu_size: int = 1


@dataclass(frozen=True)
class PythonTask(Task):
    """Write plain Python: an algorithm, or a value that is asked for.

    Attributes:
        calls: Makes the arguments of each call: what JSON can hold.
        check: Given the calls and what came of them, says what is wrong first; empty if nothing.
        provides: Python that stands before the answer.
        imports: Modules that answers may import besides the usual ones.
        after: Python that stands after the answer and defines ``run``, which is called in place of
            what the answer defines; empty for none.
        shown: Writes a call, from a name and arguments, for a verdict.
    """

    calls: Callable[[random.Random], list[list[Any]]] = field(kw_only=True)
    check: Callable[[list[list[Any]], list[Any]], str] = field(kw_only=True)
    provides: str = ""
    imports: tuple[str, ...] = ()
    after: str = ""
    shown: Callable[[str, list[Any]], str] = call_text


__all__ = [
    "CppTask",
    "FunctionTask",
    "Limits",
    "PythonTask",
    "Task",
    "TensorTask",
    "TritonTask",
]
