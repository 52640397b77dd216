"""One unit of the operator suite: an operator's samples of one dtype, forward or backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_leaves, tree_map

from fusec.runtime.strided import clone_strided
from ops.corners import corners
from support.compare import difference
from support.opinfo import RANDOM_OR_UNINITIALIZED, name_of, quiet

FORWARD = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
BACKWARD = (torch.float32, torch.float64)
CORNER = (torch.float32, torch.bfloat16, torch.int32, torch.uint8)
# Operators that ATen's own kernels compute, whatever the compiler.
LIBRARIES = ("linalg", "fft", "sparse", "sort", "svd", "lu", "cholesky", "qr", "geqrf", "ormqr")
LIBRARIES += ("stft", "istft", "matrix_exp", "pinverse", "triangular_solve", "lobpcg", "eig")
LIBRARIES += ("topk", "kthvalue", "msort", "median", "mode", "unique", "symeig", "householder")


@dataclass
class Sample:
    """What a backend did with one sample.

    Attributes:
        verdict: ``ok``; ``float64`` (differs from eager, but is no further from float64 than
            eager is); ``wrong``; ``error`` (eager did not raise); ``eager`` (compiled, but ran in
            eager after all); ``not compiled`` (nothing reached the backend); ``not captured``
            (TorchDynamo itself fails, whatever the backend).
        detail: The worst element, or the error.
        kernels: Generated kernels.
        externs: Reasons of its extern calls.
        variant: Of a corner input, which one.
    """

    verdict: str
    detail: str = ""
    kernels: int = 0
    externs: list[str] = field(default_factory=list)
    variant: str = ""


def find(name: str) -> OpInfo:
    """Return an operator of the database by the name that reports use."""
    return next(op for op in op_db if name_of(op) == name)


def units(
    op: OpInfo, forward: bool, backward: bool, corner: bool = False
) -> Iterator[tuple[str, torch.dtype]]:
    """Yield the directions and dtypes that an operator supports on the CPU."""
    if forward:
        supported = op.supported_dtypes("cpu")
        yield from (("forward", dtype) for dtype in FORWARD if dtype in supported)
    if backward and op.supports_autograd:
        supported = op.supported_backward_dtypes("cpu")
        yield from (("backward", dtype) for dtype in BACKWARD if dtype in supported)
    if corner:
        supported = op.supported_dtypes("cpu")
        yield from (("corner", dtype) for dtype in CORNER if dtype in supported)


def run_unit(
    op: OpInfo, direction: str, dtype: torch.dtype, backend: str, limit: int
) -> list[Sample]:
    """Run the first samples of an operator.

    Args:
        op: The operator.
        direction: ``forward``, ``backward`` or ``corner``.
        dtype: Of its inputs.
        backend: ``fusec`` or ``inductor``.
        limit: Samples at most.
    """
    if direction == "corner":
        return _run_corners(op, dtype, backend)
    with quiet():
        given = op.sample_inputs("cpu", dtype, requires_grad=direction == "backward")
        found = []
        for sample, _ in zip(given, range(limit), strict=False):
            values = (sample.input, tuple(sample.args), dict(sample.kwargs))
            result = _run(op, values, direction == "backward", backend)
            if result is not None:
                found.append(result)
        return found


def _run_corners(op: OpInfo, dtype: torch.dtype, backend: str) -> list[Sample]:
    found = []
    with quiet():
        for corner in corners(op, dtype):
            result = _run(op, corner.values, False, backend, flipped=corner.flipped)
            if result is not None:
                found.append(replace(result, variant=corner.name))
    return found


def _run(
    op: OpInfo, values: Any, backward: bool, backend: str, *, flipped: bool = False
) -> Sample | None:
    """Run one sample; None where eager refuses it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if flipped:
            args, kwargs = tree_map(_flip, (args, kwargs))
        return op.op(*args, **kwargs)

    plain = _copy(values)
    try:
        expected = _results(call, plain, backward)
    except Exception:
        return None
    torch._dynamo.reset()
    graphs: list[Any] = []
    compiled = torch.compile(call, backend=_backend(backend, graphs), dynamic=False)
    inputs = _copy(values)
    try:
        actual = _results(compiled, inputs, backward)
    except torch._dynamo.exc.TorchRuntimeError as error:
        # TorchDynamo's own fake tensors refuse it, before any backend is asked.
        return Sample("not captured", " ".join(str(error).split())[:200])
    except Exception as error:
        cause = getattr(error, "inner_exception", error)
        return Sample("error", f"{type(cause).__name__}: {' '.join(str(cause).split())}"[:300])
    made = Sample("ok")
    if backend == "fusec":
        made.kernels = sum(len(graph.kernels) for graph in graphs)
        made.externs = [f"{e.name}: {e.reason}" for graph in graphs for e in graph.externs]
    if any(word in op.name for word in RANDOM_OR_UNINITIALIZED):
        actual, expected = _shapes(actual), _shapes(expected)
    problem = difference(actual, expected) or _changed(inputs, plain)
    if problem:
        made.detail = problem
        near = _is_as_near_to_float64(call, values, backward, actual, expected)
        made.verdict = "float64" if near else "wrong"
    elif not graphs:
        made.verdict = "not compiled"
    elif backend == "fusec" and any(graph.fallback for graph in graphs):
        made.verdict = "eager"
        made.detail = next(graph.fallback for graph in graphs if graph.fallback)
    return made


def _backend(name: str, graphs: list[Any]) -> Callable[..., Any]:
    if name == "fusec":
        from fusec.capture.backend import Backend
        from fusec.options import Options

        own = Backend(Options())
        own.graphs = graphs
        return own

    compile_peer = torch._dynamo.lookup_backend(name)

    def peer(module: Any, inputs: Any, **options: Any) -> Any:
        graphs.append(module)
        return compile_peer(module, inputs, **options)

    return peer


def _flip(value: Any) -> Any:
    strided = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return value.flip(-1) if strided and value.ndim else value


def _copy(values: Any) -> Any:
    """Return copies of tensors; with their strides, gaps and overlaps, where they have such."""

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with torch.no_grad():
            copy = value.detach().clone()
            if value.layout == torch.strided and copy.stride() != value.stride():
                copy = clone_strided(value)
        return copy.requires_grad_(value.requires_grad)

    return tree_map(one, values)


def _results(call: Callable[..., Any], values: Any, backward: bool) -> Any:
    """Return the outputs, or with ``backward`` the gradients of the inputs."""
    first, args, kwargs = values
    outputs = call(first, *args, **kwargs)
    if not backward:
        return outputs
    leaves = [t for t in tree_leaves(values) if isinstance(t, torch.Tensor) and t.requires_grad]
    roots = [t for t in tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.requires_grad]
    # A gradient that differs from element to element, the same at each run.
    generator = torch.Generator().manual_seed(7)
    weights = [torch.rand(t.shape, generator=generator, dtype=torch.float64) for t in roots]
    grads = torch.autograd.grad(
        roots,
        leaves,
        [w.to(t.dtype) for w, t in zip(weights, roots, strict=True)],
        allow_unused=True,
    )
    return (outputs, grads)


def _shapes(results: Any) -> list[str]:
    tensors = [t for t in tree_leaves(results) if isinstance(t, torch.Tensor)]
    return [f"{t.dtype} {tuple(t.shape)}" for t in tensors]


def _changed(mine: Any, eagers: Any) -> str:
    """Return how an input differs, after the call, from what eager left: mostly as it was."""
    pairs = zip(tree_leaves(mine), tree_leaves(eagers), strict=True)
    tensors = [(a, b) for a, b in pairs if isinstance(a, torch.Tensor) and a.layout == b.layout]
    problems = [difference(a.detach(), b.detach()) for a, b in tensors]
    return next((f"an input, after the call: {text}" for text in problems if text), "")


def _is_as_near_to_float64(
    call: Callable[..., Any], values: Any, backward: bool, actual: Any, expected: Any
) -> bool:
    """Whether the results are at most twice as far from float64 as eager's, and a rounding."""

    def raised(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.detach().double().requires_grad_(value.requires_grad)
        return value

    try:
        exact = _results(call, tree_map(raised, values), backward)
    except Exception:
        return False
    triples = list(zip(*map(tree_leaves, (actual, expected, exact)), strict=False))
    if not triples or len(tree_leaves(actual)) != len(tree_leaves(expected)):
        return False
    for got, plain, truth in triples:
        if not isinstance(got, torch.Tensor) or not got.is_floating_point():
            if difference(got, plain):
                return False
            continue
        if got.shape != truth.shape or got.dtype != plain.dtype:
            return False
        errors = [(each.double() - truth.double()).abs() for each in (got, plain)]
        same = (got == plain) | (got.isnan() & plain.isnan())
        allowed = 2 * errors[1] + torch.finfo(got.dtype).eps * truth.double().abs()
        # Where eager overflowed on the way and float64 did not, finite is right.
        better = truth.isfinite() & ~plain.isfinite() & (errors[0] <= 1e-2 * truth.abs())
        if not bool((same | (errors[0] <= allowed) | better).all()):
            return False
    return True


__all__ = ["BACKWARD", "FORWARD", "LIBRARIES", "Sample", "find", "run_unit", "units"]
