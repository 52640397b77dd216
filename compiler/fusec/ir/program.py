"""Programs: the list of steps that a graph becomes, kernels to write and operators to call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

import torch

from fusec.ir.body import Body, Buffer
from fusec.ir.index import Expr, Symbol
from fusec.report import SourceLine


@dataclass(frozen=True)
class TensorRef:
    """A strided view of a buffer, as an extern call takes it.

    Attributes:
        buffer: The buffer's name.
        shape: Sizes of the view.
        strides: Strides of the view, in elements.
        offset: First element, from the start of the buffer.
        apart: Whether it is to be a tensor of its own, though it may lie as the whole buffer does:
            a result, beside another one of the same memory.
        detached: Whether it is to be no view to autograd, though it shares the memory: a result of
            ``detach()``, which has no gradient though what it is a view of may have one.
    """

    buffer: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr
    dtype: torch.dtype
    apart: bool = False
    detached: bool = False

    def is_all_of(self, buffer: Buffer) -> bool:
        """Whether the buffer's own tensor may stand for it."""
        whole = self.shape == buffer.shape and self.strides == buffer.strides and self.offset == 0
        return whole and self.dtype == buffer.dtype and not self.apart


# Values of a kernel's tunables, and what is wanted of its loops.
Settings = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Compute:
    """A step that runs a generated kernel.

    Attributes:
        name: Unique in its program.
        body: What it computes.
        label: A few words, from the operators it came from: ``gelu``, ``layer_norm``.
        strategy: How the kernel is to be written, where a measurement has chosen; see the emitter.
        settings: Values of tunables, likewise.
    """

    name: str
    body: Body
    label: str = ""
    strategy: str = ""
    settings: Settings = ()

    def reads(self) -> tuple[str, ...]:
        """Return the buffers that it reads."""
        return self.body.reads()

    def writes(self) -> tuple[str, ...]:
        """Return the buffers that it writes."""
        return self.body.writes()


class ExternKind(Enum):
    """What a call is there for: an operator of the user's, or something that the program needs."""

    OPERATOR = auto()
    REFUSED = auto()  # an operator that raises: eager has no kernel for its types
    OWNED_TENSOR = auto()
    RANDOM_SEED = auto()
    UNINITIALIZED = auto()
    PROMISE = auto()
    GAPS = auto()


# What is said of a call that the user did not ask for.
PLUMBING = {
    ExternKind.OWNED_TENSOR: "a tensor that the graph owns",
    ExternKind.RANDOM_SEED: "the seed of the graph's random numbers",
    ExternKind.UNINITIALIZED: "memory that nothing has written yet",
    ExternKind.PROMISE: (
        "a promise of the program's, which is looked at before anything relies on it"
    ),
    ExternKind.GAPS: "a result lies in memory as in eager, with gaps",
}


@dataclass(frozen=True)
class Extern:
    """A step that calls an operator of ATen (or any callable) on tensors.

    Attributes:
        name: Unique in its program.
        target: The callable.
        args: Positional arguments: ``TensorRef``, ``Expr`` for symbolic integers, plain values,
            and lists or tuples of those.
        kwargs: Likewise by name.
        outputs: Names of the buffers that the result binds to, in order; an empty name where a
            part of the result is used by nobody.
        reason: Why no kernel is generated, in words; nothing is decided on them.
        mutates: Buffers that it writes to in place.
        where: The user's line.
        body: The same as a loop nest, where a kernel could do it as well; or None.
        label: The operator's name.
        kind: What it is there for.
        odd_rows: Whether it is a product that writes rows which are no multiples of 16 bytes, and
            of which a kernel is to take the place.
    """

    name: str
    target: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    outputs: tuple[str, ...]
    reason: str
    mutates: tuple[str, ...] = ()
    where: SourceLine | None = None
    body: Body | None = None
    label: str = ""
    kind: ExternKind = ExternKind.OPERATOR
    odd_rows: bool = False

    def reads(self) -> tuple[str, ...]:
        """Return the buffers that it reads."""
        found = (ref.buffer for ref in tensor_refs((self.args, tuple(self.kwargs.values()))))
        return tuple(dict.fromkeys(found))

    def writes(self) -> tuple[str, ...]:
        """Return the buffers that it makes or changes."""
        return tuple(name for name in self.outputs if name) + self.mutates

    @property
    def is_random(self) -> bool:
        """Whether it draws from torch's generators, as far as is known."""
        tags = getattr(self.target, "tags", ())
        return self.kind is ExternKind.RANDOM_SEED or torch.Tag.nondeterministic_seeded in tags

    @property
    def has_unknown_size(self) -> bool:
        """Whether the sizes of what it returns depend on values, whatever was promised of them."""
        return torch.Tag.dynamic_output_shape in getattr(self.target, "tags", ())

    @property
    def is_plumbing(self) -> bool:
        """Whether it is no operator of the user's, but something that the program needs."""
        return self.kind in PLUMBING


Step = Compute | Extern


def tensor_refs(value: object) -> Iterator[TensorRef]:
    """Yield the tensor references inside nested arguments."""
    if isinstance(value, TensorRef):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensor_refs(item)
    elif isinstance(value, dict):
        yield from tensor_refs(tuple(value.values()))


@dataclass(frozen=True)
class Program:
    """A whole graph at loop level.

    Attributes:
        inputs: Names of the graph's inputs in order: buffers, or integers.
        sizes: Symbolic size to where its value is found at run time: an integer input's name and
            None, or a tensor input's name and one of its dimensions.
        buffers: Every buffer by name, inputs included.
        steps: In an order that respects the data flow.
        outputs: What the graph returns: ``TensorRef``, ``Expr``, or a plain value (None...).
        notes: What the user should know of it.
        once: Buffers whose elements no kernel may compute again, because they are compared with
            numbers that were chosen from them.
    """

    inputs: tuple[str, ...]
    sizes: Mapping[Symbol, tuple[str, int | None]]
    buffers: Mapping[str, Buffer]
    steps: tuple[Step, ...]
    outputs: tuple[object, ...]
    notes: tuple[str, ...] = field(default=())
    once: frozenset[str] = frozenset()

    def output_buffers(self) -> frozenset[str]:
        """Return the buffers that outlive the program's run as outputs."""
        return frozenset(ref.buffer for ref in tensor_refs(self.outputs))

    def changed_inputs(self) -> frozenset[str]:
        """Return the inputs that the program writes."""
        written = {name for step in self.steps for name in step.writes()}
        return frozenset(written & set(self.inputs))
