"""Where the tensors of a native program are: given, allocated, or in the block of temporaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusec.call.epilogue import Epilogue
from fusec.call.launch import CppRunnable
from fusec.call.native.products import NativeProduct, native_product
from fusec.codegen.host_program import GROUPED_BYTES
from fusec.codegen.host_values import buffer_bytes
from fusec.ir.body import Buffer
from fusec.ir.program import Extern, Program, Step, TensorRef
from fusec.memory.placement import first_fit

ALIGNMENT = 64


@dataclass(frozen=True)
class MemoryLayout:
    """Where the tensors of a program are.

    Attributes:
        steps: All of the program's, each a kernel or a product.
        products: The products, by name.
        outputs: What it returns; None for what becomes something else afterwards.
        places: Byte offsets, in the block that temporaries share, of those that are there.
        scratch: The bytes of that block.
        slots: Inputs and what is allocated, to their numbers in the call.
        allocated: What each call allocates.
        bytes: Of all buffers; None where that is not known before a call.
    """

    steps: Sequence[Step]
    products: Mapping[str, NativeProduct]
    outputs: Sequence[Any]
    places: Mapping[str, int]
    scratch: int
    slots: Mapping[str, int]
    allocated: Sequence[Buffer]
    bytes: int | None


def lay_out(
    program: Program,
    runnables: Mapping[str, object],
    epilogue: Epilogue | None,
    *,
    frees_inputs: bool,
) -> MemoryLayout | None:
    """Return where a program's tensors are; None if it is more than kernels and products."""
    steps = program.steps
    multiplied = _products(program, runnables)
    if multiplied is None:
        return None
    replaced = epilogue.replaced() if epilogue is not None else set()
    outputs = [None if i in replaced else each for i, each in enumerate(program.outputs)]
    if not steps or not all(_is_plain(program, outputs, value) for value in outputs):
        return None
    total = _total_bytes(program)
    # Where there is a product, what is large is freed as soon as nobody needs it.
    if (frees_inputs or multiplied) and (total is None or total > GROUPED_BYTES):
        return None
    refs = [value for value in outputs if isinstance(value, TensorRef)]
    returned = {ref.buffer for ref in refs}
    written = dict.fromkeys(name for step in steps for name in step.writes())
    made = [name for name in written if name not in program.inputs]
    if not returned <= {*made, *program.inputs}:
        return None
    inner = [name for name in made if name not in returned]
    places, scratch = place_temporaries(steps, program.buffers, inner)
    allocated = [name for name in made if name not in places]
    slots = {name: i for i, name in enumerate((*program.inputs, *allocated))}
    seen_as = {ref.buffer: ref for ref in refs}
    buffers = [_seen_as(program.buffers[name], seen_as.get(name)) for name in allocated]
    return MemoryLayout(steps, multiplied, outputs, places, scratch, slots, buffers, total)


def _total_bytes(program: Program) -> int | None:
    """Return how large everything is together that steps read or write; None where nobody knows."""
    names = {name for step in program.steps for name in (*step.reads(), *step.writes())}
    known = [buffer_bytes(program.buffers[name]) for name in names]
    return None if None in known else sum(size or 0 for size in known)


def _products(program: Program, runnables: Mapping[str, object]) -> dict[str, NativeProduct] | None:
    """Return a program's products; None if another step is no native kernel on the CPU."""
    names = {name for step in program.steps for name in (*step.reads(), *step.writes())}
    if any(program.buffers[name].device.type != "cpu" for name in names):
        return None
    found = {}
    for step in program.steps:
        if isinstance(step, Extern):
            product = native_product(step, program.buffers)
            if product is None:
                return None
            found[step.name] = product
        elif not isinstance(runnables.get(step.name), CppRunnable):
            return None
    return found


def place_temporaries(
    steps: Sequence[Step], buffers: Mapping[str, Buffer], names: Sequence[str]
) -> tuple[dict[str, int], int]:
    """Lay out temporaries of constant size in one block: first fit, by lifetime.

    Args:
        steps: They run in order.
        buffers: By name.
        names: Buffers that only these steps write and read.

    Returns:
        Offset by name, and the size of the block; buffers of symbolic size are left out.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, step in enumerate(steps):
        for name in (*step.reads(), *step.writes()):
            first.setdefault(name, position)
            last[name] = position
    sizes = {name: buffer_bytes(buffers[name]) for name in names}
    known = {name: size for name, size in sizes.items() if size is not None}
    return first_fit(known, first, last, ALIGNMENT)


def _is_plain(program: Program, outputs: Sequence[object], value: object) -> bool:
    """Whether an output is a tensor of its own, or the same in every call."""
    if not isinstance(value, TensorRef):
        return value is None or isinstance(value, (bool, int, float))
    buffer = program.buffers[value.buffer]
    if value.is_all_of(buffer):
        return True
    once = sum(isinstance(v, TensorRef) and v.buffer == value.buffer for v in outputs) == 1
    own = once and value.buffer not in program.inputs and not program.sizes
    if not own or value.dtype != buffer.dtype or value.offset != 0:
        return False
    return buffer_bytes(_seen_as(buffer, value)) == buffer_bytes(buffer)


def _seen_as(buffer: Buffer, ref: TensorRef | None) -> Buffer:
    """Return a buffer with the sizes and strides that its only user sees."""
    return buffer if ref is None else replace(buffer, shape=ref.shape, strides=ref.strides)


__all__ = ["MemoryLayout", "lay_out", "place_temporaries"]
