"""What the machine could do at best: copies and products of matrices, measured, not looked up."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from fusec.devices import CPU, GPU, is_gpu
from fusec.ir.index import Expr, Symbol
from fusec.ir.program import Extern, Program, Step, tensor_refs
from fusec.report import Timing, counted
from fusec.timing.measure import PRECISION, interleave

# Large enough not to stay in a cache, small enough to have beside a user's own tensors.
_MEMORY = {CPU: 64 << 20, GPU: 512 << 20}
_CACHE = {CPU: 256 << 10, GPU: 8 << 20}
_MATRIX = {CPU: 1024, GPU: 4096}
_OTHER_MATRIX = {CPU: 512, GPU: 4096}  # of other types, which some processors are slow at
_SECONDS = 0.08


@dataclass(frozen=True)
class MeasuredLimits:
    """What a device reached in three simple tasks.

    Attributes:
        device: ``cpu`` or ``cuda``.
        memory: Bytes a second of a copy that fits in no cache, read and written.
        cache: The same of one that fits in a cache near the cores.
        operations: float32 operations a second of a product of matrices.
        method: How that was measured.
    """

    device: str
    memory: float
    cache: float
    operations: float
    method: str


@dataclass(frozen=True)
class Limit:
    """How fast a graph could be: its inputs and outputs once through memory, its products at best.

    Attributes:
        bytes: Of inputs read and outputs written, once each.
        copy: Time of a copy that moves as many bytes, data left where it was, as for the graph.
        products: Operations of its products of matrices.
        seconds: The larger of the two times; a kernel that computes much may not reach it.
        eager: Bytes that eager moves for the same, an operator at a time; -1 where not counted.
        moved: Bytes that the compiled steps move; -1 where not counted.
    """

    bytes: int
    copy: Timing
    products: int
    seconds: float
    eager: int = -1
    moved: int = -1


@functools.lru_cache(maxsize=8)
def _machine(device: str, threads: int) -> MeasuredLimits:
    def tensors(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        source = torch.zeros(count // 4, device=device)
        return source, torch.empty_like(source)

    large, small = tensors(_MEMORY[device]), tensors(_CACHE[device])
    size = _MATRIX[device]
    a, b = torch.ones(size, size, device=device), torch.ones(size, size, device=device)
    out = torch.empty_like(a)
    precision = torch.get_float32_matmul_precision()
    times = interleave(
        {
            "memory": lambda: large[1].copy_(large[0]),
            "operations": lambda: torch.mm(a, b, out=out),
        },
        seconds=2 * _SECONDS,
        device=device,
    )
    # Not in turn with the others, which would leave nothing of it in the cache.
    copy = {"cache": lambda: small[1].copy_(small[0])}
    times |= interleave(copy, seconds=_SECONDS, device=device)
    # The fastest quartile: a limit is what the machine can do, not what it does on average.
    memory = 2 * _MEMORY[device] / times["memory"].low
    return MeasuredLimits(
        device,
        memory,
        # On a busy machine starting the threads costs more than a small copy.
        max(2 * _CACHE[device] / times["cache"].low, memory),
        2 * size**3 / times["operations"].low,
        f"copies of {_MEMORY[device] >> 20} MiB and {_CACHE[device] >> 10} KiB, a product of "
        f"{size} x {size} float32 matrices ({precision}), {counted(threads, 'thread')}",
    )


def machine(device: str = "cpu") -> MeasuredLimits:
    """Return what a device can do, measured at the first time (a quarter of a second)."""
    return _machine(device, torch.get_num_threads())


@functools.lru_cache(maxsize=32)
def _product_rate(device: str, dtype: torch.dtype, threads: int) -> float:
    size = _OTHER_MATRIX[device]
    try:
        a, b = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
        time = interleave({"product": lambda: a @ b}, seconds=_SECONDS, device=device)["product"]
    except RuntimeError:  # such products are computed in another way
        return _machine(device, threads).operations
    return 2 * size**3 / time.low


def product_rate(dtype: torch.dtype, device: str = CPU) -> float:
    """Return the operations a second of products of matrices of a type, measured once."""
    # A processor that has no products of halves computes them in float32, faster than torch's own.
    if dtype == torch.float32 or (not is_gpu(device) and dtype.itemsize < 4):
        return machine(device).operations
    return _product_rate(device, dtype, torch.get_num_threads())


class ProductCounter(FlopCounterMode):
    """Counts the operations of products of matrices while it is on, by the type of their operands.

    Attributes:
        operations: So far.
    """

    def __init__(self) -> None:
        super().__init__(display=False)
        self.operations: dict[torch.dtype, int] = {}

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        before = self.get_total_flops()
        result = super()._count_flops(func_packet, out, args, kwargs)  # type: ignore[no-untyped-call]
        if found := self.get_total_flops() - before:
            tensors = (a for a in pytree.tree_leaves(args) if isinstance(a, torch.Tensor))
            dtype = next((a.dtype for a in tensors if a.dtype.is_floating_point), torch.float32)
            self.operations[dtype] = self.operations.get(dtype, 0) + found
        return result


def copy_time(count: int, device: str = "cpu", seconds: float = 0.03) -> Timing:
    """Return the time of a copy that moves ``count`` bytes, half of them read.

    On the CPU the data stay in whatever cache they fit in, as they do when a graph is timed.
    """
    source = torch.zeros(max(count // 8, 1), device=device)
    target = torch.empty_like(source)
    return interleave(
        {"copy": lambda: target.copy_(source)},
        seconds=seconds,
        device=device,
        flush_l2=is_gpu(device),
        precision=PRECISION,
    )["copy"]


def least_bytes(program: Program, sizes: Mapping[Symbol, int]) -> int:
    """Return the bytes of a program's inputs and outputs, once each.

    Args:
        program: As it runs.
        sizes: Of its symbolic sizes.
    """
    read = {name for step in program.steps for name in step.reads()}
    names = [name for name in program.inputs if name in program.buffers and name in read]
    names += sorted({ref.buffer for ref in tensor_refs(program.outputs)} - set(program.inputs))
    total = 0
    for buffer in (program.buffers[name] for name in names if name in program.buffers):
        count = buffer.elements.evaluate(lambda symbol: sizes[symbol])
        assert isinstance(count, int)
        total += count * buffer.dtype.itemsize
    return total


def moved_bytes(
    program: Program, sizes: Mapping[Symbol, int], known: Mapping[str, int] | None = None
) -> int:
    """Return the bytes that a program's steps move: what each reads and writes, once each.

    Args:
        program: As it runs.
        sizes: Of its symbolic sizes.
        known: Of steps whose bytes are known better, by name.
    """
    total = 0
    for step in program.steps:
        if isinstance(step, Extern) and step.is_plumbing:
            continue
        if known and known.get(step.name, -1) >= 0:
            total += known[step.name]
            continue
        total += step_bytes(program, step, sizes)
    return total


def step_bytes(program: Program, step: Step, sizes: Mapping[Symbol, int]) -> int:
    """Return the bytes of the tensors that a step reads and writes, once each.

    Of a tensor that a call is given a part of (``x[0]``), that part counts, as it does in eager.
    """

    def value(length: Expr) -> int:
        found = length.evaluate(lambda symbol: sizes[symbol])
        assert isinstance(found, int)
        return found

    given: dict[str, dict[object, int]] = defaultdict(dict)
    if isinstance(step, Extern):
        for ref in tensor_refs((step.args, tuple(step.kwargs.values()))):
            # What is expanded lies there once, and what is transposed is the same.
            pairs = list(zip(ref.shape, ref.strides, strict=True))
            lengths = [value(size) for size, stride in pairs if value(stride) or not value(size)]
            place = ref.offset, frozenset(pairs), ref.dtype
            given[ref.buffer][place] = math.prod(lengths) * ref.dtype.itemsize
    total = 0
    for name, is_read in [(n, True) for n in step.reads()] + [(n, False) for n in step.writes()]:
        if (buffer := program.buffers.get(name)) is not None:
            whole = value(buffer.elements) * buffer.dtype.itemsize
            seen = sum(given[name].values()) if is_read and name in given else whole
            total += min(seen, whole)
    return total


def limit(count: int, products: Mapping[torch.dtype, int], device: str = "cpu") -> Limit:
    """Return how fast something could be.

    Args:
        count: Bytes of its inputs and outputs: see ``least_bytes``.
        products: Operations of its products of matrices, by their operands' type.
        device: Where it runs.
    """
    copy = copy_time(count, device)
    computing = sum(work / product_rate(dtype, device) for dtype, work in products.items())
    return Limit(count, copy, sum(products.values()), max(copy.median, computing))


__all__ = [
    "Limit",
    "MeasuredLimits",
    "ProductCounter",
    "copy_time",
    "least_bytes",
    "limit",
    "machine",
    "moved_bytes",
    "product_rate",
    "step_bytes",
]
