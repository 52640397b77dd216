"""Whether the inputs of a graph are what its kernels were compiled for, before one of them starts.

TorchDynamo's guards have seen to it where nobody goes past them.  Guards can be skipped
(``guard_filter_fn``, ``torch.compiler.set_stance(skip_guard_eval_unsafe=True)``), what a backend
compiled can be called by hand, a predicted size may not be the real one, memory may have been
freed; a kernel would then read and write memory that is not its own.  The native form
(``native/inputs.cpp``) costs nanoseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from fusec.call import native
from fusec.call.dlpack import dlpack_device, dlpack_type
from fusec.errors import FusecError
from fusec.ir.body import Buffer
from fusec.ir.index import Expr, FloorDiv, Mod, Symbol
from fusec.ir.program import Compute, Extern, Program
from fusec.memory.readable import Unreadable, require, require_plain

# Steps of an expression as native code takes it.
_NUMBER, _SIZE, _ADD, _MULTIPLY, _DIVIDE, _REMAINDER = range(6)
_LARGEST = (1 << 63) - 1
_ANYWHERE = (-1, 0)  # type and number of a device, as native code takes them


class UnexpectedInput(FusecError, AssertionError):
    """An input of a compiled graph has other sizes, strides, types than it was compiled for."""


class SharedMemory(Unreadable):
    """An input that a graph updates shares memory with another one, for which it was not compiled.

    No guard of TorchDynamo's sees that.  What was captured, run in eager, is right.
    """


class InputCheck:
    """The check of one program's inputs.

    Args:
        program: The scheduled program.
        updated: Inputs that are updated once it has run.
        alone: Whether what is updated must share memory with no other input.
    """

    def __init__(
        self, program: Program, updated: Collection[str] = (), *, alone: bool = False
    ) -> None:
        self._program = program
        used = {name for step in program.steps for name in (*step.reads(), *step.writes())}
        used |= program.output_buffers()
        self._used = [name for name in program.inputs if name in program.buffers and name in used]
        kernels = [step for step in program.steps if isinstance(step, Compute)]
        self._read = {name for step in kernels for name in (*step.reads(), *step.writes())}
        self._read -= _given_memory(program)
        written = {name for step in program.steps for name in step.writes()} | {*updated}
        several = alone and len(self._used) > 1
        self.updated = tuple(n for n in self._used if n in written) if several else ()
        self._native: Any = None

    def __call__(self, inputs: Sequence[object]) -> None:
        """Raise if inputs do not fit.

        Args:
            inputs: All of the program's, in order.

        Raises:
            UnexpectedInput: One does not.
            Unreadable: One is no plain tensor.
            NoMemory: The memory of one is not there.
        """
        found = self.native()
        if found is not None:
            found(inputs)
        else:
            self.look_at(inputs)

    def native(self) -> Any:
        """Return the same check natively; None where there is no native part, or not yet."""
        if self._native is None:
            types = native.types()
            if types is not None:
                self._native = types.InputCheck(*self._specification(), native.exchange())
        return self._native

    def look_at(self, inputs: Sequence[object]) -> None:
        """Do as ``__call__``, by Python: it has the words."""
        program = self._program
        if len(inputs) != len(program.inputs):
            raise UnexpectedInput(f"{len(program.inputs)} inputs are expected, not {len(inputs)}")
        named = dict(zip(program.inputs, inputs, strict=True))
        for name, value in named.items():
            if not self._is_elsewhere(name, value):
                require_plain(value, f"input {self._hint(name)}")
        sizes: dict[Symbol, int] = {}
        for symbol, (source, dim) in program.sizes.items():
            sizes[symbol] = value = size_of(named[source], dim)
            low, high = size_range(symbol)
            if not low <= value <= high:
                place = self._hint(source) if dim is None else f"size {dim} of {self._hint(source)}"
                raise UnexpectedInput(
                    f"{place} is {value}; the graph was compiled for {low} and more"
                    if value < low
                    else f"{place} is {value}; the graph was compiled for {high} at most"
                )
        for name in self._used:
            anywhere = self._may_be_anywhere(name)
            problem = _problem(named[name], program.buffers[name], sizes, anywhere=anywhere)
            if problem:
                raise UnexpectedInput(
                    f"input {self._hint(name)}: {problem}",
                    "guards were skipped, or what was compiled was called by hand",
                )
            if name in self._read:
                require(named[name], f"input {self._hint(name)}")
        shared = self._shared(named)
        if shared:
            raise SharedMemory(
                f"input {self._hint(shared)} is updated, and shares memory with another input"
            )

    def shares_memory(self, inputs: Sequence[object]) -> bool:
        """Whether an input that is updated shares memory with another one."""
        named = dict(zip(self._program.inputs, inputs, strict=False))
        return bool(self._shared(named))

    def _shared(self, named: Mapping[str, object]) -> str:
        """Return an input that is updated and shares memory with another one, or nothing."""
        if not self.updated:
            return ""
        extents = {n: _extent(named[n]) for n in self._used}
        for name in self.updated:
            begin, end = extents[name]
            for other, (start, stop) in extents.items():
                if other != name and begin < stop and start < end:
                    return name
        return ""

    def _is_elsewhere(self, name: str, value: object) -> bool:
        buffer = self._program.buffers.get(name)
        if buffer is None or not isinstance(value, torch.Tensor):
            return False
        return value.device.type != buffer.device.type

    def _may_be_anywhere(self, name: str) -> bool:
        """Whether an input is a number that operators alone take, which they do from any device.

        The seed of an attention's dropout comes from the CPU, whatever fake tensors say of it.
        """
        return name not in self._read and not self._program.buffers[name].shape

    def _hint(self, name: str) -> str:
        buffer = self._program.buffers.get(name)
        return buffer.hint if buffer is not None and buffer.hint else name

    def _specification(self) -> tuple[object, ...]:
        """Return what ``native/inputs.cpp`` makes its check of."""
        program = self._program
        positions = {name: i for i, name in enumerate(program.inputs)}
        numbers = {symbol: i for i, symbol in enumerate(program.sizes)}
        sizes = tuple(
            (positions[source], -1 if dim is None else dim, *size_range(symbol))
            for symbol, (source, dim) in program.sizes.items()
        )
        wanted = tuple(
            _wanted(program.buffers[name], numbers, anywhere=self._may_be_anywhere(name))
            if name in self._used
            else None
            for name in program.inputs
        )
        updated = tuple(positions[name] for name in self.updated)
        return wanted, sizes, updated, self.look_at


def _extent(value: object) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte and of the one after its last."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return 0, 0
    last = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    begin = value.data_ptr()
    return begin, begin + (last + 1) * value.element_size()


def _given_memory(program: Program) -> set[str]:
    """Return the inputs whose memory may come while the program runs: operators resize it."""
    return {
        name
        for step in program.steps
        if isinstance(step, Extern) and "resize_storage" in str(step.target)
        for name in step.reads()
    }


def _wanted(
    buffer: Buffer, numbers: Mapping[Symbol, int], *, anywhere: bool
) -> tuple[object, ...] | None:
    device = _ANYWHERE if anywhere else dlpack_device(buffer.device)
    if device is None:
        return None
    shape = tuple(_encoded(size, numbers) for size in buffer.shape)
    strides = tuple(_encoded(stride, numbers) for stride in buffer.strides)
    return (shape, strides, *dlpack_type(buffer.dtype), *device)


def _encoded(expr: Expr, numbers: Mapping[Symbol, int]) -> int | tuple[tuple[int, int], ...]:
    """Return an expression as a number, or as steps of a stack machine."""
    if expr.constant is not None:
        return expr.constant
    steps: list[tuple[int, int]] = []

    def push(each: Expr) -> None:
        for position, (monomial, factor) in enumerate(each.terms.items()):
            steps.append((_NUMBER, factor))
            for atom in monomial:
                if isinstance(atom, (FloorDiv, Mod)):
                    push(atom.numerator)
                    push(atom.divisor)
                    steps.append((_DIVIDE if isinstance(atom, FloorDiv) else _REMAINDER, 0))
                else:
                    steps.append((_SIZE, numbers[atom]))
                steps.append((_MULTIPLY, 0))
            if position:
                steps.append((_ADD, 0))
        if not each.terms:
            steps.append((_NUMBER, 0))

    push(expr)
    return tuple(steps)


def size_range(symbol: Symbol) -> tuple[int, int]:
    """Return the least and the largest value that a symbolic size was compiled for."""
    size = symbol.size.constant if symbol.size is not None else None
    return symbol.low, _LARGEST if size is None else size - 1


def size_of(value: object, dim: int | None) -> int:
    """Return the size that an input brings: a number's value, or one of a tensor's dimensions."""
    if dim is None:
        return int(value)  # type: ignore[call-overload, no-any-return]
    if not isinstance(value, torch.Tensor) or dim >= value.dim():
        raise UnexpectedInput(f"{type(value).__name__} has no dimension {dim}")
    return value.size(dim)


def _problem(value: object, buffer: Buffer, sizes: Mapping[Symbol, int], *, anywhere: bool) -> str:
    """Return what is wrong with an input, in torch's words where it has such; else nothing."""
    if value is None and any(size == 0 for size in buffer.shape):
        return ""  # what stands for the order of effects while torch traces
    if not isinstance(value, torch.Tensor):
        return f"expected a tensor, not {type(value).__name__}"
    shape, strides = _numbers(buffer.shape, sizes), _numbers(buffer.strides, sizes)
    if value.dim() != len(shape):
        return f"wrong number of dimensions {value.dim()} for {len(shape)}"
    pairs = zip(value.shape, shape, value.stride(), strides, strict=True)
    empty = 0 in shape
    for dim, (size, wanted, stride, step) in enumerate(pairs):
        if size != wanted or (stride != step and size != 1 and not empty):
            return f"expected size {size}=={wanted}, stride {stride}=={step} at dim={dim}"
    if value.dtype != buffer.dtype:
        return f"expected dtype {buffer.dtype}, not {value.dtype}"
    there = (value.device.type, value.device.index or 0)
    if not anywhere and there != (buffer.device.type, buffer.device.index or 0):
        return f"expected device {buffer.device}, not {value.device}"
    return ""


def _numbers(values: Sequence[Expr], sizes: Mapping[Symbol, int]) -> tuple[int, ...]:
    return tuple(int(v.evaluate(lambda symbol: sizes[symbol])) for v in values)  # type: ignore[call-overload]


__all__ = ["InputCheck", "UnexpectedInput", "size_of", "size_range"]
