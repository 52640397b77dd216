"""torch's operator database: an operator's samples of one dtype, forward or backward."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_leaves, tree_map

from fusec.memory.strided import clone_strided
from ops.corners import corners
from ops.databases import Asked, Unit, short
from ops.judge import Case, Sample, Wrap, judge
from support import repro
from support.opinfo import RANDOM_OR_UNINITIALIZED, name_of, quiet

FORWARD = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
    torch.complex32,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint64,
    torch.uint32,
    torch.uint16,
    torch.uint8,
    torch.bool,
)
BACKWARD = (torch.float32, torch.float64, torch.complex64)
CORNER = (torch.float32, torch.bfloat16, torch.complex64, torch.int32, torch.uint8)
STRIDED = (torch.float32, torch.float16, torch.int64)
_MOST_COPIED = 1 << 20  # bytes
DIRECTIONS = {"forward": FORWARD, "backward": BACKWARD, "corner": CORNER, "strided": STRIDED}
# Operators that ATen's own kernels compute, whatever the compiler.
LIBRARIES = ("linalg", "fft", "sparse", "sort", "svd", "lu", "cholesky", "qr", "geqrf", "ormqr")
LIBRARIES += ("stft", "istft", "matrix_exp", "pinverse", "triangular_solve", "lobpcg", "eig")
LIBRARIES += ("topk", "kthvalue", "msort", "median", "mode", "unique", "symeig", "householder")


def names() -> list[str]:
    """Return the operators' names, with their variants."""
    return list(dict.fromkeys(name_of(op) for op in op_db))


def find(name: str) -> OpInfo:
    """Return an operator of the database by the name that reports use."""
    return next(op for op in op_db if name_of(op) == name)


def asked_units(name: str, asked: Asked) -> Iterator[Unit]:
    """Yield what there is to run of an operator."""
    op = find(name)
    for direction in DIRECTIONS:
        if direction not in asked.directions:
            continue
        for dtype in _dtypes(op, direction):
            if short(dtype) in asked.dtypes:
                run = partial(_run_unit, op, direction, dtype, asked.samples, asked.dynamic)
                yield Unit(short(dtype), direction, run)


def units(
    op: OpInfo, forward: bool, backward: bool, corner: bool = False
) -> Iterator[tuple[str, torch.dtype]]:
    """Yield the directions and dtypes that an operator supports on the CPU."""
    wanted = {"forward": forward, "backward": backward, "corner": corner}
    for direction in (name for name, chosen in wanted.items() if chosen):
        yield from ((direction, dtype) for dtype in _dtypes(op, direction))


def _dtypes(op: OpInfo, direction: str) -> list[torch.dtype]:
    if direction == "backward":
        supported = op.supported_backward_dtypes("cpu") if op.supports_autograd else set()
    else:
        supported = op.supported_dtypes("cpu")
    return [dtype for dtype in DIRECTIONS[direction] if dtype in supported]


def run_unit(
    op: OpInfo,
    direction: str,
    dtype: torch.dtype,
    backend: str,
    limit: int,
    *,
    dynamic: bool = False,
) -> list[Sample]:
    """Run the first samples of an operator.

    Args:
        op: The operator.
        direction: ``forward``, ``backward``, ``corner`` or ``strided``: not contiguous.
        dtype: Of its inputs.
        backend: ``fusec`` or ``inductor``.
        limit: Samples at most.
        dynamic: Whether every size is symbolic.
    """
    found = []
    torch.manual_seed(seed_of(op, dtype))
    with quiet():
        for values, variant, flipped in _inputs(op, direction, dtype, limit):
            case = case_of(op, values, direction == "backward", flipped=flipped, dynamic=dynamic)
            state = torch.get_rng_state()  # of the samples, which are made one by one
            result = judge(case, backend, dynamic=dynamic)
            torch.set_rng_state(state)
            if result is not None:
                found.append(replace(result, variant=variant))
    return found


def _run_unit(
    op: OpInfo, direction: str, dtype: torch.dtype, limit: int, dynamic: bool, backend: str
) -> list[Sample]:
    return run_unit(op, direction, dtype, backend, limit, dynamic=dynamic)


def seed_of(op: OpInfo, dtype: torch.dtype) -> int:
    """Return the seed that an operator's samples are made with, whatever ran before."""
    return zlib.crc32(f"{name_of(op)} {short(dtype)}".encode())


def _inputs(
    op: OpInfo, direction: str, dtype: torch.dtype, limit: int
) -> Iterator[tuple[Any, str, bool]]:
    """Yield inputs, how they were changed, and whether to flip them within."""
    if direction == "corner":
        for corner in corners(op, dtype):
            yield corner.values, corner.name, corner.flipped
        return
    given = op.sample_inputs("cpu", dtype, requires_grad=direction == "backward")
    for sample, _ in zip(given, range(limit), strict=False):
        made = sample.noncontiguous() if direction == "strided" else sample
        yield (made.input, tuple(made.args), dict(made.kwargs)), "", False


def case_of(
    op: OpInfo, values: Any, backward: bool, *, flipped: bool = False, dynamic: bool = False
) -> Case:
    """Return an operator's call on some inputs as a case."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if flipped:
            args, kwargs = tree_map(_flip, (args, kwargs))
        return op.op(*args, **kwargs)

    def run(wrap: Wrap, *, exact: bool) -> tuple[Any, Any]:
        inputs = tree_map(raised, values) if exact else copy(values)
        return results(wrap(call), inputs, backward), inputs

    def program() -> str:
        return repro.program(
            f"{name_of(op)}{', its inputs flipped within' if flipped else ''}",
            repro.operator_text(op, flipped=flipped),
            values,
            backward=backward,
            dynamic=dynamic,
        )

    determined = not any(word in op.name for word in RANDOM_OR_UNINITIALIZED)
    return Case(run, program, determined)


def _flip(value: Any) -> Any:
    strided = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return value.flip(-1) if strided and value.ndim else value


def raised(value: Any) -> Any:
    """Return a tensor in float64; anything else as it is."""
    if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
        wide = torch.complex128 if value.is_complex() else torch.float64
        return value.detach().to(wide).requires_grad_(value.requires_grad)
    return value


def copy(values: Any) -> Any:
    """Return copies of tensors; with their strides, gaps and overlaps, where they have such.

    What lies in gaps is copied as well: ``as_strided`` reads it.
    """

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with torch.no_grad():
            if _is_part(value):
                whole = value.untyped_storage().clone()
                made = torch.empty(0, dtype=value.dtype, device=value.device)
                made.set_(whole, value.storage_offset(), value.shape, value.stride())
                return made.requires_grad_(value.requires_grad)
            made = value.detach().clone()
            if value.layout == torch.strided and made.stride() != value.stride():
                made = clone_strided(value)
        return made.requires_grad_(value.requires_grad)

    return tree_map(one, values)


def _is_part(value: torch.Tensor) -> bool:
    """Whether a tensor has only some of the elements of a memory, which is not large."""
    if value.layout != torch.strided or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return False
    there = value.untyped_storage().nbytes()
    return value.numel() * value.itemsize < there <= _MOST_COPIED and not (
        value.is_neg() or value.is_conj()
    )


def results(call: Callable[..., Any], values: Any, backward: bool) -> Any:
    """Return the outputs, or with ``backward`` the gradients of the inputs too."""
    first, args, kwargs = values
    outputs = call(first, *args, **kwargs)
    if not backward:
        return outputs
    leaves = [t for t in tree_leaves(values) if isinstance(t, torch.Tensor) and t.requires_grad]
    return outputs, gradients(outputs, leaves)


def gradients(outputs: Any, leaves: list[torch.Tensor], *, create_graph: bool = False) -> Any:
    """Return the gradients of leaves, for one that differs from element to element."""
    roots = [t for t in tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.requires_grad]
    generator = torch.Generator().manual_seed(7)
    weights = [torch.rand(t.shape, generator=generator, dtype=torch.float64) for t in roots]
    grads = [w.to(t.dtype) for w, t in zip(weights, roots, strict=True)]
    return torch.autograd.grad(roots, leaves, grads, create_graph=create_graph, allow_unused=True)


__all__ = ["BACKWARD", "FORWARD", "LIBRARIES", "asked_units", "find", "names", "run_unit", "units"]
