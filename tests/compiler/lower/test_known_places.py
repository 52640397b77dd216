"""Sums at places that are known beforehand: gathered, without atomics; as eager's in every case."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.compiled_function import CompiledFunction

Function = Callable[..., torch.Tensor]
ENLARGED: dict[str, Function] = {
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "aligned": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
    "nearest": lambda x: F.interpolate(x, scale_factor=3, mode="nearest"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "odd size": lambda x: F.interpolate(x, size=(13, 21), mode="bilinear"),
    "smaller": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
    "one way": lambda x: F.interpolate(x, size=(18, 5), mode="bilinear"),
    "to one": lambda x: F.interpolate(x, size=(1, 1), mode="bilinear"),
    "linear": lambda x: F.interpolate(x[0], scale_factor=2, mode="linear"),
    "trilinear": lambda x: F.interpolate(x[None], scale_factor=2, mode="trilinear"),
}
PLACED: dict[str, Function] = {
    "every other": lambda x: x[..., torch.arange(0, x.shape[-1], 2)],
    "flipped": lambda x: x[..., x.shape[-1] - 1 - torch.arange(x.shape[-1])],
    "thrice": lambda x: x[..., torch.arange(9) // 3],
    "rows and columns": lambda x: x[:, :, torch.arange(4)[:, None], torch.arange(5) // 2],
    "around a slice": lambda x: x[:, torch.arange(2), :, torch.arange(5)[:, None] // 2],
    "diagonal": lambda x: x[:, :, torch.arange(3), torch.arange(3)],
    "one": lambda x: x[:, :, torch.full((1,), 2)],
    "from the end": lambda x: x[..., torch.arange(3) - 3],
}
FUNCTIONS = ENLARGED | PLACED


def gradients(
    function: Function, x: torch.Tensor, target: str | None
) -> tuple[torch.Tensor, torch.Tensor, CompiledFunction]:
    """Return fusec's gradient, eager's, and what was compiled."""
    torch._dynamo.reset()
    options = {"target": target} if target else {}
    compiled = fusec.compile(function, keep_inputs=True, **options)
    upstream = torch.randn_like(function(x.detach()))
    upstream.view(-1)[0] = upstream.view(-1)[-1] = float("nan")
    found = []
    for call in (compiled, function):
        leaf = x.detach().clone().requires_grad_()
        call(leaf).backward(upstream)
        assert leaf.grad is not None
        found.append(leaf.grad)
    assert not compiled.fallbacks
    return found[0], found[1], compiled


def backward_text(compiled: CompiledFunction) -> str:
    """Return the kernels of the backward part."""
    return "\n".join(k.source for name, k in compiled.kernels.items() if "put" in name)


@pytest.mark.sample(2)
@pytest.mark.parametrize("target", [None, "triton"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_eagers(name: str, target: str | None) -> None:
    got, expected, _ = gradients(FUNCTIONS[name], torch.randn(2, 3, 6, 10), target)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 8, 8, dtype=dtype)
    got, _, compiled = gradients(ENLARGED["bilinear"], x, None)
    assert got.dtype == dtype
    (graph,) = compiled.graphs
    graph.verify()


@pytest.mark.sample(2)
@pytest.mark.triton
@pytest.mark.parametrize("name", ["bilinear", "nearest", "bicubic", "every other", "flipped"])
def test_nothing_is_added_in_memory(name: str) -> None:
    _, _, compiled = gradients(FUNCTIONS[name], torch.randn(2, 3, 6, 10), "triton")
    text = backward_text(compiled)
    assert text
    assert "atomic" not in text


@pytest.mark.triton
def test_all_corners_are_one_kernel() -> None:
    _, _, compiled = gradients(ENLARGED["bilinear"], torch.randn(2, 3, 8, 16), "triton")
    assert sum("put" in name for name in compiled.kernels) == 1


def test_places_are_computed_where_they_are_used() -> None:
    _, _, compiled = gradients(ENLARGED["bilinear"], torch.randn(2, 3, 8, 16), None)
    (graph,) = compiled.graphs
    assert not graph.saved
    assert sum("put" not in name for name in compiled.kernels) == 1


def test_what_comes_from_an_input_is_kept() -> None:
    def function(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[:, at + 1]

    compiled = fusec.compile(function)
    x = torch.randn(3, 9, requires_grad=True)
    at = torch.tensor([4, 0, 4, 7])
    compiled(x, at).sum().backward()
    expected = torch.zeros(3, 9).index_add_(1, at + 1, torch.ones(3, 4))
    assert torch.equal(x.grad, expected)


def test_added_to_what_is_there() -> None:
    def function(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        places = torch.arange(values.shape[-1]) // 2 + 1
        return x.index_put((torch.arange(x.shape[0])[:, None], places), values, accumulate=True)

    x, values = torch.randn(4, 7), torch.randn(4, 6)
    torch.testing.assert_close(fusec.compile(function)(x, values), function(x, values))


def test_values_of_fewer_dimensions() -> None:
    def function(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x.index_put((torch.arange(4),), values, accumulate=True)

    for shape in ((), (1,), (7,), (4, 1), (4, 7)):
        x, values = torch.randn(5, 7), torch.randn(shape)
        torch._dynamo.reset()
        torch.testing.assert_close(fusec.compile(function)(x, values), function(x, values))


def test_last_one_wins_where_nothing_is_added() -> None:
    def function(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x.index_put((torch.arange(4) + 1,), values)

    x, values = torch.randn(6), torch.randn(4)
    assert torch.equal(fusec.compile(function)(x, values), function(x, values))


def test_a_place_outside_is_an_error() -> None:
    def function(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x.index_put((torch.arange(4) + 3,), values, accumulate=True)

    with pytest.raises((IndexError, RuntimeError)):
        fusec.compile(function)(torch.randn(6), torch.randn(4))


def test_many_to_one_element() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[torch.arange(100) // 50]

    got, expected, _ = gradients(function, torch.randn(2, 3), None)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 3, 6, 10), (2, 0, 6, 10)])
def test_nothing_at_all(shape: tuple[int, ...]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[..., torch.arange(0, x.shape[-1], 2)]

    x = torch.randn(shape, requires_grad=True)
    fusec.compile(function)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == shape


def test_any_size() -> None:
    compiled = fusec.compile(ENLARGED["bilinear"], dynamic=True)
    for height, width in ((6, 10), (7, 12), (9, 11)):
        x = torch.randn(2, 3, height, width, requires_grad=True)
        compiled(x).sum().backward()
        got, x.grad = x.grad, None
        ENLARGED["bilinear"](x).sum().backward()
        torch.testing.assert_close(got, x.grad)


def test_gradient_with_gaps() -> None:
    compiled = fusec.compile(ENLARGED["bilinear"])
    upstream = torch.randn(2, 12, 20, 3).permute(0, 3, 1, 2)[..., ::1]
    found = []
    for call in (compiled, ENLARGED["bilinear"]):
        x = torch.linspace(0, 1, 360).reshape(2, 3, 6, 10).requires_grad_()
        call(x).backward(upstream)
        found.append(x.grad)
    torch.testing.assert_close(*found)
