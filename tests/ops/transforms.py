"""torch's operators within ``torch.func``'s transforms: ``vmap``, ``jvp``, ``grad``, two at once.

The operator's first argument is what is transformed; the others are constants to the transform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.func import grad, jvp, vmap
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_leaves, tree_map

from ops.databases import Asked, Unit, short
from ops.judge import Case, Wrap
from ops.unit import copy, find, names, raised, seed_of
from ops.ways import run_again, unit_of, written
from support.opinfo import RANDOM_OR_UNINITIALIZED, quiet

DTYPES = (torch.float32, torch.float64)
# Neighbors among an operator's samples are alike: every third one is taken.
_EVERY = 3
_MOST = 24  # samples that are looked at, for some that can be transformed
Call = Callable[[Any], Any]


def _summed(call: Call, x: Any) -> Any:
    """Return a number that each result of a call has its own part in."""
    total: Any = 0.0
    for each in tree_leaves(call(x)):
        if isinstance(each, torch.Tensor) and (each.is_floating_point() or each.is_complex()):
            real = torch.view_as_real(each) if each.is_complex() else each
            weights = torch.linspace(0.5, 1.5, real.numel(), dtype=real.dtype).reshape(real.shape)
            total = total + (real * weights).sum()
    return total


def _derivative(call: Call) -> Call:
    return grad(partial(_summed, call))


def _of_square(call: Call, x: Any) -> Any:
    return call(x * x)


# What a call becomes; those that begin with `vmap` take a batch, `jvp` and `hvp` a tangent too.
WAYS: dict[str, Callable[[Call], Callable[..., Any]]] = {
    "vmap": vmap,
    "jvp": lambda call: lambda x, tangent: jvp(call, (x,), (tangent,)),
    "grad": _derivative,
    "vmap of grad": lambda call: vmap(_derivative(call)),
    "hvp": lambda call: (
        lambda x, tangent: jvp(_derivative(partial(_of_square, call)), (x,), (tangent,))
    ),
}
_FORWARD = ("vmap", "jvp")


def asked_units(name: str, asked: Asked) -> Iterator[Unit]:
    """Yield what there is to run of an operator."""
    op = find(name)
    for way in WAYS:
        if ("forward" if way in _FORWARD else "backward") not in asked.directions:
            continue
        for dtype in DTYPES:
            if dtype in op.supported_dtypes("cpu") and short(dtype) in asked.dtypes:
                yield unit_of(_cases, name, way, dtype, asked)


def _cases(name: str, way: str, dtype: torch.dtype, dynamic: bool) -> Iterator[Case]:
    op = find(name)
    torch.manual_seed(seed_of(op, dtype))
    for number, values in enumerate(_inputs(op, dtype)):
        program = written(__name__, name, way, dtype, dynamic, number)
        determined = not any(word in op.name for word in RANDOM_OR_UNINITIALIZED)
        yield Case(partial(_transformed, op, way, values), program, determined, asks=True)


def _inputs(op: OpInfo, dtype: torch.dtype) -> Iterator[tuple[Any, Any, Any]]:
    """Yield every third of an operator's samples that begin with a floating tensor."""
    with quiet():
        found = islice(op.sample_inputs("cpu", dtype), _MOST)
        fit = (s for s in found if isinstance(s.input, torch.Tensor) and s.input.dtype == dtype)
        for sample in islice(fit, 0, None, _EVERY):
            yield sample.input, tuple(sample.args), dict(sample.kwargs)


def _transformed(op: OpInfo, way: str, values: Any, wrap: Wrap, *, exact: bool) -> tuple[Any, Any]:
    """Run an operator transformed, on a batch or on one tensor and a tangent."""
    x, args, kwargs = tree_map(raised, values) if exact else copy(values)
    generator = torch.Generator().manual_seed(7)
    if way.startswith("vmap"):
        given = (torch.stack([x, x * 0.5, x + 0.25]),)
    elif way in ("jvp", "hvp"):
        tangent = torch.rand(x.shape, generator=generator, dtype=torch.float64)
        given = (x, tangent.to(x.dtype))
    else:
        given = (x,)

    def call(one: Any) -> Any:
        return op.op(one, *args, **kwargs)

    with quiet():
        return wrap(WAYS[way](call))(*given), (given, args, kwargs)


again = partial(run_again, _cases)

__all__ = ["WAYS", "again", "asked_units", "names"]
