"""Promises about sizes that only data says, kept and broken: every way in, every target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fusec
from fusec.call import native
from fusec.capture.backend import Backend
from fusec.options import Options
from support.compare import difference

pytestmark = pytest.mark.timeout(300)
T = torch.tensor
Inputs = tuple[torch.Tensor, ...]


def nonzero(promise: Callable[[Any], Any]) -> Callable[..., Any]:
    def f(x: torch.Tensor) -> Any:
        found = x.nonzero()
        torch._check(promise(found.size(0)))
        return found * 3 + 1

    return f


def selected(promise: Callable[[Any], Any]) -> Callable[..., Any]:
    def f(x: torch.Tensor) -> Any:
        found = torch.masked_select(x, x > 0)
        torch._check(promise(found.size(0)))
        return found * 2 + found.sum()

    return f


def distinct(promise: Callable[[Any], Any]) -> Callable[..., Any]:
    def f(x: torch.Tensor) -> Any:
        found = torch.unique(x)
        torch._check(promise(found.shape[0]))
        return found + 1

    return f


def repeated(promise: Callable[[Any], Any]) -> Callable[..., Any]:
    def f(x: torch.Tensor) -> Any:
        found = torch.repeat_interleave(x.long())
        torch._check(promise(found.size(0)))
        return found * 2

    return f


def number(promise: Callable[[Any], Any]) -> Callable[..., Any]:
    def f(x: torch.Tensor) -> Any:
        size = int(x.sum().item())
        torch._check_is_size(size)
        torch._check(promise(size))
        return torch.arange(size) * 2 + 1

    return f


def part(promise: Callable[[Any], Any]) -> Callable[..., Any]:
    def f(x: torch.Tensor) -> Any:
        size = int(x.sum().item())
        torch._check_is_size(size)
        torch._check(promise(size))
        torch._check(size <= x.size(0))
        return x.narrow(0, 0, size) * 2

    return f


WAYS = (nonzero, selected, distinct, repeated, number, part)
# What is promised, and vectors of which it is true and false, whatever makes the size.
COUNTS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], tuple[int, ...]]] = {
    "==": (lambda n: n == 3, (3,), (0, 1, 4)),
    "<=": (lambda n: n <= 3, (3, 2), (4, 5)),
    ">=": (lambda n: n >= 3, (3, 4), (0, 2)),
}
TARGETS = ("cpp", "plain", "triton")
ROUTES = ("compile", "torch.compile")


def of_size(way: Callable[..., Any], size: int) -> torch.Tensor:
    """Return six numbers of which a way makes a size."""
    if way is distinct:
        return T([min(i, size - 1) for i in range(6)]) if size else torch.empty(0)
    return T([1.0] * size + [0.0] * (6 - size))


@pytest.fixture(autouse=True)
def captured_sizes() -> Iterator[None]:
    native.types(wait=True)
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        torch._dynamo.reset()
        yield
    torch._dynamo.reset()


def compiled_by(route: str, target: str, dynamic: bool | None, f: Any) -> Any:
    if route == "compile":
        return fusec.compile(f, target=target, dynamic=dynamic)
    return torch.compile(f, backend=Backend(Options(target=target)), dynamic=dynamic)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("promised", COUNTS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_was_promised(
    way: Callable[..., Any], promised: str, target: str, route: str, dynamic: bool | None
) -> None:
    promise, kept, broken = COUNTS[promised]
    f = way(promise)
    compiled = compiled_by(route, target, dynamic, f)
    for size in (*kept, *broken, *kept, *broken, *kept):
        x = of_size(way, size)
        before = x.clone()
        if size in kept:
            assert not difference(compiled(x), f(x))
            continue
        with pytest.raises(RuntimeError):
            f(x)
        with pytest.raises(RuntimeError) as caught:
            compiled(x)
        assert not isinstance(caught.value, torch._dynamo.exc.TorchDynamoException)
        assert not difference(x, before)
        assert torch.equal(torch.ones(3) + 1, torch.full((3,), 2.0))  # and torch is alive


@pytest.mark.sample(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [-1, -5])
def test_a_size_that_is_none(size: int, target: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        n = int(x.item())
        torch._check_is_size(n)
        return torch.zeros(n) + y.sum(), y * n

    compiled = fusec.compile(f, target=target)
    y = torch.randn(4)
    for n in (3, 7):
        assert not difference(compiled(T(n), y), f(T(n), y))
    with pytest.raises(RuntimeError):
        f(T(size), y)
    with pytest.raises(RuntimeError):
        compiled(T(size), y)
    assert not difference(compiled(T(2), y), f(T(2), y))
