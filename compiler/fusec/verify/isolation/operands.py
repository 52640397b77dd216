"""A candidate's tensors in the process that is forked for it, and the memory they lie in.

Each lies in an area between red zones, or in the allocator's memory with nothing around it; what a
run has written is compared there, and copied to the file of results.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fusec.verify.guard import Area
from fusec.verify.protocol import Message, poison_byte


@dataclass(frozen=True)
class TensorSpec:
    """One tensor argument as the parent describes it.

    Attributes:
        name: Its name in the kernel.
        dtype: For example ``float32``.
        kind: ``float``, ``integer`` or ``bool``, for the poison.
        itemsize: Bytes an element.
        shape: Sizes.
        strides: Strides in elements.
        role: ``in``, ``out`` or ``inout``.
        offset: Where its bytes start in the data file.
        nbytes: Bytes from its first to its last element.
        result: Where its bytes start in a run's part of the result file; -1 for inputs.
        same_as: The place of an earlier one that is the same tensor; -1 if none is.
    """

    name: str
    dtype: str
    kind: str
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    role: str
    offset: int
    nbytes: int
    result: int
    same_as: int = -1

    @classmethod
    def read(cls, given: Message) -> TensorSpec:
        """Make one from its JSON form."""
        return cls(**{**given, "shape": tuple(given["shape"]), "strides": tuple(given["strides"])})

    @property
    def has_gaps(self) -> bool:
        """Whether there are bytes between its elements that are not its own."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.itemsize != self.nbytes

    def gaps(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each element of its extent whether it lies between its elements."""
        covered = np.zeros(self.nbytes // self.itemsize, dtype=np.bool_)
        np.lib.stride_tricks.as_strided(covered, self.shape, self.strides)[...] = True
        return ~covered


class InArea:
    """An argument of the candidate, in its area."""

    def __init__(self, operand: TensorSpec, area: Area) -> None:
        self.operand, self.area = operand, area

    @property
    def address(self) -> int:
        """Where its first element is."""
        return self.area.start

    def tensor(self) -> torch.Tensor:
        """Return it as a tensor."""
        operand = self.operand
        dtype: torch.dtype = getattr(torch, operand.dtype)
        if not self.area.nbytes:
            return torch.empty_strided(operand.shape, operand.strides, dtype=dtype)
        flat = torch.frombuffer(self.area.bytes_view(), dtype=dtype)
        return flat.as_strided(operand.shape, operand.strides)


def areas_of(operands: Sequence[TensorSpec], *, at_end: bool) -> list[Area]:
    """Return an area for each operand; the same one for those that are one tensor.

    One that is made later mostly lies lower, so that those at their pages' ends lie in the other
    order than those at the beginnings.
    """
    own = [place for place, operand in enumerate(operands) if operand.same_as < 0]
    made = {
        place: Area.make(operands[place].name, operands[place].nbytes, at_end=at_end)
        for place in (own if at_end else reversed(own))
    }
    return [
        made[place if operand.same_as < 0 else operand.same_as]
        for place, operand in enumerate(operands)
    ]


class KeptAreas:
    """The areas of a case's first run, which the next case of the same sizes gets as they lie.

    So a kernel meets other values at an address that it knows.
    """

    def __init__(self) -> None:
        self._areas: list[Area] = []
        self._shared: list[int] = []

    def areas(self, operands: Sequence[TensorSpec], *, at_end: bool) -> list[Area]:
        """Return the areas of the case before, or others where sizes differ."""
        shared = [o.same_as for o in operands]
        if self._shared != shared or [a.nbytes for a in self._areas] != [
            o.nbytes for o in operands
        ]:
            release(self._areas)
            self._areas, self._shared = areas_of(operands, at_end=at_end), shared
        return self._areas


def ordinary_areas(operands: Sequence[TensorSpec]) -> list[Area]:
    """Return an area of ``malloc``'s memory for each operand, with nothing around it."""
    made: list[Area] = []
    for operand in operands:
        if operand.same_as >= 0:
            made.append(made[operand.same_as])
        else:
            start = _ordinary_memory(operand.nbytes)
            made.append(Area(operand.name, start, operand.nbytes, start, operand.nbytes))
    return made


def _ordinary_memory(size: int) -> int:
    # As torch's allocator does it; the process ends before anybody would free it.
    pointer = ctypes.c_void_p()
    libc = ctypes.CDLL(None)
    if libc.posix_memalign(ctypes.byref(pointer), ctypes.c_size_t(64), ctypes.c_size_t(size or 1)):
        raise MemoryError("no memory")
    return int(pointer.value or 0)


def release(areas: Sequence[Area]) -> None:
    """Give areas back, each once."""
    for area in {id(area): area for area in areas}.values():
        area.release()


def write_results(
    operands: Sequence[TensorSpec], areas: Sequence[Area], result_file: int, part: int, size: int
) -> None:
    """Copy what a run has written into its part of the result file."""
    # Mapped only now: while the kernel ran, there was nothing here that it could have hit.
    with mmap.mmap(result_file, size, offset=part) as results:
        for operand, area in zip(operands, areas, strict=True):
            if operand.result >= 0 and area.nbytes:
                results[operand.result : operand.result + area.nbytes] = area.bytes_view()


def has_results(
    operands: Sequence[TensorSpec], areas: Sequence[Area], result_file: int, case: Message
) -> bool:
    """Whether what a case's first run wrote is what there is now."""
    size = case["results"]
    if not size:
        return True
    with mmap.mmap(result_file, size, offset=case["base"]) as results:
        return all(
            results[operand.result : operand.result + area.nbytes] == bytes(area.bytes_view())
            for operand, area in zip(operands, areas, strict=True)
            if operand.result >= 0 and area.nbytes
        )


def changed_gap(operand: TensorSpec, area: Area, source: int, index: int) -> int:
    """Return the first place between an operand's elements that a run has changed; -1 for none."""
    gaps = operand.gaps()
    shape = (gaps.size, operand.itemsize)
    now = np.frombuffer(area.bytes_view(), dtype=np.uint8).reshape(shape)
    if operand.role == "out":
        changed = (now != poison_byte(operand.kind, index)).any(axis=1)
    else:
        original = ctypes.string_at(source + operand.offset, operand.nbytes)
        changed = (now != np.frombuffer(original, dtype=np.uint8).reshape(shape)).any(axis=1)
    changed &= gaps
    return int(np.argmax(changed)) if changed.any() else -1


__all__ = [
    "InArea",
    "KeptAreas",
    "TensorSpec",
    "areas_of",
    "changed_gap",
    "has_results",
    "ordinary_areas",
    "release",
    "write_results",
]
