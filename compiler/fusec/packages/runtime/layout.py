"""What a package says of its programs: buffers, steps, results, as values that were checked.

All that is read here was compared with its hash; what is checked once more is that every number
means something: that a step names a buffer that is there, a size that the program has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import expressions
from .errors import DamagedPackage
from .expressions import Expression
from .json_text import LARGEST, Reader

# Bytes of an element, by the type's name.
ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex64": 8,
    "complex128": 16,
}
_MOST_DIMENSIONS = 64
_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a program.

    Attributes:
        name: What the user calls it, where there is such a name.
        role: ``input``, ``weight`` or ``made``.
        source: The leaf of the call, or the number of the weight; 0 of what is made.
        dtype: Its type's name.
        shape: Sizes.
        strides: In elements.
        device: ``cpu`` or ``cuda``.
    """

    name: str
    role: str
    source: int
    dtype: str
    shape: tuple[Expression, ...]
    strides: tuple[Expression, ...]
    device: str


@dataclass(frozen=True)
class View:
    """A strided view of a buffer.

    Attributes:
        buffer: Its number.
        shape: Sizes.
        strides: In elements.
        offset: The first element, from the buffer's first one.
        whole: Whether it is the buffer as it is.
        dtype: As which type of the same size its bytes are read; empty for the buffer's own.
    """

    buffer: int
    shape: tuple[Expression, ...]
    strides: tuple[Expression, ...]
    offset: Expression
    whole: bool
    dtype: str = ""


@dataclass(frozen=True)
class Size:
    """A size that a call brings.

    Attributes:
        name: As in expressions.
        leaf: The leaf of the call that has it.
        dimension: Which of its sizes; None for the leaf itself, a whole number.
        low: The least value.
        high: The largest.
    """

    name: str
    leaf: int
    dimension: int | None
    low: int
    high: int


@dataclass(frozen=True)
class Native:
    """Steps that one function of the package's library does.

    Attributes:
        function: Its symbol; with ``_scratch`` behind it, what says how much memory it needs.
        buffers: Those that it takes, by number.
        made: Those of them that have no memory before.
        failures: What a status other than 0 means: the step's number to its checks' words.
    """

    function: str
    buffers: tuple[int, ...]
    made: tuple[int, ...]
    failures: Mapping[int, tuple[str, tuple[str, ...]]]


@dataclass(frozen=True)
class Operator:
    """A step that calls an operator of ATen.

    Attributes:
        name: ``aten.mm.default``.
        arguments: ``View``, numbers, texts, lists; in order.
        keywords: The same by name.
        outputs: Buffers of the results; None where nobody reads one.
        line: Where the user called it, for messages.
    """

    name: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    outputs: tuple[int | None, ...]
    line: str


@dataclass(frozen=True)
class StoredStart:
    """One start of a kernel on a GPU.

    Attributes:
        code: Its machine code's name.
        grid: How many blocks, three numbers.
        arguments: Pairs: ``buffer`` or ``memory`` with a number, or a number's type with its value.
    """

    code: str
    grid: tuple[int, ...]
    arguments: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Started:
    """A kernel on a GPU: starts, one after the other.

    Attributes:
        kernel: Its name.
        buffers: Those that it takes, by number.
        made: Those of them that have no memory before.
        memory: Bytes of each piece of memory that its starts hand on to each other.
        starts: In order.
    """

    kernel: str
    buffers: tuple[int, ...]
    made: tuple[int, ...]
    memory: tuple[int, ...]
    starts: tuple[StoredStart, ...]


Step = Native | Operator | Started


@dataclass(frozen=True)
class StoredProgram:
    """One specialization's program.

    Attributes:
        name: Of the specialization.
        buffers: All of them; steps name them by number.
        sizes: What calls bring.
        conditions: What must hold of the sizes, with its words.
        alone: The steps where no operator of torch's is needed; None where one is.
        with_torch: The steps on torch.
        outputs: What it yields: a ``View``, or a plain value.
        updates: Outputs that are copied into an input's buffer: output, buffer.
        needs_torch: What keeps it from running without torch: a line each.
    """

    name: str
    buffers: tuple[StoredTensor, ...]
    sizes: tuple[Size, ...]
    conditions: tuple[tuple[Expression, str], ...]
    alone: tuple[Step, ...] | None
    with_torch: tuple[Step, ...]
    outputs: tuple[Any, ...]
    updates: tuple[tuple[int, int], ...]
    needs_torch: tuple[str, ...]


def read_program(reader: Reader, leaves: int, weights: int) -> StoredProgram:
    """Return a program that was read.

    Args:
        reader: Its JSON.
        leaves: How many leaves a call has.
        weights: How many weights the package has.

    Raises:
        DamagedPackage: Something in it means nothing.
    """
    sizes = tuple(_size(each, leaves) for each in reader.readers("sizes"))
    names = frozenset(size.name for size in sizes)
    buffers = tuple(
        _buffer(each, names, {"input": leaves, "weight": weights, "made": 1})
        for each in reader.readers("buffers")
    )
    conditions = tuple(
        (expressions.check(each.raw("expression"), names, each.place), each.text("text"))
        for each in reader.readers("conditions")
    )
    inner = _Inner(buffers, names)
    outputs = tuple(inner.value(each, reader.place) for each in reader.items("outputs"))
    updates = []
    for each in reader.readers("updates"):
        output, buffer = each.number("output"), each.number("buffer", 0, len(buffers) - 1)
        if output >= len(outputs) or not isinstance(outputs[output], View):
            raise DamagedPackage(f"{each.place}: there is no such output")
        if buffers[buffer].role != "input":
            raise DamagedPackage(f"{each.place}: what is updated is not an input")
        updates.append((output, buffer))
    alone = inner.steps(reader.readers("alone")) if reader.has("alone") else None
    if alone is not None and any(isinstance(step, Operator) for step in alone):
        raise DamagedPackage(f"{reader.place}: an operator of torch, and torch is not here")
    return StoredProgram(
        reader.text("name"),
        buffers,
        sizes,
        conditions,
        alone,
        inner.steps(reader.readers("with_torch")),
        outputs,
        tuple(updates),
        reader.texts("needs_torch"),
    )


def _size(reader: Reader, leaves: int) -> Size:
    dimension = reader.number("dimension", 0, _MOST_DIMENSIONS) if reader.has("dimension") else None
    name = reader.text("name")
    if not name.isidentifier():
        raise DamagedPackage(f"{reader.place}: {name[:40]!r} is not a name of a size")
    return Size(
        name,
        reader.number("leaf", 0, leaves - 1),
        dimension,
        reader.number("low", -LARGEST),
        reader.number("high", -LARGEST),
    )


def _buffer(reader: Reader, names: frozenset[str], sources: Mapping[str, int]) -> StoredTensor:
    role, dtype = reader.text("role"), reader.text("dtype")
    if role not in sources or dtype not in ITEM_BYTES:
        raise DamagedPackage(f"{reader.place}: {role} of {dtype} is not known")
    shape = _sizes(reader, "shape", names)
    strides = _sizes(reader, "strides", names)
    if len(shape) != len(strides):
        raise DamagedPackage(f"{reader.place}: as many strides as sizes are needed")
    source = reader.number("source", 0, max(sources[role] - 1, 0))
    if source >= sources[role]:
        raise DamagedPackage(f"{reader.place}: there is no such {role}")
    device = reader.text("device")
    if device not in _DEVICES:
        raise DamagedPackage(f"{reader.place}: {device[:40]!r} is not a device")
    return StoredTensor(reader.text("name"), role, source, dtype, shape, strides, device)


def _sizes(reader: Reader, name: str, names: frozenset[str]) -> tuple[Expression, ...]:
    found = reader.items(name)
    if len(found) > _MOST_DIMENSIONS:
        raise DamagedPackage(f"{reader.place}: {len(found)} dimensions")
    return tuple(expressions.check(each, names, reader.place) for each in found)


_MOST_BLOCKS = 65535  # of a grid's second and third number


def _argument(
    reader: Reader, buffers: Sequence[int], memory: Sequence[int]
) -> tuple[str, int | float]:
    if reader.has("buffer"):
        number = reader.number("buffer")
        if number not in buffers:
            raise DamagedPackage(f"{reader.place}: it takes no such buffer")
        return "buffer", number
    if reader.has("memory"):
        return "memory", reader.number("memory", 0, len(memory) - 1)
    if reader.has("fp32"):
        return "fp32", float(Reader(reader.raw("fp32"), reader.place).text("float"))
    for kind, low, high in (("i32", -(1 << 31), (1 << 31) - 1), ("i64", -LARGEST, LARGEST)):
        if reader.has(kind):
            return kind, reader.number(kind, low, high)
    return "u64", reader.number("u64")


class _Inner:
    def __init__(self, buffers: Sequence[StoredTensor], names: frozenset[str]) -> None:
        self.buffers = buffers
        self.names = names

    def value(self, value: Any, place: str, depth: int = 0) -> Any:
        """Return an argument or an output: plain values, lists, views and sizes."""
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value
        if isinstance(value, list) and depth < 8:
            return [self.value(each, place, depth + 1) for each in value]
        reader = Reader(value, place)
        if reader.has("float"):
            return float(reader.text("float"))  # infinities and NaN have no number in JSON
        if reader.has("size"):
            expressions.check(reader.raw("size"), self.names, place)
            return SizeValue(reader.raw("size"))
        if reader.has("dtype") and not reader.has("buffer"):
            return Named("dtype", reader.text("dtype"))
        if reader.has("torch"):
            return Named(reader.text("torch"), reader.text("value"))
        number = reader.number("buffer", 0, len(self.buffers) - 1)
        buffer = self.buffers[number]
        if not reader.has("shape"):
            return View(number, buffer.shape, buffer.strides, 0, True)
        shape, strides = (_sizes(reader, name, self.names) for name in ("shape", "strides"))
        offset = expressions.check(reader.raw("offset"), self.names, place)
        dtype = reader.text("dtype") if reader.has("dtype") else ""
        if dtype and ITEM_BYTES.get(dtype) != ITEM_BYTES[buffer.dtype]:
            raise DamagedPackage(f"{place}: {buffer.dtype} is no {dtype[:40]!r}")
        return View(number, shape, strides, offset, False, dtype)

    def steps(self, readers: Sequence[Reader]) -> tuple[Step, ...]:
        return tuple(
            self._operator(each)
            if each.has("operator")
            else self._started(each)
            if each.has("starts")
            else self._native(each)
            for each in readers
        )

    def _started(self, reader: Reader) -> Started:
        buffers = reader.numbers("buffers", len(self.buffers))
        made = reader.numbers("made", len(self.buffers))
        memory = reader.numbers("memory", 1 << 46)
        if not set(made) <= set(buffers):
            raise DamagedPackage(f"{reader.place}: it makes what it does not take")
        starts = []
        for each in reader.readers("starts"):
            grid = each.numbers("grid", 1 << 31)
            if len(grid) != 3 or max(grid[1:]) > _MOST_BLOCKS:
                raise DamagedPackage(f"{each.place}: no such grid")
            arguments = tuple(_argument(a, buffers, memory) for a in each.readers("arguments"))
            starts.append(StoredStart(each.text("code"), grid, arguments))
        return Started(reader.text("kernel"), buffers, made, memory, tuple(starts))

    def _native(self, reader: Reader) -> Native:
        function = reader.text("function")
        if not function.isidentifier():
            raise DamagedPackage(f"{reader.place}: {function[:40]!r} is not a function")
        buffers = reader.numbers("buffers", len(self.buffers))
        made = reader.numbers("made", len(self.buffers))
        if not set(made) <= set(buffers):
            raise DamagedPackage(f"{reader.place}: it makes what it does not take")
        failures = {
            each.number("step"): (each.text("kernel"), each.texts("checks"))
            for each in reader.readers("failures")
        }
        return Native(function, buffers, made, failures)

    def _operator(self, reader: Reader) -> Operator:
        keywords = reader.raw("keywords")
        if not isinstance(keywords, dict):
            raise DamagedPackage(f"{reader.place}: keywords is not an object")
        outputs = [
            None if each is None else Reader({"at": each}, reader.place).number("at")
            for each in reader.items("outputs")
        ]
        if any(each is not None and each >= len(self.buffers) for each in outputs):
            raise DamagedPackage(f"{reader.place}: there is no such buffer")
        return Operator(
            reader.text("operator"),
            tuple(self.value(each, reader.place) for each in reader.items("arguments")),
            {name: self.value(each, reader.place) for name, each in keywords.items()},
            tuple(outputs),
            reader.text("line"),
        )


@dataclass(frozen=True)
class SizeValue:
    """An argument that is a size."""

    expression: Expression


@dataclass(frozen=True)
class Named:
    """An argument that is a value of torch's own.

    Attributes:
        kind: ``dtype``, ``device``, ``layout`` or ``memory_format``.
        name: ``float32``, ``cpu``.
    """

    kind: str
    name: str


__all__ = [
    "ITEM_BYTES",
    "Named",
    "Native",
    "Operator",
    "Size",
    "SizeValue",
    "Started",
    "Step",
    "StoredProgram",
    "StoredStart",
    "StoredTensor",
    "View",
    "read_program",
]
