"""Tensors as numpy has them; anything that offers DLPack comes in by numpy, too."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from .errors import CannotRun
from .guards import TensorFacts, Unusable
from .layout import ITEM_BYTES, Operator, StoredProgram
from .weights import Weight

# What numpy has no type for comes and goes as the bits, unless ml_dtypes' types are used.
_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


class Arrays(Protocol):
    """Whose tensors a package runs on: numpy's here, torch's in ``fusec.packages.load``."""

    operators: bool

    def at(self, values: Sequence[Any]) -> Arrays:
        """Return whose tensors those of a call are: itself, but where there are several GPUs."""

    def take(self, value: Any) -> Any:
        """Return a value as a tensor of this kind where it is one of another; else itself."""

    def is_tensor(self, value: object) -> bool:
        """Whether a value is a tensor."""

    def facts(self, value: Any) -> TensorFacts:
        """Return what guards ask."""

    def is_same(self, value: Any, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> bool:
        """Whether a tensor is just so; cheaper than ``facts``, and never yes where they say no."""

    def key(self, args: Sequence[Any]) -> tuple[object, ...] | None:
        """Return all that guards ask of flat arguments, to be looked up; None for others."""

    def check(self, values: Sequence[Any]) -> None:
        """Raise where a call may not run in the state that this process is in."""

    def empty(self, dtype: str, shape: Sequence[int], strides: Sequence[int], device: str) -> Any:
        """Return memory that nothing has written."""

    def pointer(self, value: Any) -> int:
        """Return the address of the first element."""

    def writable(self, value: Any) -> bool:
        """Whether a program may write into a tensor."""

    def extent(self, value: Any) -> tuple[int, int]:
        """Return the first address of a tensor's memory and the one after the last."""

    def view(
        self,
        value: Any,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int,
        dtype: str = "",
    ) -> Any:
        """Return a view; strides and offset in elements, perhaps as another type of their size."""

    def copy(self, value: Any) -> Any:
        """Return a copy that lies in memory alike."""

    def update(self, into: Any, value: Any) -> None:
        """Copy one tensor's elements into another."""

    def weight(self, weight: Weight) -> Any:
        """Return a weight as a tensor."""

    def threads(self) -> int:
        """Return how many threads a kernel may use."""

    def constant(self, value: Any) -> Any:
        """Return an operator's argument that is no tensor, as ``call`` takes it."""

    def call(self, step: Operator, program: StoredProgram, given: Any) -> Sequence[Any]:
        """Call an operator; only where ``operators``."""

    def results(self, made: Sequence[Any], leaves: Sequence[Any]) -> Sequence[Any]:
        """Return what a program made, where the caller expects it."""

    def start(self, code: str, grid: Sequence[int], arguments: Sequence[tuple[str, Any]]) -> None:
        """Start a kernel on a GPU; only where there is one."""


def bytes_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements lie between the first one and the end of the last one."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides are those of C."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


class NumpyArrays:
    """numpy's arrays on the CPU."""

    operators = False

    def __init__(self) -> None:
        self._types: dict[str, np.dtype[Any]] = {}
        self._threads = _processors()

    def _dtype(self, name: str) -> np.dtype[Any]:
        found = self._types.get(name)
        if found is None:
            found = self._types[name] = np.dtype(_BITS.get(name, name))
        return found

    def at(self, values: Sequence[Any]) -> Arrays:
        """Return itself."""
        return self

    def take(self, value: Any) -> Any:
        """Return another library's tensor, or a kind of array of numpy's, as a plain array."""
        if type(value) is np.ndarray or not hasattr(value, "__dlpack__"):
            return value
        if isinstance(value, np.ndarray):
            plain = isinstance(value, np.memmap)
            return value.view(np.ndarray) if plain else value  # a masked array is no plain one
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            said = str(error).partition("\n")[0][:100]
            return Unusable(f"a {type(value).__name__} that numpy cannot take: {said}")

    def is_tensor(self, value: object) -> bool:
        """Whether a value is an array, and not just a number of numpy's."""
        return type(value) is np.ndarray

    def facts(self, value: Any) -> TensorFacts:
        """Return what guards ask."""
        size = value.itemsize or 1
        whole = all(step % size == 0 for step in value.strides)
        name = value.dtype.name if value.dtype.isnative else f"{value.dtype.name} of other bytes"
        strides = tuple(step // size if whole else -1 for step in value.strides)
        return TensorFacts(name, value.shape, strides, "cpu")

    def is_same(self, value: Any, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> bool:
        """Whether an array is just so."""
        facts = self.facts(value)
        return (facts.dtype, facts.shape, facts.strides) == (dtype, shape, strides)

    def key(self, args: Sequence[Any]) -> tuple[object, ...] | None:
        """Return types, sizes and strides."""
        found: list[object] = []
        for each in args:
            kind = type(each)
            if kind is np.ndarray:
                found.append(each.dtype)
                found.append(each.shape)
                found.append(each.strides)
            elif kind is int or kind is bool or kind is str or each is None:
                found.append((kind, each))
            elif kind is float:
                found.append((kind, each.hex()))
            else:
                return None
        return tuple(found)

    def check(self, values: Sequence[Any]) -> None:
        """Find nothing: numpy has no state that matters."""

    def empty(self, dtype: str, shape: Sequence[int], strides: Sequence[int], device: str) -> Any:
        """Return memory that nothing has written."""
        kind = self._dtype(dtype)
        if is_dense(shape, strides):
            return np.empty(shape, kind)
        return self.view(np.empty(bytes_of(shape, strides), kind), shape, strides, 0)

    def pointer(self, value: Any) -> int:
        """Return the address of the first element.

        Raises:
            CannotRun: The elements do not lie at multiples of their size.
        """
        address: int = value.__array_interface__["data"][0]
        if address % value.itemsize:
            raise CannotRun("an array's elements are not aligned", "give a copy of it")
        return address

    def writable(self, value: Any) -> bool:
        """Whether it is."""
        return bool(value.flags.writeable)

    def extent(self, value: Any) -> tuple[int, int]:
        """Return the bounds of an array's memory."""
        low, high = np.lib.array_utils.byte_bounds(value)
        return int(low), int(high)

    def view(
        self,
        value: Any,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int,
        dtype: str = "",
    ) -> Any:
        """Return a view of an array's memory, whatever its own sizes."""
        size = value.itemsize
        base = value = value.view(self._dtype(dtype)) if dtype else value
        if offset:
            flat = np.lib.stride_tricks.as_strided(value, (offset + 1,), (size,))
            base = flat[offset:]
        return np.lib.stride_tricks.as_strided(base, shape, [step * size for step in strides])

    def copy(self, value: Any) -> Any:
        """Return a copy that lies in memory alike."""
        return value.copy(order="K")

    def update(self, into: Any, value: Any) -> None:
        """Copy elements."""
        np.copyto(into, value)

    def weight(self, weight: Weight) -> Any:
        """Return a weight; it cannot be written."""
        flat = np.frombuffer(weight.data, self._dtype(weight.dtype))
        if is_dense(weight.shape, weight.strides):
            return flat.reshape(weight.shape)
        size = ITEM_BYTES[weight.dtype]
        strides = [step * size for step in weight.strides]
        return np.lib.stride_tricks.as_strided(flat, weight.shape, strides, writeable=False)

    def threads(self) -> int:
        """Return how many there were when the package was loaded."""
        return self._threads

    def constant(self, value: Any) -> Any:
        """Return the value."""
        return value

    def call(self, step: Operator, program: StoredProgram, given: Any) -> Sequence[Any]:
        """Refuse: there is no torch."""
        raise CannotRun(f"{step.name} is torch's", "load it with fusec.load")

    def results(self, made: Sequence[Any], leaves: Sequence[Any]) -> Sequence[Any]:
        """Return what was made."""
        return made

    def start(self, code: str, grid: Sequence[int], arguments: Sequence[tuple[str, Any]]) -> None:
        """Refuse: these are the process's arrays."""
        raise CannotRun(f"{code} runs on a GPU")


def _processors() -> int:
    """Return what OMP_NUM_THREADS says, or how many processors this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted):
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


__all__ = ["Arrays", "NumpyArrays", "bytes_of", "is_dense"]
