"""What a program must satisfy, whatever made it: checked between the stages.

``check_program`` looks at the whole (names, sizes, the order of steps), ``body_problems`` at one
loop nest (axes, places, types, bounds).  Both return what is wrong as values; nothing is repaired.
On in every test, and for anybody with ``FUSEC_VERIFY=1``; the order of steps as scheduled, which
costs next to nothing, is looked at always: what nobody has written is read as whatever lay there.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence

from fusec.errors import FusecError
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.body_verifier import Problem, body_problems
from fusec.ir.index import Expr
from fusec.ir.program import Compute, Extern, Program, TensorRef, tensor_refs

_VERIFY = "FUSEC_VERIFY"


def verifies() -> bool:
    """Whether what a stage yields is looked at before the next one sees it."""
    return os.environ.get(_VERIFY, "") not in ("", "0")


# What makes it pointless to look at loops and views.
_NO_GROUND = frozenset({"unknown_buffer", "stride_count", "buffer_name"})


class InvalidProgram(FusecError):
    """A stage of the compiler yielded something that no later stage may see: a defect of ours."""


def require(stage: str, problems: list[Problem]) -> None:
    """Raise if there are problems.

    Raises:
        InvalidProgram: With the first of them.
    """
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise InvalidProgram(f"after {stage}: {problems[0]}{more}", "please report it")


# -- programs ---------------------------------------------------------------------------------


def check_program(program: Program) -> list[Problem]:
    """Return what is wrong with a program, as lowered or as scheduled."""
    found = [*_names(program), *_sizes(program), *order_problems(program)]
    if not {problem.kind for problem in found} & _NO_GROUND:
        found += _outputs(program)
        for step in program.steps:
            if isinstance(step, Compute):
                found += body_problems(step.body, program.buffers, step.name)
        found += _stored_once(program)
    return found


def _names(program: Program) -> Iterator[Problem]:
    for name, count in Counter(program.inputs).items():
        if count > 1:
            yield Problem("repeated_input", name, "there are two inputs of this name")
    for name, count in Counter(step.name for step in program.steps if step.name).items():
        if count > 1:
            yield Problem("repeated_step", name, "there are two steps of this name")
    for name, buffer in program.buffers.items():
        if buffer.name != name:
            yield Problem("buffer_name", name, f"the buffer calls itself {buffer.name}")
        if len(buffer.strides) != len(buffer.shape):
            yield Problem("stride_count", name, "there are not as many strides as sizes")
        for size in buffer.shape:
            if size.constant is not None and size.constant < 0:
                yield Problem("negative_size", name, f"a size is {size}")
        for stride in buffer.strides:
            if stride.constant is not None and stride.constant < 0:
                yield Problem("negative_stride", name, f"a stride is {stride}")


def _sizes(program: Program) -> Iterator[Problem]:
    for symbol, (source, dim) in program.sizes.items():
        if source not in program.inputs:
            yield Problem(
                "size_source", symbol.name, f"is read from {source}, which is not an input"
            )
        elif dim is not None:
            buffer = program.buffers.get(source)
            if buffer is None or not 0 <= dim < len(buffer.shape):
                yield Problem("size_source", symbol.name, f"{source} has no dimension {dim}")
    for name, buffer in program.buffers.items():
        for expr in (*buffer.shape, *buffer.strides):
            yield from _unbound(program, expr, name)
    for step in program.steps:
        if isinstance(step, Compute):
            axes = (*step.body.axes, *step.body.reduce_axes)
            for axis in axes:
                if axis.size is not None:
                    yield from _unbound(program, axis.size, step.name)


def _unbound(program: Program, expr: Expr, where: str) -> Iterator[Problem]:
    for symbol in expr.symbols():
        if symbol.kind != "size":
            yield Problem("size_of_axis", where, f"a size depends on the loop axis {symbol}")
        elif symbol not in program.sizes:
            yield Problem("unbound_size", where, f"the size {symbol} is read from nowhere")


def order_problems(program: Program) -> Iterator[Problem]:
    """Yield what a step reads before it is there, or makes anew, or nobody knows."""
    there = {name for name in program.inputs if name in program.buffers}
    for step in program.steps:
        label = step.name or "a call"
        reads = step.reads()
        for name in reads:
            if name not in program.buffers:
                yield Problem("unknown_buffer", label, f"reads {name}, which does not exist")
            elif name not in there and not _fills(step, name):
                yield Problem("read_before_write", label, f"reads {name}, which is not there yet")
        for name in step.writes():
            if name not in program.buffers:
                yield Problem("unknown_buffer", label, f"writes {name}, which does not exist")
            if isinstance(step, Extern) and name in step.outputs and name in there:
                yield Problem("defined_twice", label, f"makes {name}, which is there already")
            there.add(name)
        if isinstance(step, Extern):
            for name in step.mutates:
                if name not in reads:
                    yield Problem("mutates_unread", label, f"changes {name}, which it is not given")


def _fills(step: Compute | Extern, name: str) -> bool:
    """Whether a step reads only what it has written itself: updates of what it fills first."""
    if not isinstance(step, Compute):
        return False
    stores = [store for store in step.body.stores if store.buffer == name]
    loads = any(load.buffer == name for load in step.body.loads())
    return not loads and (not stores[0].updates or all(s.mode == "some" for s in stores))


def _outputs(program: Program) -> Iterator[Problem]:
    written = {name for step in program.steps for name in step.writes()} | set(program.inputs)
    for ref in tensor_refs(program.outputs):
        if ref.buffer not in program.buffers:
            yield Problem("unknown_buffer", "output", f"{ref.buffer} does not exist")
        elif ref.buffer not in written:
            yield Problem("output_not_written", "output", f"nothing writes {ref.buffer}")
        elif ref.buffer not in program.inputs:
            yield from _reach(ref, program.buffers[ref.buffer])


def _reach(ref: TensorRef, buffer: Buffer) -> Iterator[Problem]:
    """Check that a view stays within its buffer, where all sizes are known."""
    sizes, strides = _constants(ref.shape), _constants(ref.strides)
    own, steps = _constants(buffer.shape), _constants(buffer.strides)
    offset = ref.offset.constant
    if sizes is None or strides is None or own is None or steps is None or offset is None:
        return
    if 0 in sizes or ref.dtype.itemsize != buffer.dtype.itemsize:
        return
    last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    there = sum((n - 1) * s for n, s in zip(own, steps, strict=True))
    if 0 in own or last > there or offset < 0:
        yield Problem("view_out_of_bounds", "output", f"a view of {ref.buffer} ends outside of it")


def _constants(exprs: Sequence[Expr]) -> list[int] | None:
    found = [e.constant for e in exprs]
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None


def _stored_once(program: Program) -> Iterator[Problem]:
    """Check that stores fill what they make: as many points as there are elements."""
    filled: Counter[str] = Counter()
    plain: dict[str, bool] = {}
    for step in program.steps:
        if not isinstance(step, Compute):
            for name in step.writes():
                plain[name] = False
            continue
        for store in step.body.stores:
            count = _points(step.body, store)
            simple = store.mode == "set" and not store.made and count is not None
            plain[store.buffer] = plain.get(store.buffer, True) and simple
            filled[store.buffer] += count or 0
    for name, simple in plain.items():
        elements = program.buffers[name].elements.constant
        judged = simple and name not in program.inputs and elements is not None
        if judged and filled[name] != elements:
            text = f"{filled[name]} of {elements} elements are stored"
            yield Problem("not_stored_once", name, text)


def _points(body: Body, store: Store) -> int | None:
    """Return at how many points a store writes; None where that is not known."""
    if any(axis.size is not None and axis.size.constant == 0 for axis in body.axes):
        return 0
    symbols = {symbol for expr in store.index for symbol in expr.symbols()}
    sizes = [axis.size for axis in (*body.axes, *body.reduce_axes) if axis in symbols]
    if any(s.kind != "axis" for s in symbols) or any(s is None for s in sizes):
        return None
    constants = [size.constant for size in sizes if size is not None]
    return None if None in constants else math.prod(c for c in constants if c is not None)


# -- bodies -----------------------------------------------------------------------------------


__all__ = ["InvalidProgram", "check_program", "order_problems", "require", "verifies"]
