"""Each graph that a test captures, beside eager on copies of its inputs.

A test compares what it thinks of; here every result of every graph is compared, what it has
updated, and each input's gradient, in the first calls of a graph, and with values at the edges.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fusec.call.eager_graph import run_eagerly

_CALLS = 2  # of a graph, that are compared
_MOST_BYTES = 1 << 26
_NO_GRADIENTS = "the error that backward raises"
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NUMBERS = (int, float, bool, str, type(None), torch.SymInt)
_RTOL = {torch.float16: 1e-2, torch.bfloat16: 4e-2, torch.float64: 1e-7}
_RTOL_ELSE = 2e-4
_INFINITE = float("inf")
# Simple values at which functions have corners, then such that leave what a type can hold.
_EDGES = (
    [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 20.0, -100.0],
    [float("nan"), _INFINITE, -_INFINITE, 0.0, -0.0, 1e30, -1e-40, 88.0, -104.0],
)
_SHARES = (0.5, 0.1)  # of elements that become such

NOTES: list[str] = []
"""What differs and is no failure: at the edges, strides, whether a result wants a gradient."""

Compiled = Callable[..., Any]


class _NotCompared(Exception):
    """An input of which no copy is made."""


@dataclass(frozen=True)
class _Found:
    """A tensor or number that a call leaves behind: a result, an input, a gradient."""

    kind: str
    value: Any
    wants_gradient: bool = False
    strides: tuple[int, ...] | None = None


def beside_eager(graph: fx.GraphModule, compiled: Compiled) -> Compiled:
    """Return a compiled graph that is compared with eager when it is called first.

    Args:
        graph: As it was captured.
        compiled: What a backend made of it.
    """
    left = _CALLS if not [*graph.parameters(), *graph.buffers()] else 0

    def call(*inputs: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            torch._dynamo.disable(_compare)(graph, compiled, inputs)
        return compiled(*inputs)

    return call


def _compare(graph: fx.GraphModule, compiled: Compiled, inputs: Sequence[Any]) -> None:
    with contextlib.suppress(_NotCompared):
        for problem in _differences(graph, compiled, inputs):
            raise AssertionError(f"beside eager, {problem}\n{graph.code[:3000]}")
        for values, share in zip(_EDGES, _SHARES, strict=True):
            found = _differences(graph, compiled, inputs, values, share)
            NOTES.extend(f"at the edges, {problem}" for problem in found)


def _differences(
    graph: fx.GraphModule,
    compiled: Compiled,
    inputs: Sequence[Any],
    edges: Sequence[float] = (),
    share: float = 0.0,
) -> Iterator[str]:
    """Yield in words what differs between a compiled graph's call and eager's."""
    state = torch.get_rng_state()

    def called(function: Compiled) -> list[_Found] | Exception:
        args, leaves = _copies(inputs)
        _put(args, edges, share)
        # what is updated may not be a leaf
        given = [_same_layout(x) if any(x is each for each in leaves) else x for x in args]
        torch.set_rng_state(state)
        try:
            return _what_is_left(function(*given), given, leaves)
        except Exception as error:
            return error

    theirs, ours = called(run_eagerly(graph)), called(compiled)
    torch.set_rng_state(state)
    if isinstance(theirs, Exception) or isinstance(ours, Exception):
        if type(theirs) is type(ours):
            return
        if isinstance(ours, Exception):
            yield f"{type(ours).__name__} is raised: {str(ours)[:300]}"
        else:
            NOTES.append(f"eager alone raises {type(theirs).__name__}: {str(theirs)[:200]}")
        return
    if theirs[-1:] and theirs[-1].kind == _NO_GRADIENTS:
        theirs, ours = theirs[:-1], ours[: len(theirs) - 1]
    if len(theirs) != len(ours):
        yield f"there are {len(ours)} results, inputs and gradients for {len(theirs)}"
        return
    for i, (wanted, found) in enumerate(zip(theirs, ours, strict=True)):
        if problem := _difference(wanted.value, found.value):
            yield f"{wanted.kind} {i} is {problem}"
        elif wanted.kind == "result" and not edges:
            if wanted.wants_gradient != found.wants_gradient:
                NOTES.append(f"result {i}: requires_grad is {found.wants_gradient}")
            if wanted.strides != found.strides:
                NOTES.append(f"result {i}: strides are {found.strides} for {wanted.strides}")


def _copies(inputs: Sequence[Any]) -> tuple[list[Any], list[torch.Tensor]]:
    """Return inputs laid out alike, which share memory where these do, and the leaves of them."""
    records = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    shared: dict[int, list[int]] = {}
    for i, x in enumerate(inputs):
        if isinstance(x, torch.Tensor):
            if not _is_plain(x) or x.untyped_storage().nbytes() > _MOST_BYTES:
                raise _NotCompared
            shared.setdefault(x.untyped_storage()._cdata, []).append(i)
        elif not isinstance(x, _NUMBERS):
            raise _NotCompared
    made, leaves = list(inputs), []
    for places in shared.values():
        storage = inputs[places[0]].untyped_storage().clone()
        for i in places:
            x = inputs[i]
            with torch.no_grad():
                made[i] = torch.empty(0, dtype=x.dtype)
                made[i].set_(storage, x.storage_offset(), x.shape, x.stride())
            if x.requires_grad and records and len(places) == 1:
                made[i] = made[i].detach().requires_grad_()
                leaves.append(made[i])
    return made, leaves


def _is_plain(x: torch.Tensor) -> bool:
    return (
        type(x) in _PLAIN
        and x.layout == torch.strided
        and x.device.type == "cpu"
        and not (x.is_quantized or x.is_conj() or x.is_neg())
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        and torch._C._dispatch_keys(x).has(torch._C.DispatchKey.CPU)
    )


def _put(args: Sequence[Any], edges: Sequence[float], share: float) -> None:
    """Put values at the edges to places that are the same in each call."""
    if not edges:
        return
    generator = torch.Generator().manual_seed(len(edges))
    pool = torch.tensor(edges, dtype=torch.float64)
    for x in args:
        if not isinstance(x, torch.Tensor) or x.dtype not in (torch.float32, torch.float64):
            continue
        where = torch.rand(x.shape, generator=generator) < share
        values = pool[torch.randint(len(pool), x.shape, generator=generator)].to(x.dtype)
        try:
            x.data.copy_(torch.where(where, values, x.detach()))
        except RuntimeError:  # some elements share memory
            raise _NotCompared from None


def _same_layout(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    return y if y.stride() == x.stride() else x.view_as(x)


def _what_is_left(
    results: Any, args: Sequence[Any], leaves: Sequence[torch.Tensor]
) -> list[_Found]:
    """Return results, inputs and the gradients of a weighted sum of the results."""
    results = pytree.tree_leaves(results)
    found = [
        *(_kept("result", each) for each in results),
        *(_kept("input", each) for each in args if isinstance(each, torch.Tensor)),
    ]
    roots = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    roots = [r for r in roots if r.is_floating_point()]
    if leaves and roots:
        total = torch.stack([_weighted(r) for r in roots]).sum()
        try:
            gradients = torch.autograd.grad(total, leaves, allow_unused=True)
            found += [_Found("gradient", each) for each in gradients]
        except Exception as error:
            found.append(_Found(_NO_GRADIENTS, type(error).__name__))
    return found


def _weighted(x: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape).remainder(7) + 1
    return (x * weights).sum().double()


def _kept(kind: str, value: Any) -> _Found:
    if not isinstance(value, torch.Tensor):
        return _Found(kind, value)
    strides = tuple(value.stride()) if value.layout == torch.strided else None
    return _Found(kind, value.detach().clone(), value.requires_grad, strides)


def _difference(wanted: Any, found: Any) -> str:
    """Return in words how what was found differs from eager's, or an empty string."""
    if isinstance(wanted, torch.Tensor) != isinstance(found, torch.Tensor):
        return f"{type(found).__name__} for {type(wanted).__name__}"
    if not isinstance(wanted, torch.Tensor):
        with contextlib.suppress(Exception):  # whatever a program returns
            if type(wanted) is type(found) and wanted == wanted and wanted != found:
                return f"{found} for {wanted}"
        return ""
    if not {type(wanted), type(found)} <= set(_PLAIN) or wanted.layout != torch.strided:
        return ""
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return f"{tuple(found.shape)} {found.dtype} for {tuple(wanted.shape)} {wanted.dtype}"
    if wanted.is_complex():
        wanted, found = (torch.view_as_real(each.resolve_conj()) for each in (wanted, found))
    if (wanted.dtype.itemsize == 1 and wanted.is_floating_point()) or wanted.is_quantized:
        return ""  # float8: one place more or less is an eighth
    rtol = _RTOL.get(wanted.dtype, _RTOL_ELSE)
    wanted, found = wanted.double(), found.double()
    finite = wanted[wanted.isfinite()]
    size = float(finite.square().mean().sqrt()) if finite.numel() else 1.0
    near = torch.isclose(found, wanted, rtol=rtol, atol=rtol * max(1.0, size), equal_nan=True)
    if near.all():
        return ""
    count, three = int((~near).sum()), (~near).flatten().nonzero()[:3, 0]
    values = [each.flatten()[three].tolist() for each in (found, wanted)]
    return f"off in {count} of {near.numel()}: {values[0]} for {values[1]}"


__all__ = ["NOTES", "beside_eager"]
