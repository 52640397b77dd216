"""A host program as one native call: for graphs that are kernels, products and allocations only.

All kernels run one after the other, outputs are tensors of their own, and what only kernels of
this program write and read shares one block of memory, as far as lifetimes allow.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from fusec.call import native
from fusec.call.epilogue import Epilogue
from fusec.call.huge_pages import POOLED_BYTES, empty_cpu, empty_large
from fusec.call.launch import CppRunnable
from fusec.call.native import products
from fusec.call.native.products import NativeProduct
from fusec.call.native_layout import lay_out, place_temporaries
from fusec.codegen.common.signatures import argument_buffers, body_sizes
from fusec.codegen.host_program import Group
from fusec.codegen.host_values import buffer_bytes
from fusec.ir.body import Buffer
from fusec.ir.index import Expr, Symbol
from fusec.ir.index_text import expr_text
from fusec.ir.program import Compute, Program, Step, TensorRef
from fusec.memory import readable
from fusec.memory.poison import poison_scratch, poisoned

SLOT, SCRATCH, NUMBER, SIZE, INPUT = range(5)  # kinds of kernel arguments, as in native/program.cpp
MOST_ARGUMENTS = 63
# A program over fewer bytes, of fewer operations, keeps Python's lock: it is done sooner than the
# lock is back.
QUIET_BYTES = 1 << 18
QUIET_OPERATIONS = 1 << 20


class NativeProgram:
    """A compiled part's host program, native.

    Attributes:
        call: Takes the inputs, returns the outputs in a list.
        scratch: Bytes of the block that the temporaries share.
    """

    def __init__(self, call: Any, names: Sequence[str], scratch: int) -> None:
        self.call = call
        self.scratch = scratch
        self._numbers = {name: number for number, name in enumerate(names)}

    def link(self, name: str, runnable: CppRunnable) -> None:
        """Launch ``runnable`` as kernel ``name`` from now on, if that is one of its kernels."""
        if name in self._numbers:
            self.call.link(self._numbers[name], runnable.address, runnable.journal)


def native_program(
    program: Program,
    runnables: Mapping[str, object],
    failed: Callable[[str, int], object],
    work: Mapping[str, int],
    *,
    frees_inputs: bool = False,
    epilogue: Epilogue | None = None,
    check: Any = None,
) -> NativeProgram | None:
    """Return a program as one native call; None if it is more, or there is no way yet.

    Args:
        program: The scheduled program.
        runnables: The built kernel of every step that computes.
        failed: Raises what a kernel's status other than 0 stands for.
        work: Operations of each kernel; -1 if nobody knows.
        frees_inputs: Whether inputs are to be freed as soon as nobody needs them, where they are
            large. A native program holds them to its end.
        epilogue: What becomes of the outputs, but for marks on them.
        check: The native check of the inputs; None where somebody else has looked at them.
    """
    found = native.types()
    layout = lay_out(program, runnables, epilogue, frees_inputs=frees_inputs)
    if found is None or layout is None:
        return None
    steps, allocated = layout.steps, layout.allocated
    numbers = {symbol: (SIZE, number) for number, symbol in enumerate(program.sizes)}
    kernels = _kernels(
        steps, program, runnables, layout.slots, layout.places, numbers, layout.products
    )
    if kernels is None:
        return None
    largest = max((buffer_bytes(buffer) or 0 for buffer in allocated), default=0)
    launched = [step.name for step in steps]
    multiplied = layout.products  # kept with the call, which points to them
    operations = [multiplied[n].operations if n in multiplied else work[n] for n in launched]

    def raise_failure(number: int, status: int) -> object:
        if launched[number] in multiplied:
            raise products.failed()
        return failed(launched[number], status)

    call = found.Program(
        len(program.inputs),
        kernels,
        tuple(
            ((), (), buffer.dtype)
            if program.sizes
            else (_constants(buffer.shape), _constants(buffer.strides), buffer.dtype)
            for buffer in allocated
        ),
        tuple(
            (layout.slots[value.buffer], None) if isinstance(value, TensorRef) else (None, value)
            for value in layout.outputs
        ),
        layout.scratch,
        poisoned(empty_large if largest >= POOLED_BYTES else empty_cpu),
        torch.get_num_threads,
        readable.address,
        raise_failure,
        _shapes(program, allocated) if program.sizes else None,
        native.exchange(),
        not _is_quiet(layout.bytes, operations),
        check,
    )
    poison_scratch(call, steps, program.buffers, layout.places, _sizes(program, layout.places))
    if epilogue is not None and epilogue.changes_outputs:
        call.epilogue = (epilogue.updates, torch.Tensor.copy_, epilogue.views)
    return NativeProgram(call, launched, layout.scratch)


def _kernels(
    steps: Iterable[Step],
    program: Program,
    runnables: Mapping[str, object],
    slots: Mapping[str, int],
    places: Mapping[str, int],
    numbers: Mapping[Symbol, tuple[int, int]],
    multiplied: Mapping[str, NativeProduct],
) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...] | None:
    """Return each kernel's address and where its arguments are; None if that cannot be said.

    Args:
        steps: The kernels.
        program: The program that they are from.
        runnables: The built kernels, by name.
        slots: Tensors that the call knows, to their numbers.
        places: Temporaries, to their byte offsets.
        numbers: Symbolic sizes, to the kind of argument and its number.
        multiplied: The steps that are products, by name.
    """
    found = []
    for step in steps:
        arguments: list[tuple[int, int]] = []
        sizes: tuple[Symbol, ...] = ()
        if isinstance(step, Compute):
            function = runnables[step.name].address  # type: ignore[attr-defined]
            buffers = argument_buffers(step.body)
            sizes = body_sizes(step.body, program.buffers)
        else:
            product = multiplied[step.name]
            function, buffers = product.function, product.buffers
            arguments.append((NUMBER, ctypes.addressof(product.record)))
        for name in buffers:
            if name in places:
                arguments.append((SCRATCH, places[name]))
            elif name in slots:
                arguments.append((SLOT, slots[name]))
            else:
                return None
        arguments += [numbers[symbol] for symbol in sizes]
        if len(arguments) > MOST_ARGUMENTS:
            return None
        found.append((function, tuple(arguments)))
    return tuple(found)


def native_group(
    group: Group,
    program: Program,
    runnables: Mapping[str, object],
    failed: Callable[[str, int], object],
    work: Mapping[str, int],
) -> NativeProgram | None:
    """Return some of a program's kernels as one native call; None if there is no way yet.

    Args:
        group: The kernels, and what the call takes.
        program: The scheduled program that they are from.
        runnables: As for ``native_program``.
        failed: Likewise.
        work: Likewise.
    """
    found = native.types()
    if found is None or not all(
        isinstance(runnables.get(s.name), CppRunnable) for s in group.steps
    ):
        return None
    places, scratch = place_temporaries(group.steps, program.buffers, group.inner)
    slots = {name: number for number, name in enumerate(group.buffers)}
    numbers = {symbol: (INPUT, len(slots) + n) for n, symbol in enumerate(group.sizes)}
    kernels = _kernels(group.steps, program, runnables, slots, places, numbers, {})
    if kernels is None:
        return None
    launched = [step.name for step in group.steps]
    total = sum(buffer_bytes(program.buffers[n]) or 0 for n in (*group.buffers, *group.inner))
    call = found.Program(
        len(group.buffers) + len(group.sizes),
        kernels,
        (),
        (),
        scratch,
        empty_cpu,
        torch.get_num_threads,
        readable.address,
        lambda number, status: failed(launched[number], status),
        None,
        native.exchange(),
        not _is_quiet(total, [work[name] for name in launched]),
        None,  # the host program has looked at what comes from outside
    )
    poison_scratch(call, group.steps, program.buffers, places, _sizes(program, places))
    return NativeProgram(call, launched, scratch)


def python_group(
    group: Group,
    program: Program,
    functions: Mapping[str, Any],
    failed: Callable[[str, int], object],
) -> Callable[..., None]:
    """Return the same as ``native_group``, by Python.

    Args:
        group: As for ``native_group``.
        program: Likewise.
        functions: Kernel name to what launches it, looked up at each call.
        failed: As for ``native_group``.
    """
    allocate = poisoned(empty_cpu)

    def launch(*given: Any) -> None:
        named = dict(zip(group.buffers, given, strict=False))
        sizes = dict(zip(group.sizes, given[len(group.buffers) :], strict=True))
        for name in group.inner:
            buffer = program.buffers[name]
            shape, strides = _constants(buffer.shape), _constants(buffer.strides)
            named[name] = allocate(shape, strides, buffer.dtype)
        threads = torch.get_num_threads()
        for step in group.steps:
            pointers = [readable.address(named[name]) for name in argument_buffers(step.body)]
            extra = [sizes[symbol] for symbol in body_sizes(step.body, program.buffers)]
            status = functions[step.name](*pointers, *extra, threads)
            if status:
                failed(step.name, status)

    return launch


def _sizes(program: Program, names: Iterable[str]) -> dict[str, int | None]:
    return {name: buffer_bytes(program.buffers[name]) for name in names}


def _is_quiet(size: int | None, work: Sequence[int]) -> bool:
    """Whether kernels are over before another thread could run: bytes, operations of each."""
    known = size is not None and -1 not in work
    return known and (size or 0) < QUIET_BYTES and sum(work) < QUIET_OPERATIONS


def _constants(values: Sequence[Expr]) -> tuple[int, ...]:
    constants = tuple(value.constant for value in values)
    assert None not in constants  # no symbol is without a source
    return constants  # type: ignore[return-value]


def _shapes(program: Program, buffers: Sequence[Buffer]) -> Callable[..., Any]:
    """Return a function of the inputs: all symbolic sizes, then each buffer's shape and strides."""
    names: dict[Symbol, str] = {}
    inputs = {name: f"input{i}" for i, name in enumerate(program.inputs)}
    lines = []
    for i, (symbol, (source, dim)) in enumerate(program.sizes.items()):
        names[symbol] = f"s{i}"
        given = inputs[source]
        lines.append(f"    s{i} = {given if dim is None else f'{given}.size({dim})'}")

    def pack(values: Sequence[str]) -> str:
        return f"({', '.join(values)}{',' if len(values) == 1 else ''})"

    def expressions(values: Sequence[Expr]) -> str:
        return pack([expr_text(value, lambda symbol: names[symbol]) for value in values])

    results = [pack(list(names.values()))]
    results += [pack([expressions(b.shape), expressions(b.strides)]) for b in buffers]
    head = f"def shapes({', '.join(inputs.values())}):"
    source = "\n".join([head, *lines, f"    return {pack(results)}", ""])
    namespace: dict[str, Any] = {"math": math}
    exec(compile(source, "<shapes>", "exec"), namespace)
    shapes: Callable[..., Any] = namespace["shapes"]
    return shapes


__all__ = ["NativeProgram", "native_group", "native_program", "place_temporaries", "python_group"]
