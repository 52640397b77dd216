"""One program for one set of sizes: everything that is the same in each of its calls, done once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .arrays import Arrays
from .consistency import require_inputs, require_order, views_of
from .errors import CannotRun, KernelStopped
from .expressions import evaluate
from .guards import Guard, TensorFacts
from .layout import Native, Operator, Started, StoredProgram, View
from .library import Library
from .structure import Builder

_ALIGNMENT = 64
_STEP = 1 << 16  # a status is the step's number times this, and its own


class Launch:
    """A program with its sizes.

    Args:
        program: The program.
        guards: What its arguments are, of which calls were asked.
        sizes: By name.
        arrays: Whose tensors it runs on.
        weights: The package's.
        library: The package's binary.
        result: Puts the result together.
        alone: Whether operators are the package's own, and not torch's.
        threads: Of kernels; None for what ``arrays`` says at each call.
    """

    def __init__(
        self,
        program: StoredProgram,
        guards: Sequence[Guard],
        sizes: Mapping[str, int],
        arrays: Arrays,
        weights: Sequence[Any],
        library: Callable[[], Library],
        result: Builder,
        *,
        alone: bool,
        threads: int | None,
    ) -> None:
        steps = program.alone if alone else program.with_torch
        if steps is None:
            raise CannotRun(
                f"{program.name} needs torch: {'; '.join(program.needs_torch)}",
                "load it with fusec.load, where torch is",
            )
        require_inputs(program, guards, sizes)
        require_order(program, steps)
        self.program = program
        self.arrays = arrays
        self.threads = threads
        self._result = result
        self._sizes = sizes
        values = [sizes[each.name] for each in program.sizes]
        self._numbers = (ctypes.c_int64 * max(len(values), 1))(*values)
        self._layout = [
            (
                tuple(evaluate(each, sizes) for each in buffer.shape),
                tuple(evaluate(each, sizes) for each in buffer.strides),
            )
            for buffer in program.buffers
        ]
        if any(number < 0 for layout in self._layout for part in layout for number in part):
            raise CannotRun(f"{program.name} has a size below zero")
        self._fixed: list[Any] = [None] * len(program.buffers)
        self._inputs: list[tuple[int, int]] = []
        for i, buffer in enumerate(program.buffers):
            if buffer.role == "weight":
                self._fixed[i] = weights[buffer.source]
            elif buffer.role == "input":
                self._inputs.append((i, buffer.source))
        self._updated = [buffer for _, buffer in program.updates]
        last = _last_uses(program, steps)
        self._steps = [
            self._native(step, library(), values, last[i])
            if isinstance(step, Native)
            else self._started(step, last[i])
            if isinstance(step, Started)
            else self._operator(step, last[i])
            for i, step in enumerate(steps)
        ]
        returned = program.outputs[len(program.updates) :]
        self._outputs = [self._argument(each) for each in program.outputs[: len(program.updates)]]
        self._outputs += [self._output(each, returned[:i]) for i, each in enumerate(returned)]
        self._pool: list[Any] = []  # scratch memory that no call uses

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Run once.

        Args:
            leaves: Of the call; guards have looked at them.

        Returns:
            The function's result.
        """
        arrays, there = self.arrays, self._fixed.copy()
        arrays.check(leaves)
        for buffer, leaf in self._inputs:
            there[buffer] = leaves[leaf]
        if self._updated:
            self._require_own_memory(there)
        threads = self.threads or arrays.threads()
        for step in self._steps:
            step(there, threads)
        made = [make(there) for make in self._outputs]
        for output, buffer in self.program.updates:
            arrays.update(there[buffer], made[output])
        return self._result(arrays.results(made, leaves), leaves)

    def _require_own_memory(self, there: Sequence[Any]) -> None:
        """Refuse what would come out otherwise: an update of memory that is another input's too."""
        arrays = self.arrays
        extents = {buffer: arrays.extent(there[buffer]) for buffer, _ in self._inputs}
        for updated in self._updated:
            name = self.program.buffers[updated].name
            if not arrays.writable(there[updated]):
                raise CannotRun(f"{name} is updated in place, and cannot be written")
            low, high = extents[updated]
            for other, (begin, end) in extents.items():
                if other != updated and begin < high and low < end:
                    shared = self.program.buffers[other].name
                    raise CannotRun(
                        f"{name} is updated in place, and shares memory with {shared}",
                        "give a copy of one of them",
                    )

    # -- steps ------------------------------------------------------------------------------

    def _empty(self, number: int) -> Callable[[], Any]:
        buffer = self.program.buffers[number]
        shape, strides = self._layout[number]
        empty = self.arrays.empty
        return lambda: empty(buffer.dtype, shape, strides, buffer.device)

    def _native(
        self, step: Native, library: Library, sizes: Sequence[int], dead: Sequence[int]
    ) -> Callable[[list[Any], int], None]:
        function = library.function(step.function)
        scratch = library.scratch(step.function, sizes)
        if not 0 <= scratch < 1 << 46:
            raise CannotRun(f"{self.program.name} asks for {scratch} bytes of memory")
        array = ctypes.c_void_p * max(len(step.buffers), 1)
        template, changing = array(), []
        made = {number: self._empty(number) for number in step.made}
        pointer = self.arrays.pointer
        for place, number in enumerate(step.buffers):
            if self._fixed[number] is not None:
                template[place] = pointer(self._fixed[number])
            else:
                changing.append((place, number))
        numbers = self._numbers
        spare = self._spare(scratch)

        def run(there: list[Any], threads: int) -> None:
            for number, make in made.items():
                if there[number] is None:
                    there[number] = make()
            given = array.from_buffer_copy(template)
            for place, number in changing:
                given[place] = pointer(there[number])
            memory = spare()
            try:
                status = function(given, numbers, memory[1], threads)
            finally:
                if scratch:
                    self._pool.append(memory)
            if status:
                self._stop(step, status)
            for number in dead:
                there[number] = None

        return run

    def _spare(self, size: int) -> Callable[[], tuple[Any, int]]:
        """Return what hands out scratch memory: of an earlier call, where there is such."""
        if not size:
            return lambda: (None, 0)

        def spare() -> tuple[Any, int]:
            pool = self._pool
            while True:
                try:
                    found = pool.pop()
                except IndexError:
                    break
                if len(found[0]) >= size + _ALIGNMENT:
                    return found  # type: ignore[no-any-return]
            memory = np.empty(size + _ALIGNMENT, np.uint8)
            address = memory.__array_interface__["data"][0]
            return memory, address + -address % _ALIGNMENT

        return spare

    def _stop(self, step: Native, status: int) -> None:
        kernel, checks = step.failures.get(status // _STEP, ("a kernel", ()))
        number = status % _STEP
        if 1 <= number <= len(checks):
            raise KernelStopped(checks[number - 1], f"in kernel {kernel}")
        if status == -1:
            raise MemoryError(f"not enough memory for {self.program.name}")
        raise CannotRun(f"kernel {kernel} ended with status {number}")

    def _started(self, step: Started, dead: Sequence[int]) -> Callable[[list[Any], int], None]:
        made = {number: self._empty(number) for number in step.made}
        arrays = self.arrays

        def run(there: list[Any], threads: int) -> None:
            for number, make in made.items():
                if there[number] is None:
                    there[number] = make()
            memory = [arrays.empty("uint8", (size,), (1,), "cuda") for size in step.memory]
            of = {"buffer": there, "memory": memory}
            for start in step.starts:
                arguments = [
                    ("pointer", arrays.pointer(of[kind][value])) if kind in of else (kind, value)
                    for kind, value in start.arguments
                ]
                arrays.start(start.code, start.grid, arguments)
            for number in dead:
                there[number] = None

        return run

    def _operator(self, step: Operator, dead: Sequence[int]) -> Callable[[list[Any], int], None]:
        arrays, program = self.arrays, self.program
        arguments = [self._argument(each) for each in step.arguments]
        keywords = {name: self._argument(each) for name, each in step.keywords.items()}
        made = [
            (place, number, program.buffers[number].dtype, *self._layout[number])
            for place, number in enumerate(step.outputs)
            if number is not None
        ]
        count, is_same = len(step.outputs), arrays.is_same

        def run(there: list[Any], threads: int) -> None:
            given = [each(there) for each in arguments]
            named = {name: each(there) for name, each in keywords.items()}
            found = arrays.call(step, program, (given, named))
            if len(found) < count:
                raise CannotRun(f"{step.name} returned {len(found)} results")
            for place, number, dtype, shape, strides in made:
                value = found[place]
                if not is_same(value, dtype, shape, strides):
                    _require_same(step, arrays.facts(value), dtype, shape, strides)
                there[number] = value
            for number in dead:
                there[number] = None

        return run

    def _argument(self, value: Any) -> Callable[[list[Any]], Any]:
        from .layout import SizeValue

        if isinstance(value, View):
            return self._view(value)
        if isinstance(value, SizeValue):
            size = evaluate(value.expression, self._sizes)
            return lambda there: size
        if isinstance(value, list):
            parts = [self._argument(each) for each in value]
            return lambda there: [part(there) for part in parts]
        fixed = self.arrays.constant(value)
        return lambda there: fixed

    def _view(self, view: View) -> Callable[[list[Any]], Any]:
        number = view.buffer
        if view.whole:
            return lambda there: there[number]
        sizes, make = self._sizes, self.arrays.view
        shape = [evaluate(each, sizes) for each in view.shape]
        strides = [evaluate(each, sizes) for each in view.strides]
        offset = evaluate(view.offset, sizes)
        within = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        wide, steps = self._layout[number]
        last = sum((n - 1) * step for n, step in zip(wide, steps, strict=True))
        if min([offset, *shape, *strides]) < 0 or (0 not in shape and (0 in wide or within > last)):
            raise CannotRun(f"{self.program.name} has a view beyond its memory")
        if self._fixed[number] is not None:  # a weight: the same in every call
            known = make(self._fixed[number], shape, strides, offset, view.dtype)
            return lambda there: known
        return lambda there: make(there[number], shape, strides, offset, view.dtype)

    def _output(self, value: Any, before: Sequence[Any]) -> Callable[[list[Any]], Any]:
        if not isinstance(value, View):
            return self._argument(value)
        role, inner = self.program.buffers[value.buffer].role, self._view(value)
        if role == "weight":
            copy = self.arrays.copy
            return lambda there: copy(inner(there))  # weights stay as they are
        if value.whole and (role == "input" or value in before):
            # As from .view_as: another tensor, of the same memory.
            make, (shape, strides) = self.arrays.view, self._layout[value.buffer]
            return lambda there: make(inner(there), shape, strides, 0, "")
        return inner


def _require_same(
    step: Operator, facts: TensorFacts, dtype: str, shape: Sequence[int], strides: Sequence[int]
) -> None:
    """Refuse what an operator returned where it is another tensor than the next steps expect."""
    same = facts.dtype == dtype and facts.shape == shape
    if not same or not _lies_alike(shape, facts.strides, strides):
        raise CannotRun(
            f"{step.name} ({step.line}) returned {facts.dtype} of {facts.shape}, "
            f"strides {facts.strides}; packaged for {shape}, strides {strides}",
            "package it with the torch that runs it",
        )


def _lies_alike(shape: Sequence[int], left: Sequence[int], right: Sequence[int]) -> bool:
    if 0 in shape:
        return True
    return all(n == 1 or a == b for n, a, b in zip(shape, left, right, strict=True))


def _last_uses(program: StoredProgram, steps: Sequence[Any]) -> list[list[int]]:
    """Return, for each step, what was made and nobody needs after it."""
    kept = {value.buffer for value in program.outputs if isinstance(value, View)}
    last: dict[int, int] = {}
    for position, step in enumerate(steps):
        for number in _used(step):
            last[number] = position
    dead: list[list[int]] = [[] for _ in steps]
    for number, position in last.items():
        if program.buffers[number].role == "made" and number not in kept:
            dead[position].append(number)
    return dead


def _used(step: Any) -> set[int]:
    if isinstance(step, (Native, Started)):
        return set(step.buffers)
    made = {number for number in step.outputs if number is not None}
    return made | views_of([*step.arguments, *step.keywords.values()])


__all__ = ["Launch"]
