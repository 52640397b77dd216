"""Inputs that the graph updates, written where they lie.

AOTAutograd makes a graph functional: what updates an input is returned, and copied into the input
when the graph is done.  Where one kernel computes the new values from the old ones element by
element, and nobody looks at the old ones afterwards, it may as well put them into the input; the
copy then finds that there is nothing to do.  An optimizer's step is of this kind, and so are the
running statistics of a norm, of which a kernel has one for each row that it reduces.  Kernels that
read the new value afterwards read the input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fusec.ir.body import Body, Buffer
from fusec.ir.node import Load, Node, load
from fusec.ir.program import Compute, Extern, Program, Step, TensorRef, tensor_refs
from fusec.ir.walk import walk
from fusec.report import FusionDecision


def update_in_place(
    program: Program, updated: Sequence[str]
) -> tuple[Program, tuple[FusionDecision, ...]]:
    """Return ``program`` with kernels that write inputs instead of new buffers; what was done.

    Args:
        program: Its steps are kernels.
        updated: The inputs that its first outputs are copied into, in order.
    """
    if not updated:
        return program, ()
    decisions: list[FusionDecision] = []
    work = _Work(program, updated)
    for position, name in enumerate(updated):
        value = work.outputs[position]
        if not isinstance(value, TensorRef) or value.buffer == name:
            continue
        found = work.writer(value, name)
        if isinstance(found, str):
            decisions.append(FusionDecision(value.buffer, name, False, found))
            continue
        step = work.put(found, position, value, name)
        saved = 2 * work.buffers[name].bytes
        decisions.append(
            FusionDecision(step.name, name, True, "the input is updated where it lies", saved)
        )
    return work.program(), tuple(decisions)


class _Work:
    """A program whose kernels are being made to write inputs.

    An optimizer's step has a thousand of them: who reads and who writes a buffer is looked up.
    It is noted once: of a new value and of its input nobody asks again when the one has become the
    other, for each is of one output alone.
    """

    def __init__(self, program: Program, updated: Sequence[str]) -> None:
        self._program = program
        self._updated = Counter(updated)
        self._inputs = frozenset(program.inputs)
        self.steps = list(program.steps)
        self.outputs = list(program.outputs)
        self.buffers = dict(program.buffers)
        self._returned = Counter(ref.buffer for ref in tensor_refs(program.outputs))
        self._reads: dict[str, set[int]] = {}
        self._writes: dict[str, set[int]] = {}
        for at, step in enumerate(self.steps):
            for buffer in step.reads():
                self._reads.setdefault(buffer, set()).add(at)
            for buffer in step.writes():
                self._writes.setdefault(buffer, set()).add(at)

    def program(self) -> Program:
        """Return the program as it is now."""
        return replace(
            self._program,
            steps=tuple(self.steps),
            outputs=tuple(self.outputs),
            buffers=self.buffers,
        )

    def writer(self, value: TensorRef, name: str) -> int | str:
        """Return the place of the kernel that may write into the input; else why there is none."""
        made, given = self.buffers[value.buffer], self.buffers.get(name)
        if given is None or value.buffer in self._inputs:
            return "the new value is not a tensor that a kernel makes"
        alike = (made.shape, made.strides, made.dtype, made.device)
        if alike != (given.shape, given.strides, given.dtype, given.device):
            return "the new value does not lie as the input does"
        if (value.shape, value.strides) != (made.shape, made.strides) or value.offset != 0:
            return "the new value is a part of a tensor"
        if self._returned[value.buffer] != 1 or self._returned[name] or self._updated[name] != 1:
            return "the graph returns it more than once"
        first, *others = self._writes[value.buffer]
        step = self.steps[first]
        if others or not isinstance(step, Compute):
            return "an operator of ATen makes the new value"
        # Kernels may read it in the input. What an operator returns may be a view of it.
        readers = self._reads.get(value.buffer, ())
        if any(isinstance(self.steps[at], Extern) for at in readers):
            return "an operator of ATen reads the new value"
        if any(at > first for at in self._reads.get(name, ())):
            return "the old value is read later"
        if self._writes.get(name):
            return "the input is written elsewhere"
        return hindrance(step, made, given) or first

    def put(self, at: int, position: int, value: TensorRef, name: str) -> Compute:
        """Have a kernel write an input; return the kernel as it was.

        Args:
            at: Its place.
            position: Of the output that is copied into the input.
            value: That output.
            name: The input.
        """
        step = self.steps[at]
        assert isinstance(step, Compute)
        stores = tuple(
            replace(store, buffer=name, made=store.buffer)
            if store.buffer == value.buffer
            else store
            for store in step.body.stores
        )
        for reader in self._reads.get(value.buffer, ()):
            self.steps[reader] = _reading(self.steps[reader], value.buffer, name)
        self.steps[at] = replace(step, body=replace(step.body, stores=stores))
        self.outputs[position] = replace(value, buffer=name)
        del self.buffers[value.buffer]
        return step


def _reading(step: Step, buffer: str, name: str) -> Step:
    """Return a kernel that reads what was in ``buffer`` in one of the same layout, ``name``."""
    assert isinstance(step, Compute)

    def swap(node: Node) -> Node | None:
        if not isinstance(node, Load) or node.buffer != buffer:
            return None
        return load(name, node.index, node.dtype, node.mask, node.other)

    body = step.body
    return replace(step, body=body.moved(body.axes, body.reduce_axes, {}, swap))


def hindrance(step: Compute, made: Buffer, given: Buffer) -> str:
    """Return why a kernel must not write ``made`` over what it reads of ``given``; or nothing.

    Args:
        step: The kernel.
        made: One of its results.
        given: What nobody reads after it, of as many bytes; both without gaps, or of one layout.
    """
    if not _elementwise(step, made, given) and not _row_by_row(step, made, given):
        return "no element by itself"
    if made.device.type != "cpu" and not _read_before(step, made.name, given.name):
        return "threads of a GPU might read the old value after it is written"
    return ""


def _elementwise(step: Compute, made: Buffer, given: Buffer) -> bool:
    """Whether each element is written in the very turn of the loops that reads its old value."""
    body = step.body
    if body.has_reduction or body.reduce_axes or body.products:
        return False
    return _is_at_its_place(body, made, given)


def _row_by_row(step: Compute, made: Buffer, given: Buffer) -> bool:
    """Whether each row's one element is written by whom its old value is read for nothing else.

    Several threads, or programs that share a row, may read the old value, and some of them when it
    has been written; but only one of them writes, who has read it before.
    """
    body = step.body
    if not body.reduce_axes or body.products or body.sums:
        return False
    if not _is_at_its_place(body, made, given):
        return False
    (store,) = (store for store in body.stores if store.buffer == made.name)
    if {symbol for expr in store.index for symbol in expr.symbols()} & set(body.reduce_axes):
        return False
    return body.reads_for_itself(store, given.name)


def _is_at_its_place(body: Body, made: Buffer, given: Buffer) -> bool:
    """Whether a store is for each outer turn, and all old values read in it are of its element."""
    stores = [store for store in body.stores if store.buffer == made.name]
    if len(stores) != 1 or stores[0].updates:
        return False
    (store,) = stores
    used = {symbol for expr in store.index for symbol in expr.symbols()}
    if any(axis not in used and axis.size != 1 for axis in body.axes):
        return False
    loads = (load for load in body.loads() if load.buffer == given.name)
    if (made.shape, made.strides) == (given.shape, given.strides):
        return all(load.index == store.index for load in loads)
    return all(given.offset(load.index) == made.offset(store.index) for load in loads)


def _read_before(step: Compute, made: str, given: str) -> bool:
    """Whether each new value needs the old one of its place.

    The threads of a GPU that hold an element when it is loaded need not be those that store it;
    only what a value is computed from is surely there before the value.
    """
    (store,) = (store for store in step.body.stores if store.buffer == made)
    needed = set(walk((store.value,)))
    return all(load in needed for load in step.body.loads() if load.buffer == given)


__all__ = ["hindrance", "update_in_place"]
