"""Watches what an interpreted Triton kernel loads and stores: which program, which elements, where.

A GPU says nothing of a load beyond the end of a tensor, and a store there destroys what lies beside
it.  In the interpreter every address can be looked at before it is touched: what lies outside is
named with its program, its elements and its line, and never touched.  So is what one program
stores and another one touches, which on a GPU run at the same time.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

import numpy as np
import torch

Kind = Literal["load", "store", "atomic"]
_MOST_KEPT = 4000  # accesses that are remembered; all are checked


class OutOfBounds(Exception):
    """A program touches what is not its tensor's."""


class Race(Exception):
    """Two programs touch the same element, and one of them stores to it."""


@dataclass(frozen=True)
class Access:
    """One load or store of one program.

    Attributes:
        kernel: The kernel's name.
        program: Its place in the grid, a number for each of the grid's dimensions.
        kind: What it does.
        tensor: The tensor that it touches; the nearest one for what lies outside of all.
        elements: The places that it touches, counted from the tensor's first element.
        outside: Those of them that are not the tensor's.
        masked: How many lanes the mask keeps from touching anything.
        size: How many elements the tensor has.
        line: The line of the kernel's file or cell.
    """

    kernel: str
    program: tuple[int, ...]
    kind: Kind
    tensor: str
    elements: tuple[int, ...]
    outside: tuple[int, ...]
    masked: int
    size: int
    line: int | None

    @property
    def place(self) -> str:
        """The program as one writes it: ``program 3`` or ``program (3, 1)``."""
        shown = ", ".join(map(str, self.program))
        return f"program {shown}" if len(self.program) == 1 else f"program ({shown})"

    @property
    def problem(self) -> str:
        """What is wrong with it; empty if nothing is."""
        if not self.outside:
            return ""
        verb = {"load": "loads", "store": "stores to", "atomic": "updates"}[self.kind]
        what = f"{self.tensor}[{ranges(self.outside)}]"
        if min(self.outside) < 0:
            return f"{self.place} {verb} {what}, before {self.tensor} begins: mend the address"
        return (
            f"{self.place} {verb} {what}, but {self.tensor} has {self.size:,} "
            f"element{'s' if self.size != 1 else ''}: mask the lanes that are beyond it"
        )


def ranges(places: Sequence[int], most: int = 4) -> str:
    """Return places as one writes slices: ``0:8``, ``0:8, 16:24``, ``0:32:4``."""
    found: list[str] = []
    left = sorted(set(places))
    while left:
        if len(found) == most:
            return ", ".join([*found, "..."])
        step = left[1] - left[0] if len(left) > 1 else 1
        count = 1
        while count < len(left) and left[count] == left[0] + count * step:
            count += 1
        if step > 1 and count < 3:
            step, count = 1, 1
        last = left[0] + count * step
        if count == 1:
            found.append(str(left[0]))
        elif step == 1:
            found.append(f"{left[0]}:{last}")
        else:
            found.append(f"{left[0]}:{last - step + 1}:{step}")
        left = left[count:]
    return ", ".join(found)


@dataclass
class _Watched:
    """A tensor, and who stored to each of its elements in this start of a kernel."""

    name: str
    start: int
    itemsize: int
    size: int
    owners: np.ndarray[Any, Any]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> _Watched:
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        size = last + 1 if tensor.numel() else 0
        owners = np.full(size, -1, dtype=np.int64)
        return cls(name, tensor.data_ptr(), tensor.element_size(), size, owners)

    def distance(self, address: int) -> int:
        """How far an address is from the tensor's nearest byte."""
        end = self.start + self.itemsize * max(self.size, 1)
        return max(self.start - address, address - end + 1, 0)


@dataclass
class Watch:
    """What was seen.

    Attributes:
        accesses: Loads and stores, in order; no more than some thousand are kept.
        read: Bytes that programs have loaded.
        written: Bytes that they have stored.
        starts: How often a kernel was started.
        programs: How many programs have run.
        dropped: How many accesses are not kept.
    """

    accesses: list[Access] = field(default_factory=list)
    read: int = 0
    written: int = 0
    starts: int = 0
    programs: int = 0
    dropped: int = 0
    _tensors: list[_Watched] = field(default_factory=list)
    _kernel: str = ""
    _file: str = ""

    def begin(self, kernel: str, file: str) -> None:
        """Note that a kernel is started: what was stored before it may be read."""
        self._kernel, self._file = kernel, file
        self.starts += 1
        for each in self._tensors:
            each.owners.fill(-1)

    def note(
        self,
        kind: Kind,
        addresses: Any,
        mask: Any,
        program: tuple[int, int, int],
        size: tuple[int, int, int],
        strict: bool,
    ) -> Any:
        """Look at what is about to be touched; return the mask of what may be.

        Args:
            kind: What is done with it.
            addresses: Of each lane, in bytes.
            mask: Which lanes touch something.
            program: Which program asks.
            size: The grid.
            strict: Whether to raise at the first mistake.

        Raises:
            OutOfBounds: Something outside is touched; only if strict.
            Race: Another program has stored there; only if strict.
        """
        lanes = np.ascontiguousarray(np.broadcast_to(mask, addresses.shape)).astype(bool)
        chosen = addresses[lanes].astype(np.int64).ravel()
        place = program[: max((n for n in (1, 2, 3) if size[n - 1] > 1), default=1)]
        if not chosen.size:
            self._keep(Access(self._kernel, place, kind, "", (), (), lanes.size, 0, self._line()))
            return lanes
        owner = self._nearest(int(chosen[0]))
        places, rest = np.divmod(chosen - owner.start, owner.itemsize)
        bad = (places < 0) | (places >= owner.size) | (rest != 0)
        good = places[~bad]
        touched = good.size * owner.itemsize
        if kind != "store":
            self.read += touched
        if kind != "load":
            self.written += touched
        access = Access(
            self._kernel,
            place,
            kind,
            owner.name,
            tuple(places[:4096].tolist()),
            tuple(places[bad][:4096].tolist()),
            int(lanes.size - chosen.size),
            owner.size,
            self._line(),
        )
        self._keep(access)
        if access.outside and strict:
            raise OutOfBounds(access.problem)
        if kind != "atomic":
            number = (program[0] * size[1] + program[1]) * size[2] + program[2]
            self._own(owner, good, number, kind, access, strict)
        safe = np.zeros(addresses.shape, dtype=bool)
        safe[lanes] = ~bad
        return safe

    def _own(
        self, owner: _Watched, places: Any, number: int, kind: Kind, access: Access, strict: bool
    ) -> None:
        before = owner.owners[places]
        others = (before >= 0) & (before != number)
        if strict and others.any():
            at = int(places[np.argmax(others)])
            verb = "stores to" if kind == "store" else "loads"
            raise Race(
                f"{access.place} {verb} {owner.name}[{at}], to which another program has stored: "
                "on a GPU they run at the same time, in no order"
            )
        if kind == "store":
            owner.owners[places] = number

    def _nearest(self, address: int) -> _Watched:
        return min(self._tensors, key=lambda each: each.distance(address))

    def _keep(self, access: Access) -> None:
        if len(self.accesses) < _MOST_KEPT or access.outside:
            self.accesses.append(access)
        else:
            self.dropped += 1

    def _line(self) -> int | None:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename == self._file:
                return frame.f_lineno
            frame = frame.f_back
        return None


@contextlib.contextmanager
def watching(tensors: Mapping[str, torch.Tensor], *, strict: bool) -> Iterator[Watch]:
    """Watch kernels that are interpreted in the block; it stands within ``interpreting()``.

    Args:
        tensors: What kernels are given, by name.
        strict: Whether the first mistake raises; otherwise a load from outside yields NaN (or the
            largest integer), and a store there does nothing.

    What a mask keeps away is undefined on a GPU unless ``other=`` says what it is: NaN here, too.
    """
    from triton.runtime import interpreter

    watch = Watch(_tensors=[_Watched.of(name, tensor) for name, tensor in tensors.items()])
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store
    atomic, advance = builder.create_atomic_rmw, builder.set_grid_idx

    def look(self: Any, kind: Kind, pointers: Any, mask: Any) -> Any:
        across, down, deep = (int(n) for n in self.grid_dim)
        grid = (across, down, deep)
        return watch.note(kind, pointers.data, mask, self.grid_idx, grid, strict)

    def masked_load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        safe = look(self, "load", pointers, mask.data)
        asked = np.broadcast_to(mask.data, safe.shape).astype(bool)
        found = load(self, pointers, interpreter.TensorHandle(safe, mask.dtype), other, *rest)
        missing = ~safe if other is None else asked & ~safe
        if missing.any():
            found.data = _spoiled(found.data, missing)
        return found

    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        safe = look(self, "store", pointers, mask.data)
        return store(self, pointers, value, interpreter.TensorHandle(safe, mask.dtype), *rest)

    def atomic_rmw(self: Any, kind: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        safe = look(self, "atomic", pointers, mask.data)
        handle = interpreter.TensorHandle(safe, mask.dtype)
        return atomic(self, kind, pointers, value, handle, *rest)

    def set_grid_idx(self: Any, x: int, y: int, z: int) -> None:
        watch.programs += 1
        advance(self, x, y, z)

    changed = {
        "create_masked_load": masked_load,
        "create_masked_store": masked_store,
        "create_atomic_rmw": atomic_rmw,
        "set_grid_idx": set_grid_idx,
    }
    before = {name: getattr(builder, name) for name in changed}
    try:
        for name, function in changed.items():
            setattr(builder, name, function)
        yield watch
    finally:
        for name, function in before.items():
            setattr(builder, name, function)


def _spoiled(data: Any, missing: Any) -> Any:
    """Return what was loaded with what nobody may rely on where nothing was."""
    data = np.array(data)
    kind = data.dtype.kind
    data[missing] = np.nan if kind == "f" else np.iinfo(data.dtype).max if kind in "iu" else True
    return data


__all__ = ["Access", "OutOfBounds", "Race", "Watch", "ranges", "watching"]
