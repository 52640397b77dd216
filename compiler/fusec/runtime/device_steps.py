"""A program on a GPU as steps with all sizes known, for one native call.

The steps name their memory. ``runtime/graph_steps.py`` rearranges them for a CUDA graph,
``numbered`` turns the names into the positions that the native part knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fusec.codegen.host import (
    GROUPED_BYTES,
    direct_target,
    function_of_buffers,
    returns_list,
    view_of_buffer,
)
from fusec.codegen.naming import argument_buffers, body_sizes
from fusec.ir.body import RANDOM_SEED, Compute, Extern, Program, TensorRef, tensor_refs
from fusec.ir.index import Expr, Symbol
from fusec.runtime.launch_records import LaunchRecord

# The driver's own allocations start at multiples of 512 bytes; vectors and bulk copies of kernels
# want 128.
ALIGNMENT = 128
_ALLOCATE, _LAUNCH, _COPY, _CALL, _FREE = range(5)  # as in plan.cpp


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
class Place:
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
    """

    function: int
    grid: tuple[int, int, int]
    threads: int
    shared: int
    places: tuple[Place, ...]
    writes: tuple[str, ...] = ()
    kernel: Any = field(default=None, compare=False)


@dataclass(frozen=True)
class Copy:
    """Bytes copied from one tensor's memory to another's."""

    to: str
    source: str
    bytes: int


@dataclass(frozen=True)
class Call:
    """A Python function called.

    Attributes:
        function: It.
        arguments: ``Place`` for a tensor; anything else as it is.
        names: Of the last arguments.
        outputs: What the results are called; None for one that nobody reads.
        strides: Of each output.
        many: Whether it returns a sequence.
        reads: The tensors whose memory it may read or write.
        fixed: Of these, the ones that only the original tensor can stand for: written in place,
            or taken by a view that may reach beyond them.
        random: Whether it takes numbers from torch's generators.
        mutates: Whether it writes to a tensor that it was given.
        views: Whether its results may lie in the memory of what it was given.
    """

    function: Callable[..., Any]
    arguments: tuple[object, ...]
    names: tuple[str, ...]
    outputs: tuple[str | None, ...]
    strides: tuple[tuple[int, ...], ...]
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


Step = Memory | Start | Copy | Call | Free
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
class Steps:
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


def device_steps(
    program: Program,
    sizes: Mapping[Symbol, int],
    records: Mapping[str, LaunchRecord | None],
    functions: Mapping[str, Callable[..., Any]],
    join: Join | None = None,
) -> Steps:
    """Return a program as steps.

    Args:
        program: The scheduled program.
        sizes: The value of every symbolic size.
        records: What each kernel's ``launch`` does at these sizes; None to call it by Python.
        functions: The kernels as Python functions of tensors and sizes.
        join: Returns steps with several starts as one, and what has to stay alive.
    """
    return _Builder(program, sizes, records, functions).build(join)


class _Builder:
    def __init__(
        self,
        program: Program,
        sizes: Mapping[Symbol, int],
        records: Mapping[str, LaunchRecord | None],
        functions: Mapping[str, Callable[..., Any]],
    ) -> None:
        self.program = program
        self.sizes = sizes
        self.records = records
        self.functions = functions
        self.steps: list[Step] = []
        self.made = set(program.inputs)
        self.kept: list[object] = []
        self.needed = program.output_buffers().union(*(step.reads() for step in program.steps))
        for step in program.steps:
            self.needed |= set(step.writes() if isinstance(step, Compute) else step.mutates)

    def number(self, expr: Expr) -> int:
        value: Any = expr.evaluate(lambda symbol: self.sizes[symbol])
        return int(value)

    def numbers(self, values: Sequence[Expr]) -> tuple[int, ...]:
        return tuple(self.number(value) for value in values)

    def memory(self, name: str) -> Memory:
        buffer = self.program.buffers[name]
        shape, strides = self.numbers(buffer.shape), self.numbers(buffer.strides)
        return Memory(name, shape, strides, buffer.dtype)

    def build(self, join: Join | None) -> Steps:
        for step in self.program.steps:
            if isinstance(step, Compute):
                self.compute(step)
            else:
                self.extern(step)
        outputs = tuple(self.output(value) for value in self.program.outputs)
        tensors = {n: self.memory(n) for n in self.program.inputs if n in self.program.buffers}
        returned = {each.name for each in outputs if each.name is not None}
        made = tuple(self.memory(name) for name in sorted(returned - set(tensors)))
        if join is not None:
            self.steps, kept = join(self.steps)
            self.kept.extend(kept)
        steps = with_frees(share_memory(self.steps, returned), returned)
        return Steps(self.program.inputs, tuple(steps), outputs, tensors, made, tuple(self.kept))

    # -- steps ------------------------------------------------------------------------------

    def compute(self, step: Compute) -> None:
        names = argument_buffers(step.body)
        for name in step.writes():
            if name not in self.made:
                self.made.add(name)
                self.steps.append(self.memory(name))
        record = self.records.get(step.name)
        if record is None:
            symbols = body_sizes(step.body, self.program.buffers)
            extra = [self.sizes[symbol] for symbol in symbols]
            arguments = (*(Place(name) for name in names), *extra)
            function = self.functions[step.name]
            self.steps.append(Call(function, arguments, (), (), (), False, tuple(names)))
            return
        self.kept.append(record.kernels)
        given = list(names)
        for i, each in enumerate(record.temporaries):
            given.append(f"{step.name}/{i}")
            self.steps.append(Memory(given[-1], each.shape, each.strides, each.dtype))
        written = (*step.writes(), *given[len(names) :])
        for start, kernel in zip(record.starts, record.kernels, strict=True):
            places = tuple(
                Place(None, number) if i is None else Place(given[i])
                for i, number in start.parameters
            )
            self.steps.append(
                Start(
                    start.function,
                    start.grid,
                    start.threads,
                    start.shared,
                    places,
                    written,
                    kernel,
                )
            )

    def extern(self, step: Extern) -> None:
        # What nobody reads may be None instead of the tensor that was predicted.
        outputs = tuple(name if name in self.needed else None for name in step.outputs)
        strides = tuple(
            self.numbers(self.program.buffers[name].strides) if name else () for name in outputs
        )
        if not any(outputs):
            outputs, strides = (), ()
        many = bool(outputs) and (len(step.outputs) > 1 or returns_list(step.target))
        self.made |= {name for name in outputs if name}
        reads = tuple(dict.fromkeys((*step.reads(), *step.mutates)))
        refs = list(tensor_refs((step.args, dict(step.kwargs))))
        values = (*step.args, *step.kwargs.values())
        plain = all(isinstance(value, TensorRef) or not has_refs(value) for value in values)
        viewed = [ref.buffer for ref in refs if not self.is_whole(ref)]
        fixed = tuple(dict.fromkeys((*step.mutates, *viewed)))
        if plain and not viewed:
            function = direct_target(step.target)
            arguments = tuple(
                Place(v.buffer) if isinstance(v, TensorRef) else self.plain(v) for v in values
            )
            names = tuple(step.kwargs)
        else:
            function, buffers = function_of_buffers(self.program, step, self.sizes)
            arguments, names = tuple(Place(name) for name in buffers), ()
        self.steps.append(
            Call(
                function,
                arguments,
                names,
                outputs,
                strides,
                many,
                reads,
                fixed,
                is_random(step),
                bool(step.mutates),
                may_view(step.target),
            )
        )

    def is_whole(self, ref: TensorRef) -> bool:
        buffer = self.program.buffers[ref.buffer]
        return (
            ref.shape == buffer.shape
            and ref.strides == buffer.strides
            and ref.offset == 0
            and ref.dtype == buffer.dtype
        )

    def plain(self, value: object) -> object:
        """Return an argument without tensors, its sizes as numbers."""
        if isinstance(value, Expr):
            return self.number(value)
        if isinstance(value, tuple):
            return tuple(self.plain(each) for each in value)
        if isinstance(value, list):
            return [self.plain(each) for each in value]
        return value

    def output(self, value: object) -> Output:
        if isinstance(value, TensorRef):
            if self.is_whole(value):
                return Output(value.buffer)
            return Output(value.buffer, view_of_buffer(self.program, value, self.sizes))
        return Output(None, constant=self.plain(value))


def has_refs(value: object) -> bool:
    """Whether there is a tensor in an argument."""
    return any(True for _ in tensor_refs(value))


def is_random(step: Extern) -> bool:
    """Whether an operator draws from torch's generators."""
    tags = getattr(step.target, "tags", ())
    return step.reason == RANDOM_SEED or torch.Tag.nondeterministic_seeded in tags


def may_view(target: object) -> bool:
    """Whether what an operator returns may be a view of what it is given, by its schema."""
    schema = getattr(target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


# -- memory ---------------------------------------------------------------------------------


def touched(step: Step) -> tuple[str, ...]:
    """Return the tensors that a step needs or makes."""
    if isinstance(step, Memory):
        return (step.name,)
    if isinstance(step, Start):
        return tuple(dict.fromkeys(p.name for p in step.places if p.name is not None))
    if isinstance(step, Copy):
        return (step.to, step.source)
    if isinstance(step, Call):
        named = [a.name for a in step.arguments if isinstance(a, Place) and a.name is not None]
        made = [name for name in step.outputs if name]
        return tuple(dict.fromkeys((*named, *step.reads, *made)))
    return step.names


SHARED = "/shared"


def share_memory(steps: Sequence[Step], returned: set[str]) -> list[Step]:
    """Lay out what only kernels see in one allocation, as far as lifetimes allow.

    Args:
        steps: Without frees.
        returned: What outlives the call.
    """
    sizes = {s.name: s.bytes for s in steps if isinstance(s, Memory) and s.name not in returned}
    for step in steps:
        if isinstance(step, Call):
            for name in touched(step):
                sizes.pop(name, None)
    if len(sizes) < 2 or sum(sizes.values()) > GROUPED_BYTES:
        return list(steps)  # each is freed when nobody needs it
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, step in enumerate(steps):
        for name in touched(step):
            if not isinstance(step, Memory):
                first.setdefault(name, position)
                last[name] = position
    places, total = _first_fit(sizes, first, last)
    shared = Memory(SHARED, (total,), (1,), torch.uint8)
    result: list[Step] = []
    for step in steps:
        if isinstance(step, Memory) and step.name in places:
            if shared not in result:
                result.append(shared)
        elif isinstance(step, Start):
            moved = (
                Place(SHARED, places[p.name] + p.offset) if p.name in places else p
                for p in step.places
            )
            result.append(replace(step, places=tuple(moved)))
        else:
            result.append(step)
    return result


def _first_fit(
    sizes: Mapping[str, int], first: Mapping[str, int], last: Mapping[str, int]
) -> tuple[dict[str, int], int]:
    placed: list[tuple[int, int, str]] = []  # offset, size, name
    total = 0
    for name in sorted(sizes, key=lambda n: (-sizes[n], first.get(n, 0))):
        size = -(-sizes[name] // ALIGNMENT) * ALIGNMENT
        offset = 0
        for start, length, other in sorted(placed):
            apart = last.get(other, -1) < first.get(name, 0) or last.get(name, -1) < first.get(
                other, 0
            )
            if not apart and start < offset + size and offset < start + length:
                offset = start + length
        placed.append((offset, size, name))
        total = max(total, offset + size)
    return {name: offset for offset, _, name in placed}, total


def with_frees(steps: Sequence[Step], returned: set[str]) -> list[Step]:
    """Return steps that drop each tensor after the last step that needs it."""
    last: dict[str, int] = {}
    for position, step in enumerate(steps):
        for name in touched(step):
            last[name] = position
    result: list[Step] = []
    for position, step in enumerate(steps):
        result.append(step)
        gone = [n for n in touched(step) if last[n] == position and n not in returned]
        if gone and position != len(steps) - 1:
            result.append(Free(tuple(gone)))
    return result


# -- what the native part takes -------------------------------------------------------------


@dataclass(frozen=True)
class Numbered:
    """Steps as the native part takes them: see ``plan_type.cpp``."""

    inputs: int
    slots: int
    before: tuple[object, ...]
    steps: tuple[object, ...]
    results: tuple[object, ...]
    loose: tuple[int, ...]
    fixed: tuple[int, ...]


def numbered(
    given: Steps,
    *,
    before: Sequence[Memory] = (),
    loose: Sequence[str] = (),
    fixed: Sequence[str] = (),
) -> Numbered:
    """Return steps with positions for names.

    Args:
        given: The steps.
        before: Memory that is made before a captured graph runs.
        loose: Tensors that a captured graph is told the place of.
        fixed: Inputs that must be where they were.
    """
    slots = {name: i for i, name in enumerate(given.inputs)}

    def slot(name: str) -> int:
        return slots.setdefault(name, len(slots))

    def place(value: Place) -> tuple[int, int]:
        return (-1, value.offset) if value.name is None else (slot(value.name), value.offset)

    def step(value: Step) -> tuple[object, ...]:
        if isinstance(value, Memory):
            return _ALLOCATE, slot(value.name), value.shape, value.strides, value.dtype
        if isinstance(value, Start):
            places = tuple(place(p) for p in value.places)
            return _LAUNCH, value.function, value.grid, value.threads, value.shared, places
        if isinstance(value, Copy):
            return _COPY, ((slot(value.to), 0), (slot(value.source), 0)), value.bytes
        if isinstance(value, Free):
            return _FREE, tuple(slot(name) for name in value.names)
        arguments = tuple(
            (slot(a.name), None) if isinstance(a, Place) and a.name is not None else (-1, a)
            for a in value.arguments
        )
        outputs = tuple(-1 if name is None else slot(name) for name in value.outputs)
        names = value.names or None
        return _CALL, value.function, arguments, names, outputs, value.strides, value.many

    made = tuple(step(each) for each in before)
    steps = tuple(step(each) for each in given.steps)
    results = tuple(
        (-1, o.constant) if o.name is None else (slot(o.name), o.view) for o in given.outputs
    )
    loosely = tuple(slot(name) for name in loose)
    kept_in_place = tuple(slot(name) for name in fixed)
    return Numbered(len(given.inputs), len(slots), made, steps, results, loosely, kept_in_place)


__all__ = [
    "Call",
    "Copy",
    "Free",
    "Join",
    "Memory",
    "Numbered",
    "Output",
    "Place",
    "Start",
    "Step",
    "Steps",
    "device_steps",
    "numbered",
    "share_memory",
    "touched",
    "with_frees",
]
