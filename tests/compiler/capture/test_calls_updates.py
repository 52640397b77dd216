"""The short path of calls that update inputs or return views of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from support.calls import leaf, native_part, same, short, strict_calls, tensors

__all__ = ["native_part", "strict_calls"]  # fixtures of every test here

pytestmark = pytest.mark.timeout(300)


# --- updating inputs -------------------------------------------------------------------------


def add_relu_(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(b).relu_()
    return a


def test_updated_inputs() -> None:
    a, b = tensors()
    compiled = short(add_relu_, a, b)
    assert compiled.graphs[0]._direct is not None
    for _ in range(3):
        a, b = tensors()
        other, version = a.clone(), a._version
        assert compiled(a, b) is a
        same(a, add_relu_(other, b))
        assert a._version > version


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(8, 8).t(),
        lambda: torch.randn(16, 8)[::2],
        lambda: torch.randn(8, 16)[:, 8:],
        lambda: torch.randn(8, 8).to(torch.bfloat16),
        lambda: torch.randn(8, 8).int(),
        lambda: torch.randn(0, 8),
    ],
    ids="transposed rows part half int empty".split(),
)
def test_updated_inputs_of_other_layouts(make: Callable[[], torch.Tensor]) -> None:
    compiled = short(add_relu_, torch.randn(8, 8), torch.randn(8, 8))
    for _ in range(3):
        a = make()
        whole = a._base if a._base is not None else a
        b = torch.randn(a.shape).to(a.dtype)
        before = whole.clone()
        other = torch.as_strided(before, a.shape, a.stride(), a.storage_offset())
        assert compiled(a, b) is a
        torch.testing.assert_close(add_relu_(other, b), a)
        same(whole, before)  # and nothing beside it


def test_two_updated_inputs() -> None:
    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        a.mul_(0.9).add_(c, alpha=0.1)
        b.copy_(a.sin() + b)
        return (a * b).sum(), b

    given = [torch.randn(8, 4) for _ in range(3)]
    others = [t.clone() for t in given]
    compiled = short(function, *(t.clone() for t in given))
    for _ in range(3):
        mine, theirs = compiled(*given), function(*others)
        same(mine, theirs)
        assert mine[1] is given[1]
        same(given, others)


def test_updates_that_autograd_must_see() -> None:
    compiled = short(add_relu_, *tensors())
    a, b, w = torch.randn(64), torch.randn(64), leaf()
    out = a * w
    compiled(a, b)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        compiled(w, b)
    with torch.no_grad():
        version, other = w._version, w.detach().clone()
        compiled(w, b)
        same(w.detach(), add_relu_(other, b))
        assert w._version > version
    # What is recorded of a computed tensor that is updated.
    mine, theirs = (w * 2, w * 2)
    compiled(mine, b)
    add_relu_(theirs, b)
    same(mine, theirs)
    same(torch.autograd.grad(mine.sum(), w), torch.autograd.grad(theirs.sum(), w))


def test_updates_through_views() -> None:
    compiled = short(add_relu_, *tensors())
    base, b = torch.randn(2, 64), torch.randn(64)
    view, before = base[1], base.clone()
    version = base._version
    compiled(view, b)
    same(base[0], before[0])
    same(base[1], add_relu_(before[1], b))
    assert base._version > version
    # Two arguments that share memory, where the compiled form was made for others.
    x = torch.randn(72)
    for function in (add_relu_, compiled):  # which eager refuses, and so do we
        with pytest.raises(RuntimeError, match="single memory location"):
            function(x[:64], x[8:])
    x = torch.randn(64)
    other = x.clone()
    same(compiled(x, x), add_relu_(other, other))


def test_inference_tensors_are_not_updated_outside() -> None:
    compiled = short(add_relu_, *tensors())
    with torch.inference_mode():
        a, b = tensors()
        other = a.clone()
        for _ in range(2):
            compiled(a, b)
            add_relu_(other, b)
        same(a, other)
    with pytest.raises(RuntimeError, match="inference tensor"):
        compiled(a, torch.randn(64))


def test_updates_by_operators() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.copy_(a @ b)
        return a + 1

    a, b = torch.randn(6, 6), torch.randn(6, 6)
    compiled = short(function, a.clone(), b)
    for _ in range(3):
        other, version = a.clone(), a._version
        same(compiled(a, b), function(other, b))
        same(a, other)
        assert a._version > version


def test_resized_inputs_keep_their_wrappers() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        a.t_().mul_(2)
        return a + 1

    compiled = fusec.compile(function)
    for _ in range(3):
        a = torch.randn(3, 5)
        other = a.clone()
        same(compiled(a), function(other))
        assert a.shape == other.shape
        assert a.stride() == other.stride()
        same(a, other)


def test_large_temporaries() -> None:
    def function(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.softmax(a, -1)
        return y.cumsum(0), y.sum(0)

    a = torch.randn(2304, 2048)  # the softmax takes 18 MB, which only kernels see
    compiled = short(function, a)
    for _ in range(2):
        torch.testing.assert_close(compiled(a), function(a), rtol=1e-4, atol=1e-5)


# --- views of inputs -------------------------------------------------------------------------

_VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda a: a.view(8, 8),
    "slice": lambda a: a[3:50:2],
    "transposed": lambda a: a.view(16, 4).t(),
    "expanded": lambda a: a[:1].expand(5, 1),
    "detached": lambda a: a.detach(),
    "alias": lambda a: a.view_as(a),
    "chunks": lambda a: a.chunk(3),
    "unbound": lambda a: a.view(2, 32).unbind(0)[1],
    "bits": lambda a: a.view(torch.int32),
    "narrow": lambda a: a.narrow(0, 5, 0),
}


@pytest.mark.parametrize("name", _VIEWS)
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_views_of_inputs(name: str, grad: bool) -> None:
    view = _VIEWS[name]

    def function(a: torch.Tensor) -> Any:
        return a.sin() + 1, view(a)

    with torch.set_grad_enabled(grad):
        compiled = short(function, torch.randn(64))
        for _ in range(2):
            a = torch.randn(128)[64:]
            other = a.clone()
            served = compiled.short_calls
            for mine, theirs in zip(flat(compiled(a)), flat(function(a)), strict=True):
                same(mine, theirs)
                assert mine.stride() == theirs.stride()
                assert mine.storage_offset() == theirs.storage_offset()
                assert mine._is_view() == theirs._is_view()
                assert mine._base is theirs._base
                assert mine.requires_grad == theirs.requires_grad
                assert (mine.grad_fn is None) == (theirs.grad_fn is None)
            assert compiled.short_calls == served + (1 if a.storage_offset() == 64 else 0)
            same(a, other)


def flat(values: Any) -> list[torch.Tensor]:
    return [t for v in values for t in (v if isinstance(v, (tuple, list)) else [v])]


def test_views_are_written_through() -> None:
    def function(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + 1, a.view(8, 8)[2:]

    compiled = short(function, torch.randn(64))
    a, w = torch.randn(64), leaf(6, 8)
    other = a.clone()
    version = a._version
    for x, run in ((a, compiled), (other, function)):
        view = run(x)[1]
        view.zero_()
        view.add_(w)  # the base becomes part of what is recorded
    same(a, other)
    assert a.requires_grad
    assert a._version > version
    same(
        torch.autograd.grad(a.exp().sum(), w),
        torch.autograd.grad(other.exp().sum(), w),
    )


def test_views_of_updated_inputs() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a.add_(b)
        return a.view(8, 8), a * 2

    compiled = short(function, *tensors())
    for _ in range(3):
        a, b = tensors()
        other = a.clone()
        mine, theirs = compiled(a, b), function(other, b)
        same(mine, theirs)
        same(a, other)
        assert mine[0]._base is a


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(4, 4), (2, 3)], ids=str)
def test_results_that_are_one_of_several_views_of_a_base(
    shape: tuple[int, int], dynamic: bool
) -> None:
    def function(x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.atan_(), b * 2

    torch._dynamo.reset()
    compiled = fusec.compile(function, dynamic=dynamic)
    for _ in range(2):
        b = torch.randn(shape)
        other = b.clone()
        mine, theirs = compiled(b.t(), b), function(other.t(), other)
        same(mine, theirs)
        same(b, other)
        assert mine[0].data_ptr() == b.data_ptr()
        assert mine[0].stride() == theirs[0].stride()


def test_views_where_gradients_are_recorded_keep_their_wrappers() -> None:
    def function(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + 1, a.view(8, 8)

    with torch.no_grad():
        compiled = short(function, leaf())
        a = leaf()
        mine, theirs = compiled(a), function(a)
    for one, other in zip(mine, theirs, strict=True):
        same(one, other)
        assert one.requires_grad == other.requires_grad
        assert one._is_view() == other._is_view()
    mine, theirs = compiled(a), function(a)
    same(mine, theirs)
    same(torch.autograd.grad(mine[1].exp().sum(), a), torch.autograd.grad(theirs[1].exp().sum(), a))
