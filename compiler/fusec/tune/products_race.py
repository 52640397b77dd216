"""One matrix product with its epilogue: BLAS and separate kernels against candidate kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fusec.codegen.common.product_axes import product_axes
from fusec.codegen.common.signatures import argument_buffers
from fusec.devices import GPU, is_gpu
from fusec.errors import FusecError
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr
from fusec.ir.node import Cast, Dot, Load, Node, cast, load, recording
from fusec.ir.program import Compute, Program, Settings
from fusec.ir.shapes import contiguous_strides
from fusec.kernel_source import Runnable
from fusec.schedule.loops import arrange_loops
from fusec.target_api.base import PythonTarget
from fusec.timing.measure import interleave_series
from fusec.tune.product_choice import ProductChoice

# Shares of the memory that is free: more than this is not taken for a measurement.
MEMORY_SHARE = 0.25
LOOK_SECONDS = 0.12  # for all candidates together
FINAL_SECONDS = 0.08  # for the best one and BLAS


@dataclass(frozen=True)
class _Contestant:
    """A candidate kernel: how it was asked for, and ready to run."""

    strategy: str
    settings: Settings
    kernel: Runnable


def race(
    step: Compute,
    program: Program,
    wanted: Sequence[tuple[str, Settings]],
    worth: float,
    target: PythonTarget,
) -> ProductChoice | None:
    """Measure; return what to take, or None where that was impossible.

    Args:
        step: The product with its epilogue; all sizes are known.
        program: What it is part of.
        wanted: The candidates: strategy and values of the tunables.
        worth: The share of the time that a kernel has to save.
        target: Whose kernels they are.
    """
    device = program.buffers[step.writes()[0]].device
    names = argument_buffers(step.body)
    needed = sum(_extent(program.buffers[name]) for name in names)
    with _disable_current_modes(), torch.no_grad(), _on_device(device):
        # real kernels, while a graph of fake tensors is being compiled
        if not _may_measure(3 * needed):
            return None
        tensors = {name: _example(program.buffers[name]) for name in names}
        blas = blas_and_kernels(step.body, program.buffers, tensors, target)
        with recording():
            sources = [
                target.emit(replace(step, strategy=kind, settings=values), program.buffers)
                for kind, values in wanted
            ]
        arguments = [tensors[name] for name in names]
        found = [
            _Contestant(kind, values, kernel)
            for (kind, values), kernel in zip(
                wanted, target.build_for(sources, arguments), strict=True
            )
            if kernel is not None
        ]
        blas()
        outputs = step.writes()
        expected = {name: tensors[name].clone() for name in outputs}
        right = [c for c in found if _agrees(c, arguments, outputs, tensors, expected)]
        if not right:
            return ProductChoice("no candidate kernel runs here")
        calls: dict[str, Callable[[], object]] = {"blas": blas}
        for number, each in enumerate(right):
            calls[str(number)] = lambda kernel=each.kernel: kernel(arguments, ())  # type: ignore[misc]
        first = _times(calls, LOOK_SECONDS)
        best = min((name for name in first if name != "blas"), key=first.__getitem__)
        final = _times({"blas": blas, "kernel": calls[best]}, FINAL_SECONDS)
    winner = right[int(best)]
    theirs, ours = (f"{final[name] * 1e6:.1f} us" for name in ("blas", "kernel"))
    if final["kernel"] > (1 - worth) * final["blas"]:
        return ProductChoice(
            f"BLAS and separate kernels take {theirs}, one kernel {ours} (measured)"
        )
    reason = f"one kernel takes {ours}, BLAS and separate kernels {theirs} (measured)"
    return ProductChoice(reason, winner.strategy, winner.settings)


def _times(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    series = interleave_series(calls, seconds=seconds, device=GPU, flush_l2=True)
    return {name: median(each.samples) for name, each in series.items()}


def _on_device(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device)


def _may_measure(needed: int) -> bool:
    """Whether there is memory for it, and nobody records what the stream does."""
    if torch.cuda.is_current_stream_capturing():
        return False
    free, _ = torch.cuda.mem_get_info()
    return needed <= free * MEMORY_SHARE


# -- tensors ------------------------------------------------------------------------------


def _numbers(exprs: Sequence[Expr]) -> list[int]:
    return [expr.constant or 0 for expr in exprs]


def _extent(buffer: Buffer) -> int:
    reach = zip(_numbers(buffer.shape), _numbers(buffer.strides), strict=True)
    return (1 + sum((size - 1) * step for size, step in reach)) * buffer.dtype.itemsize


def _example(buffer: Buffer) -> torch.Tensor:
    """Return a tensor like a buffer: random, as the power that a product draws depends on it.

    Integers of more than 8 bits are 0, for they may be positions. The user's random numbers are
    left alone.
    """
    elements = max(_extent(buffer) // buffer.dtype.itemsize, 1)
    generator = torch.Generator(buffer.device).manual_seed(0)
    if buffer.dtype.is_floating_point:
        memory = torch.randn(elements, generator=generator, device=buffer.device)
        memory = memory.to(buffer.dtype)
    elif buffer.dtype in (torch.int8, torch.uint8):
        memory = torch.randint(
            0, 8, (elements,), generator=generator, device=buffer.device, dtype=buffer.dtype
        )
    else:
        memory = torch.zeros(elements, dtype=buffer.dtype, device=buffer.device)
    return memory.as_strided(_numbers(buffer.shape), _numbers(buffer.strides))


def _agrees(
    contestant: _Contestant,
    arguments: Sequence[torch.Tensor],
    outputs: Sequence[str],
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
) -> bool:
    """Whether a kernel runs and gives what BLAS gives, to the roundings of the output's type."""
    for name in outputs:
        tensors[name].zero_()
    try:
        contestant.kernel(arguments, ())
        if is_gpu(arguments[0]):
            torch.cuda.synchronize()
    except Exception:  # too much shared memory, registers...: it is out
        return False
    for name in outputs:
        actual, wanted = tensors[name].double(), expected[name].double()
        epsilon = torch.finfo(tensors[name].dtype).eps if tensors[name].is_floating_point() else 0
        allowed = wanted.abs().max() * max(8 * epsilon, 1e-3)
        if not bool(((actual - wanted).abs() <= allowed).all()):
            return False
    return True


# -- BLAS and separate kernels ------------------------------------------------------------


def blas_and_kernels(
    body: Body,
    buffers: Mapping[str, Buffer],
    tensors: Mapping[str, torch.Tensor],
    target: PythonTarget,
) -> Callable[[], object]:
    """Return a call that does what ``body`` does: operands, BLAS, epilogue, one after the other."""
    parts = product_axes(body)
    node, inner, row, column = parts.node, parts.inner, parts.row, parts.column
    batch = () if parts.batch is None else (parts.batch,)
    known = dict(buffers)
    given = dict(tensors)
    calls: list[Callable[[], object]] = []

    def kernel(made: Body) -> None:
        source = target.emit(Compute("part", arrange_loops(made, known), "part"), known)
        arguments = [given[name] for name in argument_buffers(made)]
        (runnable,) = target.build_for([source], arguments)
        if runnable is None:
            raise FusecError("a kernel beside BLAS does not compile")
        calls.append(lambda: runnable(arguments, ()))

    def fresh(name: str, shape: tuple[Expr, ...], dtype: torch.dtype) -> Buffer:
        device = next(iter(tensors.values())).device
        known[name] = Buffer(name, shape, contiguous_strides(shape), dtype, device, name)
        given[name] = torch.empty(_numbers(shape), dtype=dtype, device=device)
        return known[name]

    with recording():
        operands = []
        for name, value, axes in (
            ("left", node.args[0], (*batch, row, inner)),
            ("right", node.args[1], (*batch, inner, column)),
        ):
            view = _view(value, axes, known, given)
            if view is None:
                shape = tuple(axis.size or Expr.of(1) for axis in axes)
                fresh(name, shape, value.dtype)
                index = tuple(Expr.of(axis) for axis in axes)
                kernel(Body(axes, (), (Store(name, index, value),)))
                view = given[name]
            operands.append(view)
        left, right = operands
        dtype = node.args[0].dtype
        loops = (*batch, row, column)
        shape = tuple(axis.size or Expr.of(1) for axis in loops)
        multiply = torch.bmm if batch else torch.mm
        written = _plain_target(body, node, known, dtype)
        out = given[written] if written else given[fresh("product", shape, dtype).name]
        calls.append(lambda: multiply(left, right, out=out))
        if not written:
            index = tuple(Expr.of(axis) for axis in loops)

            def swap(each: Node) -> Node | None:
                if not isinstance(each, Dot):
                    return None
                return cast(load("product", index, dtype), each.dtype)

            rest = tuple(axis for axis in body.reduce_axes if axis is not inner)
            kernel(body.moved(body.axes, rest, {inner: Expr.of(0)}, swap))

    def run() -> None:
        for call in calls:
            call()

    return run


def _plain_target(
    body: Body, node: Dot, buffers: Mapping[str, Buffer], dtype: torch.dtype
) -> str | None:
    """Return the buffer that BLAS could write itself: there is nothing but the product."""
    (store, *more) = body.stores
    value = store.value
    while isinstance(value, Cast) and not value.bitcast:
        value = value.args[0]
    plain = not more and value is node and buffers[store.buffer].dtype == dtype
    same = plain and len(store.index) == len(body.axes) and not body.reduce_axes[1:]
    return store.buffer if same else None


def _view(
    value: Node,
    axes: Sequence[Any],
    buffers: Mapping[str, Buffer],
    tensors: Mapping[str, torch.Tensor],
) -> torch.Tensor | None:
    """Return an operand as a strided view of a tensor, where it is one."""
    if not isinstance(value, Load) or value.mask is not None:
        return None
    offset = buffers[value.buffer].offset(value.index)
    if not offset.symbols() <= set(axes) or not all(offset.is_affine_in(axis) for axis in axes):
        return None
    strides = [offset.coefficient(axis) for axis in axes]
    rest = offset
    for axis, stride in zip(axes, strides, strict=True):
        rest = rest - Expr.of(axis) * stride
    if rest.constant is None or any(stride.constant is None for stride in strides):
        return None
    sizes = [axis.size.constant for axis in axes]
    return tensors[value.buffer].as_strided(sizes, _numbers(strides), rest.constant)


__all__ = ["blas_and_kernels", "race"]
