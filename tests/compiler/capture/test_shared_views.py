"""What shares memory with what: each kind of view, of results and inputs, written to in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec

Tensors = list[torch.Tensor]
VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "as int32": lambda y: y.view(torch.int32),
    "as int16": lambda y: y.view(torch.int16),
    "as bytes": lambda y: y.view(torch.uint8),
    "as float64": lambda y: y.view(torch.float64),
    "a part as int32": lambda y: y[1:].view(torch.int32),
    "as int32, transposed": lambda y: y.view(torch.int32).t(),
    "as int32 and back": lambda y: y.view(torch.int32).view(torch.float32),
    "as halves, every second": lambda y: y.view(torch.bfloat16)[:, ::2],
    "as complex": lambda y: torch.view_as_complex(y.view(4, 3, 2)),
    "imaginary parts": lambda y: torch.view_as_complex(y.view(4, 3, 2)).imag,
    "detach": lambda y: y.detach(),
    "T": lambda y: y.T,
    "mT": lambda y: y.mT,
    "squeeze": lambda y: y.view(4, 1, 6).squeeze(1),
    "unfold": lambda y: y.unfold(1, 3, 2),
    "expand": lambda y: y[:1].expand(3, 6),
    "as_strided": lambda y: y.as_strided((3, 2), (2, 1), 1),
    "alias": torch.ops.aten.alias,
    "narrow": lambda y: y.narrow(0, 1, 2),
    "split": lambda y: y.split(2),
    "chunk": lambda y: y.chunk(3, 1),
    "unbind": lambda y: y.unbind(1),
    "diagonal": lambda y: y.diagonal(1),
    "reshape that copies": lambda y: y.t().reshape(3, 8),
    "contiguous": lambda y: y.contiguous(),
    "steps": lambda y: y[::2, 1::3],
    "to its own type": lambda y: y.to(torch.float32),
    "nothing of it": lambda y: y[:0],
    "one of it": lambda y: y[1, 2],
    "several": lambda y: y.t()[1:].view(torch.int32)[..., 1:].t(),
}
COMPLEX: dict[str, Callable[[torch.Tensor], Any]] = {
    "real": lambda y: y.real,
    "imag": lambda y: y.imag,
    "view_as_real": torch.view_as_real,
    "as float32": lambda y: y.view(torch.float32),
    "real, a part": lambda y: y.real.t()[1:],
    "conjugated twice": lambda y: y.conj().conj(),
}
FORMS: dict[str, Callable[[Callable[..., Any], torch.Tensor], tuple[Any, ...]]] = {
    "beside": lambda view, x: both(view, x * 2),
    "twice": lambda view, x: (*both(view, x * 2), view(x)),
    "alone": lambda view, x: (view(x * 2),),
    "of an input": lambda view, x: (x + 1, view(x)),
    "computed with": lambda view, x: (
        *both(view, x * 2),
        [each * 2 for each in listed(view(x * 2))],
    ),
    "of a product": lambda view, x: both(view, x @ x.t() @ x),
}


def both(view: Callable[..., Any], y: torch.Tensor) -> tuple[Any, ...]:
    return view(y), y


def listed(found: Any) -> Tensors:
    """Return all tensors of a result, in order."""
    if isinstance(found, torch.Tensor):
        return [found]
    return [tensor for each in found for tensor in listed(each)]


def facts(tensors: Tensors) -> list[Any]:
    """Return how tensors lie, and which earlier ones each shares memory with."""
    places = [each.untyped_storage()._cdata for each in tensors]
    return [
        (each.dtype, each.shape, each.stride(), each.storage_offset(), places.index(place))
        for each, place in zip(tensors, places, strict=True)
    ]


def written(tensor: torch.Tensor) -> bool:
    """Double a tensor in place; returns whether torch allows it."""
    try:
        tensor.mul_(2)
    except RuntimeError:
        return False
    return True


@pytest.mark.sample(4)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [*VIEWS, *COMPLEX])
def test_what_is_written_to_one_is_seen_in_the_others(name: str, form: str, dynamic: bool) -> None:
    view = (VIEWS | COMPLEX)[name]
    dtype = torch.complex64 if name in COMPLEX else torch.float32

    def f(x: torch.Tensor) -> tuple[Any, ...]:
        return FORMS[form](view, x)

    torch._dynamo.reset()
    compiled = fusec.compile(f, dynamic=dynamic)
    given = torch.randn(4, 6, dtype=dtype)
    for _ in range(2):
        x, other = given.clone(), given.clone()
        found, wanted = [*listed(compiled(x)), x], [*listed(f(other)), other]
        assert facts(found) == facts(wanted)
        for own, eager in zip(found, wanted, strict=True):
            assert written(own) == written(eager)
            for a, b in zip(found, wanted, strict=True):
                torch.testing.assert_close(a, b, equal_nan=True)
