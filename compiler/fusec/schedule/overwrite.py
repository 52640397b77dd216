"""Results written over a tensor that nobody reads again.

Where a kernel computes a large tensor from another one, element by element and at the same places,
and is the last to read it, the result may as well lie where the old values did: an activation
behind a convolution needs no memory of its own, and a write to a line that was just read finds it
in the cache.  ``in_place.py`` does so to inputs that are updated, and says when it is safe.

The two need not be of one shape: ``(batch * rows, columns)`` as a library returns it and ``(batch,
rows, columns)`` are the same memory.  Both are then the one with the fewer dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fusec.ir.aliases import may_view
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr
from fusec.ir.node import Load, Node, load
from fusec.ir.program import Compute, Extern, Program, TensorRef
from fusec.report import FusionDecision
from fusec.schedule.choices import LEAST_OVERWRITTEN_BYTES
from fusec.schedule.in_place import hindrance
from fusec.schedule.redundant_copies import FRESH

Index = tuple[Expr, ...]


def overwrite(program: Program) -> tuple[Program, tuple[FusionDecision, ...]]:
    """Return ``program`` with results in the memory of what they are computed from; what was done.

    Args:
        program: Scheduled; its steps are in the order that they run in.
    """
    first, last = _lifetimes(program)
    own = _own_memory(program)
    moved = _Moved(program)
    maker = {name: step.name for step in reversed(program.steps) for name in step.writes()}
    decisions: list[FusionDecision] = []
    for position, step in enumerate(program.steps):
        if not isinstance(step, Compute):
            continue
        taken: set[str] = set()
        for store in step.body.stores:
            if first[store.buffer] != position or store.buffer in program.inputs:
                continue
            for given in step.body.reads():
                dying = given in own and given not in taken and last[given] == position
                if (
                    dying
                    and _may_lie(program, step, store, given)
                    and moved.join(store.buffer, given)
                ):
                    taken.add(given)
                    reason = "written over its result, which is read for the last time"
                    decisions.append(FusionDecision(maker[given], step.name, True, reason))
                    break
    return (moved.renamed() if decisions else program), tuple(decisions)


def _lifetimes(program: Program) -> tuple[dict[str, int], dict[str, int]]:
    """Return the positions of the first and of the last step that has to do with each buffer."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, step in enumerate(program.steps):
        for name in (*step.reads(), *step.writes()):
            first.setdefault(name, position)
            last[name] = position
    return first, last


def _own_memory(program: Program) -> set[str]:
    """Return the buffers that the program makes for itself, and of which it makes no views."""
    found: set[str] = set()
    seen: set[str] = set()
    for step in program.steps:
        if isinstance(step, Compute):
            found |= set(step.writes())
        elif step.target in FRESH:
            found |= {name for name in step.outputs if name}
        elif may_view(step.target):
            seen |= set(step.reads())
    return found - seen - set(program.inputs) - program.output_buffers()


def _may_lie(program: Program, step: Compute, store: Store, given: str) -> bool:
    made, old = program.buffers[store.buffer], program.buffers[given]
    return (
        made.bytes >= LEAST_OVERWRITTEN_BYTES
        and (made.bytes, made.dtype, made.device) == (old.bytes, old.dtype, old.device)
        and not hindrance(step, made, old)
    )


class _Moved:
    """Which buffers are one, and by which name."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.name_of: dict[str, str] = {}
        externs = (step for step in program.steps if isinstance(step, Extern))
        self.library = {name for step in externs for name in step.outputs}
        self.returned = program.output_buffers()

    def find(self, name: str) -> str:
        while name in self.name_of:
            name = self.name_of[name]
        return name

    def join(self, made: str, given: str) -> bool:
        """Let two buffers be one; return whether there is a shape for both."""
        one, two = self.find(made), self.find(given)
        buffers = self.program.buffers
        for name, other in ((two, one), (one, two)):
            into, of = buffers[name], buffers[other]
            alike = (into.shape, into.strides) == (of.shape, of.strides)
            # What a library makes stays as it is, and what the caller sees is no view.
            may = other not in self.library and (alike or other not in self.returned)
            if may and dimensions_within(into, of) is not None:
                self.name_of[other] = name
                return True
        return False

    def renamed(self) -> Program:
        """Return the program with every buffer by the name of the memory it is in."""
        program = self.program

        def swap(node: Node) -> Node | None:
            if not isinstance(node, Load) or node.buffer not in self.name_of:
                return None
            index = self.index(node.buffer, node.index)
            return load(self.find(node.buffer), index, node.dtype, node.mask, node.other)

        steps = tuple(
            replace(step, body=self.body(step.body, swap))
            if isinstance(step, Compute)
            else self.extern(step)
            for step in program.steps
        )
        buffers = {key: b for key, b in program.buffers.items() if key not in self.name_of}
        return replace(program, steps=steps, buffers=buffers, outputs=self.value(program.outputs))

    def index(self, name: str, index: Index) -> Index:
        """Return where an element of a buffer is in the one that it lies in."""
        while name in self.name_of:
            within = self.name_of[name]
            found = dimensions_within(self.program.buffers[within], self.program.buffers[name])
            assert found is not None
            index = tuple(
                sum((index[dim] * factor for dim, factor in each), Expr.of(0)) for each in found
            )
            name = within
        return index

    def body(self, body: Body, swap: Callable[[Node], Node | None]) -> Body:
        if self.name_of.keys().isdisjoint((*body.reads(), *body.writes())):
            return body
        moved = body.moved(body.axes, body.reduce_axes, {}, swap)
        return replace(moved, stores=tuple(map(self.store, moved.stores)))

    def store(self, store: Store) -> Store:
        if store.buffer not in self.name_of:
            return store
        index = self.index(store.buffer, store.index)
        return replace(store, buffer=self.find(store.buffer), index=index, made=store.buffer)

    def extern(self, step: Extern) -> Extern:
        args, kwargs = self.value(step.args), self.value(step.kwargs)
        return replace(
            step, args=args, kwargs=kwargs, mutates=tuple(self.find(name) for name in step.mutates)
        )

    def value(self, value: Any) -> Any:
        """Return an operator's arguments, or the program's outputs, with the other names."""
        if isinstance(value, TensorRef):
            return replace(value, buffer=self.find(value.buffer))
        if isinstance(value, tuple | list):
            return type(value)(self.value(each) for each in value)
        if isinstance(value, Mapping):
            return {key: self.value(each) for key, each in value.items()}
        return value


Groups = tuple[tuple[tuple[int, int], ...], ...]


def dimensions_within(coarse: Buffer, fine: Buffer) -> Groups | None:
    """Return which dimensions of ``fine`` each one of ``coarse`` is made of; None if of none.

    Args:
        coarse: Its elements lie without gaps.
        fine: As many elements; known sizes.

    Returns:
        For each dimension of ``coarse`` some of ``fine``, with the numbers that their indices are
        to be multiplied by.
    """
    if (coarse.shape, coarse.strides) == (fine.shape, fine.strides):
        return tuple(((dim, 1),) for dim in range(len(fine.shape)))
    ordered, finer = _in_memory_order(coarse), _in_memory_order(fine)
    if ordered is None or finer is None:
        return None
    left = list(finer)
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for dim, size in reversed(ordered):
        group: list[tuple[int, int]] = []
        count = 1
        while left and count < size:
            inner, extent = left.pop()
            group.append((inner, count))
            count *= extent
        if count != size:
            return None
        found[dim] = tuple(group)
    return tuple(found.get(dim, ()) for dim in range(len(coarse.shape)))


def _in_memory_order(buffer: Buffer) -> Sequence[tuple[int, int]] | None:
    """Return the dimensions longer than 1 with their sizes, slowest first; None where gaps are."""
    known: list[tuple[int, int, int]] = []
    for dim, (size, stride) in enumerate(zip(buffer.shape, buffer.strides, strict=True)):
        if size.constant is None or stride.constant is None:
            return None
        if size.constant != 1:
            known.append((stride.constant, dim, size.constant))
    expected = 1
    for distance, _, length in sorted(known):
        if distance != expected:
            return None
        expected *= length
    return [(dim, length) for _, dim, length in sorted(known, reverse=True)]


__all__ = ["dimensions_within", "overwrite"]
