"""What a program on a GPU does, step by step: memory, starts of kernels, copies, calls.

All sizes are known, and memory has names. ``device_steps.py`` makes steps of a program,
``packing.py`` joins starts, ``step_memory.py`` lays memory out, ``graph_steps.py`` rearranges them
for a CUDA graph, and ``step_numbers.py`` turns the names into what the native part knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Memory:
    """A tensor to allocate.

    Attributes:
        name: What the steps call it.
        shape: Its sizes.
        strides: In elements.
        dtype: Of its elements.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """How much memory its elements reach over, gaps included."""
        if 0 in self.shape:
            return 0
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (reach + 1) * self.dtype.itemsize


@dataclass(frozen=True)
class MemoryPlace:
    """A position in a tensor's memory, in bytes; without a name, a number."""

    name: str | None
    offset: int = 0


@dataclass(frozen=True)
class Start:
    """A kernel started by the driver.

    Attributes:
        function: The driver's handle.
        grid: Programs in each direction.
        threads: A program's.
        shared: Bytes of shared memory of a program.
        places: Its parameters.
        writes: The tensors that it writes.
        kernel: What Triton compiled; None where that is not known.
        after: Which starts before it in its row it has to wait for: 1 is the one just before.
    """

    function: int
    grid: tuple[int, int, int]
    threads: int
    shared: int
    places: tuple[MemoryPlace, ...]
    writes: tuple[str, ...] = ()
    kernel: Any = field(default=None, compare=False)
    after: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Copy:
    """Bytes copied from one tensor's memory to another's."""

    to: str
    source: str
    bytes: int


@dataclass(frozen=True)
class PythonCall:
    """A Python function called.

    Attributes:
        function: It.
        arguments: ``MemoryPlace`` for a tensor; anything else as it is.
        names: Of the last arguments.
        outputs: What the results are called; None for one that nobody reads.
        laid: What each output must be; None for one that nobody reads.
        many: Whether it returns a sequence.
        reads: The tensors whose memory it may read or write.
        fixed: Of these, the ones that only the original tensor can stand for: written in place,
            or taken by a view that reaches beyond them.
        random: Whether it takes numbers from torch's generators.
        mutates: Whether it writes to a tensor that it was given.
        views: Whether its results may lie in the memory of what it was given.
    """

    function: Callable[..., Any]
    arguments: tuple[object, ...]
    names: tuple[str, ...]
    outputs: tuple[str | None, ...]
    laid: tuple[Memory | None, ...]
    many: bool
    reads: tuple[str, ...]
    fixed: tuple[str, ...] = ()
    random: bool = False
    mutates: bool = False
    views: bool = False


@dataclass(frozen=True)
class Free:
    """Tensors that nobody needs from here on."""

    names: tuple[str, ...]


Step = Memory | Start | Copy | PythonCall | Free
Join = Callable[[Sequence[Step]], tuple[list[Step], tuple[object, ...]]]


@dataclass(frozen=True)
class Output:
    """What a call returns at one place.

    Attributes:
        name: A tensor; None for a constant.
        view: Makes the result of the tensor; None for the tensor itself.
        constant: The value where there is no tensor.
    """

    name: str | None
    view: Callable[[torch.Tensor], torch.Tensor] | None = None
    constant: object = None


@dataclass(frozen=True)
class SizedProgram:
    """A program with all sizes known.

    Attributes:
        inputs: Names, in order; of tensors and of integers.
        steps: In order.
        outputs: What a call returns.
        tensors: The inputs that are tensors, as ``Memory``.
        made: The outputs that are not inputs, likewise.
        kept: What has to stay alive.
    """

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    tensors: Mapping[str, Memory]
    made: tuple[Memory, ...]
    kept: tuple[object, ...]


def touched(step: Step) -> tuple[str, ...]:
    """Return the tensors that a step needs or makes."""
    if isinstance(step, Memory):
        return (step.name,)
    if isinstance(step, Start):
        return tuple(dict.fromkeys(p.name for p in step.places if p.name is not None))
    if isinstance(step, Copy):
        return (step.to, step.source)
    if isinstance(step, PythonCall):
        named = [
            a.name for a in step.arguments if isinstance(a, MemoryPlace) and a.name is not None
        ]
        made = [name for name in step.outputs if name]
        return tuple(dict.fromkeys((*named, *step.reads, *made)))
    return step.names


__all__ = [
    "Copy",
    "Free",
    "Join",
    "Memory",
    "MemoryPlace",
    "Output",
    "PythonCall",
    "SizedProgram",
    "Start",
    "Step",
    "touched",
]
