"""What an interpreter lets pass, and a GPU does not: seen while a kernel is interpreted.

Programs run one after the other here and at the same time there, so that a sum which each of them
loads, adds to and stores is right here alone.  And what a mask keeps from being loaded is zero
here, where a GPU has whatever its register held, unless ``other=`` says what it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fusec.targets.triton.toolchain.watch import Race

_PAGE = 12
_NOBODY, _SEVERAL = -1, -2
# An atomic operation of these makes what others stored before theirs visible, and a program that
# has done one may know that they are through.
_ORDERING = frozenset({"ACQUIRE", "RELEASE", "ACQUIRE_RELEASE"})


_drawn = np.random.default_rng()
# What a register may hold; NaN alone would make `x > 1` right.
_FLOATS = (float("nan"), float("inf"), -float("inf"), 12345.0)


class _Places:
    """A number for each address; nobody's where none was given."""

    def __init__(self) -> None:
        self._pages: dict[int, np.ndarray[Any, Any]] = {}

    def _of(self, addresses: Any) -> Iterator[tuple[Any, Any, Any]]:
        pages = addresses >> _PAGE
        for page in np.unique(pages).tolist():
            lanes = pages == page
            if page not in self._pages:
                self._pages[page] = np.full(1 << _PAGE, _NOBODY, dtype=np.int64)
            yield lanes, self._pages[page], addresses[lanes] & ((1 << _PAGE) - 1)

    def others(self, addresses: Any, program: int) -> Any:
        """Return which addresses have the number of another program."""
        found = np.zeros(addresses.shape, dtype=bool)
        for lanes, page, places in self._of(addresses):
            found[lanes] = (page[places] != _NOBODY) & (page[places] != program)
        return found

    def put(self, addresses: Any, program: int) -> None:
        """Give addresses a program's number; several's where they have another's."""
        for _, page, places in self._of(addresses):
            mine = (page[places] == _NOBODY) | (page[places] == program)
            page[places] = np.where(mine, program, _SEVERAL)


class _Start:
    """What the programs of one start of a kernel have touched so far."""

    def __init__(self) -> None:
        self.loaded, self.stored, self.updated = _Places(), _Places(), _Places()
        self._ordered: set[int] = set()

    def load(self, addresses: Any, program: int) -> None:
        """Note a load."""
        if program not in self._ordered:
            _refuse(program, "loads what", self.stored.others(addresses, program), "stores")
            _refuse(program, "loads what", self.updated.others(addresses, program), "updates")
        self.loaded.put(addresses, program)

    def store(self, addresses: Any, program: int) -> None:
        """Note a store of what was not there before."""
        if program not in self._ordered:
            _refuse(program, "stores to what", self.stored.others(addresses, program), "stores")
            _refuse(program, "stores to what", self.loaded.others(addresses, program), "loads")
            _refuse(program, "stores to what", self.updated.others(addresses, program), "updates")
        self.stored.put(addresses, program)

    def update(self, addresses: Any, program: int, *, orders: bool) -> None:
        """Note an atomic operation."""
        if program not in self._ordered:
            _refuse(program, "updates what", self.stored.others(addresses, program), "stores")
        if orders:
            self._ordered.add(program)
        self.updated.put(addresses, program)


def _refuse(program: int, does: str, where: Any, other: str) -> None:
    if where.any():
        verb = "stores to" if other == "stores" else other
        raise Race(
            f"program {program} {does} another program {verb}: "
            "on a GPU they run at the same time, in no order"
        )


@contextlib.contextmanager
def device_rules() -> Iterator[None]:
    """Hold interpreted kernels to what a GPU does; it stands within ``interpreting()``."""
    from triton.runtime import interpreter

    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas, call = builder.create_atomic_rmw, builder.create_atomic_cas, executor.__call__
    start = _Start()
    touched: set[int] = set()  # pages that a store has been let into

    def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal start
        start = _Start()
        return call(self, *args, **kwargs)

    def program(self: Any) -> int:
        (x, y, z), (_, down, deep) = self.grid_idx, self.grid_dim
        return int((x * down + y) * deep + z)

    def masked_load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        lanes = np.broadcast_to(mask.data, pointers.data.shape).astype(bool)
        start.load(_addresses(pointers, lanes), program(self))
        found = load(self, pointers, mask, other, *rest)
        if other is None and not lanes.all():
            found.data = _spoiled(found.data, ~lanes)
        return found

    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        lanes = np.broadcast_to(mask.data, pointers.data.shape).astype(bool)
        # A store that is out of bounds has to end as one, not as a load.
        pages = set((_addresses(pointers, lanes) >> _PAGE).tolist())
        known = pages <= touched
        before = load(self, pointers, mask, None, None, None, False) if known else None
        done = store(self, pointers, value, mask, *rest)
        touched.update(pages)
        changed = lanes
        if before is not None:
            after = load(self, pointers, mask, None, None, None, False)
            changed = lanes & (_bits(before.data) != _bits(after.data)).reshape(lanes.shape)
        start.store(_addresses(pointers, changed), program(self))
        return done

    def atomic_rmw(
        self: Any, kind: Any, pointers: Any, value: Any, mask: Any, sem: Any, *rest: Any
    ) -> Any:
        lanes = np.broadcast_to(mask.data, pointers.data.shape).astype(bool)
        start.update(_addresses(pointers, lanes), program(self), orders=_orders(sem))
        return rmw(self, kind, pointers, value, mask, sem, *rest)

    def atomic_cas(
        self: Any, pointers: Any, compared: Any, value: Any, sem: Any, *rest: Any
    ) -> Any:
        lanes = np.ones(pointers.data.shape, dtype=bool)
        start.update(_addresses(pointers, lanes), program(self), orders=_orders(sem))
        return cas(self, pointers, compared, value, sem, *rest)

    changed = {
        "create_masked_load": masked_load,
        "create_masked_store": masked_store,
        "create_atomic_rmw": atomic_rmw,
        "create_atomic_cas": atomic_cas,
    }
    before = {name: getattr(builder, name) for name in changed}
    try:
        executor.__call__ = begin
        for name, function in changed.items():
            setattr(builder, name, function)
        yield
    finally:
        executor.__call__ = call
        for name, function in before.items():
            setattr(builder, name, function)


def _addresses(pointers: Any, lanes: Any) -> Any:
    return pointers.data[lanes].astype(np.int64).ravel()


def _orders(sem: Any) -> bool:
    return getattr(sem, "name", "") in _ORDERING


def _bits(data: Any) -> Any:
    """Return values as integers of their size: NaN is equal to itself there."""
    data = np.ascontiguousarray(data)
    return data.view(f"u{data.dtype.itemsize}")


def _spoiled(data: Any, missing: Any) -> Any:
    """Return what was loaded with what nobody may rely on where nothing was."""
    data = np.array(data)
    kind, count = data.dtype.kind, int(missing.sum())
    if kind == "f":
        data[missing] = _drawn.choice(np.array(_FLOATS, dtype=data.dtype), count)
    elif kind in "iu":
        info = np.iinfo(data.dtype)
        data[missing] = _drawn.choice(np.array([info.min, 1, info.max], dtype=data.dtype), count)
    else:
        data[missing] = _drawn.random(count) < 0.5
    return data


__all__ = ["device_rules"]
