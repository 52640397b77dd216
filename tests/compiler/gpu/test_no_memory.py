"""On a GPU: tensors that are no plain memory give eager's result or an error, never an address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import fusec
from fusec.call import native
from fusec.memory.readable import NoMemory

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
# Calls through plans, and as CUDA graphs.
WAYS: dict[str, dict[str, Any]] = {"plans": {}, "graphs": {"cuda_graphs": True}}


@pytest.fixture(autouse=True)
def _native() -> Iterator[None]:
    native.types(wait=True)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def plain() -> torch.Tensor:
    return torch.arange(64.0, device=DEVICE).reshape(8, 8) / 10


def resized(size: int) -> torch.Tensor:
    made = plain()
    made.untyped_storage().resize_(size)
    return made


def offset_and_freed() -> torch.Tensor:
    made = torch.arange(80.0, device=DEVICE)[16:].view(8, 8)
    made.untyped_storage().resize_(0)
    return made


def wave(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def product(x: torch.Tensor) -> torch.Tensor:
    return (x + 1) @ torch.relu(x).transpose(0, 1) + x


def updated(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(0.5)


def warm(function: Callable[..., Any], way: str) -> Callable[..., Any]:
    made = fusec.compile(function, **WAYS[way])
    for _ in range(6):
        torch.testing.assert_close(made(plain()), function(plain()))
    return made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [wave, product, updated])
def test_memory_that_is_not_there(function: Callable[..., Any], way: str) -> None:
    compiled = warm(function, way)
    for made in (resized(0), resized(100), offset_and_freed()):
        with pytest.raises(NoMemory, match=r"of which (0|100) are there"):
            compiled(made)
    for _ in range(2):
        torch.testing.assert_close(compiled(plain()), function(plain()))


@pytest.mark.parametrize("way", WAYS)
def test_memory_that_is_another(way: str) -> None:
    """Views of other storages, negated ones, zeros without memory, nothing at all."""
    compiled = warm(wave, way)
    for make in (
        lambda: torch._neg_view(plain()),
        lambda: torch.complex(plain(), plain()).conj().imag,
        lambda: torch._efficientzerotensor((8, 8), device=DEVICE),  # type: ignore[attr-defined]
        lambda: torch.empty(0, 0, device=DEVICE),
        lambda: resized(0)[:0, :0],
        lambda: resized(256),
        lambda: torch._lazy_clone(plain()),
    ):
        for _ in range(2):
            torch.testing.assert_close(compiled(make()), wave(make()))
    torch.testing.assert_close(compiled(plain()), wave(plain()))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [wave, product])
def test_fake_meta_and_functional_tensors(function: Callable[..., Any], way: str) -> None:
    compiled = warm(function, way)
    mode = FakeTensorMode()
    fake = mode.from_tensor(plain())
    for _ in range(2):
        result = compiled(fake)
        assert isinstance(result, FakeTensor)
        assert (result.shape, result.dtype, result.device.type) == ((8, 8), torch.float32, DEVICE)
        assert compiled(plain().to("meta")).is_meta
    functional = compiled(torch._to_functional_tensor(plain()))
    torch.testing.assert_close(torch._from_functional_tensor(functional), function(plain()))
    torch.testing.assert_close(compiled(plain()), function(plain()))


@pytest.mark.parametrize("way", WAYS)
def test_subclasses_and_undefined_gradients(way: str) -> None:
    compiled = warm(wave, way)
    result = compiled(TwoTensor(plain(), plain() + 1))
    assert type(result) is TwoTensor
    torch.testing.assert_close(result.b, wave(plain() + 1))
    with pytest.raises(NoMemory):
        compiled(TwoTensor(plain(), resized(0)))

    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin() * 2, x.cos() * 3

    other = fusec.compile(two, **WAYS[way])
    for _ in range(3):
        x, y = plain().requires_grad_(), plain().requires_grad_()
        other(x)[0].sum().backward()
        two(y)[0].sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
