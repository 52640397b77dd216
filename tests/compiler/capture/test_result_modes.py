"""Results have a history, or are inference tensors, where they are in eager; gradients follow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fusec
from support.calls import strict_calls

__all__ = ["strict_calls"]  # a fixture of every test here

pytestmark = pytest.mark.timeout(300)

Results = tuple[torch.Tensor, ...]


def view_without_gradient(x: torch.Tensor) -> Results:
    with torch.no_grad():
        return (x[..., ::2],)


def views_without_gradient(x: torch.Tensor) -> Results:
    with torch.no_grad():
        return (*x.split(2), x.transpose(0, 1), x.expand(2, 4, 4), x.view_as(x), x.detach()[0])


def view_of_one_row_without_gradient(x: torch.Tensor) -> Results:
    """How far apart rows lie can be seen of one row, too."""
    with torch.no_grad():
        return x.narrow(0, 0, 1).narrow(1, 0, 2), x[..., :1].transpose(0, 1)


def view_of_new_without_gradient(x: torch.Tensor) -> Results:
    y = x * 2
    with torch.no_grad():
        v = y[..., ::2]
    return y, v


def only_view_without_gradient(x: torch.Tensor) -> Results:
    y = x * 2
    with torch.no_grad():
        return (y[..., ::2],)


def view_without_gradient_and_more(x: torch.Tensor) -> Results:
    with torch.no_grad():
        v = x[..., ::2]
    return v, v * 2, x + 1


def view_with_gradient(x: torch.Tensor) -> Results:
    with torch.enable_grad():
        return (x[..., ::2],)


def view_of_new_with_gradient(x: torch.Tensor) -> Results:
    z = x + 1
    with torch.enable_grad():
        y = x * 2
        return y, y[..., ::2], z


def updated_with_gradient(x: torch.Tensor) -> Results:
    with torch.enable_grad():
        y = (x * x)[None][0]
        y.detach().mul_(0.5)
        return y, y.to(torch.float32)


def made_in_inference_mode(x: torch.Tensor) -> Results:
    with torch.inference_mode():
        y = x * 2
        v = y[::2]
    return y, v, y[1:], x * 3


def view_in_inference_mode(x: torch.Tensor) -> Results:
    with torch.inference_mode():
        return x[..., ::2], x[0] + 1


def without_inputs_in_inference_mode(x: torch.Tensor) -> Results:
    with torch.inference_mode():
        y = torch.ones(3)
    return y, torch.ones(3)


def inference_mode_off(x: torch.Tensor) -> Results:
    with torch.inference_mode(False):
        return x * 2, x[::2]


def inference_mode_off_within(x: torch.Tensor) -> Results:
    with torch.inference_mode():
        y = x * 2
        with torch.inference_mode(False):
            z = x * 4
        return y, z, x * 5


def recorded_in_inference_mode(x: torch.Tensor) -> Results:
    with torch.inference_mode(), torch.enable_grad():
        return (x * 2,)


def product_with_an_inference_tensor(x: torch.Tensor) -> Results:
    with torch.inference_mode():
        y = torch.softmax(x, -1)
    with torch.autocast("cpu", torch.bfloat16):
        return x @ y, y


def one_tensor_twice_in_inference_mode(x: torch.Tensor) -> Results:
    with torch.inference_mode():
        y = x * 2
        z = y.contiguous()  # the same tensor
    return y, y[0], z, z.float()


def one_view_twice_without_gradient(x: torch.Tensor) -> Results:
    y = x * 2
    with torch.no_grad():
        v = y[..., ::2]
        w = v.to(torch.float32)
    return y, v, w, v.view_as(v)


def view_of_a_view_without_gradient(x: torch.Tensor) -> Results:
    y = x * 2
    with torch.no_grad():
        v = y[..., ::2]
    return y, v[0], v.view_as(v)


def view_of_a_view_of_an_input_without_gradient(x: torch.Tensor) -> Results:
    with torch.no_grad():
        v = x[..., ::2]
    return v, v[0], v[0] * 1


def one_view_twice(x: torch.Tensor) -> Results:
    y = x * 2
    v = y[..., ::2]
    return y, v, v.float(), v.contiguous(), v.to(torch.float32)


FUNCTIONS: list[Callable[[torch.Tensor], Results]] = [
    view_without_gradient,
    views_without_gradient,
    view_of_one_row_without_gradient,
    view_of_new_without_gradient,
    only_view_without_gradient,
    view_without_gradient_and_more,
    view_with_gradient,
    view_of_new_with_gradient,
    updated_with_gradient,
    made_in_inference_mode,
    view_in_inference_mode,
    without_inputs_in_inference_mode,
    inference_mode_off,
    inference_mode_off_within,
    recorded_in_inference_mode,
    product_with_an_inference_tensor,
    one_tensor_twice_in_inference_mode,
    one_view_twice_without_gradient,
    one_view_twice,
    view_of_a_view_without_gradient,
    view_of_a_view_of_an_input_without_gradient,
]
CONTEXTS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "gradients": contextlib.nullcontext,
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
}


def a_leaf() -> torch.Tensor:
    return torch.arange(16.0).div(8).reshape(4, 4).clone().requires_grad_()


def a_view() -> torch.Tensor:
    """Return a leaf that is a view of what autograd does not know."""
    return torch.arange(16.0).div(8).reshape(4, 4).requires_grad_()


def without_gradient() -> torch.Tensor:
    return torch.arange(16.0).div(8).reshape(4, 4).clone()


def outcome(
    function: Callable[..., Any], context: str, make: Callable[[], torch.Tensor]
) -> Iterator[object]:
    """Yield what can be seen of the results, and the gradient of those that have a history."""
    x = make()
    with CONTEXTS[context]():
        results = function(x)
    for each in results:
        yield each.requires_grad, each.grad_fn is not None, each.is_inference()
        yield (each.stride(), each.tolist())
        same = each.untyped_storage().data_ptr()
        yield [same == other.untyped_storage().data_ptr() for other in (x, *results)]
        yield [each is other for other in (x, *results)]
    ends = [each for each in results if each.grad_fn is not None]
    if ends:
        torch.autograd.backward(ends, [torch.ones_like(each) for each in ends])
    yield None if x.grad is None else x.grad.tolist()


@pytest.mark.sample(8)
@pytest.mark.parametrize("make", [a_leaf, a_view, without_gradient], ids=["leaf", "view", "plain"])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_results_are_recorded_as_in_eager(
    function: Callable[[torch.Tensor], Results], context: str, make: Callable[[], torch.Tensor]
) -> None:
    expected = list(outcome(function, context, make))
    torch._dynamo.reset()
    for compiled in (fusec.compile(function), torch.compile(function, backend="fusec")):
        for _ in range(2):
            assert list(outcome(compiled, context, make)) == expected
        torch._dynamo.reset()


def test_one_function_within_and_outside_of_inference_mode() -> None:
    compiled = fusec.compile(view_of_new_with_gradient)
    for context in ("no gradients", "inference mode", "no gradients"):
        expected = list(outcome(view_of_new_with_gradient, context, a_leaf))
        assert list(outcome(compiled, context, a_leaf)) == expected


def test_what_autograd_may_not_save_raises() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            y = x.exp()
        return x * y

    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        function(a_leaf())
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        fusec.compile(function)(a_leaf())
    torch.testing.assert_close(torch.ones(3) + 1, torch.full((3,), 2.0))  # torch works as before


def test_what_is_kept_of_a_result_in_inference_mode() -> None:
    """Kernels compute it, and nobody copies it."""

    def function(x: torch.Tensor) -> Results:
        with torch.inference_mode():
            y = torch.sin(x) + 1
            return y, y[0]

    compiled = fusec.compile(function)
    whole, first = compiled(torch.ones(4, 4))
    assert whole.is_inference()
    assert first.is_inference()
    assert whole.data_ptr() == first.data_ptr()
    (graph,) = compiled.graphs
    assert graph.kernels
    assert not graph.fallback


def hook_beside_a_view_without_history(x: torch.Tensor) -> Results:
    y = torch.lerp(x, x * x, 0.25)
    y.register_hook(lambda g: g * 0.5)
    with torch.no_grad():
        v = y.expand_as(y)
        w = y + torch.zeros_like(y, requires_grad=True)
    return w, v, torch.exp(-y * y)


def hook_put_on_without_gradient(x: torch.Tensor) -> Results:
    y = x / (x * x + 1)
    with torch.no_grad():
        y.register_hook(lambda g: g)
    return (y,)


def hook_put_on_under_no_grad(x: torch.Tensor) -> Results:
    y = x * x
    with torch.no_grad():
        y.register_hook(lambda g: g * 0.5)
    return (y,)


def hook_put_on_in_inference_mode(x: torch.Tensor) -> Results:
    y = x * x
    z = y.sin()
    with torch.inference_mode():
        y.register_hook(lambda g: g * 0.5)
        w = y / 2
    return w, y + z


@pytest.mark.parametrize(
    "function",
    [
        hook_beside_a_view_without_history,
        hook_put_on_without_gradient,
        hook_put_on_under_no_grad,
        hook_put_on_in_inference_mode,
    ],
)
def test_hooks_beside_views_without_history(function: Any) -> None:
    """On torch 2.11 some did nothing, and another cost the gradient."""

    def gradient(f: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        x = torch.randn(2, 3, requires_grad=True)
        results = f(x)
        results[-1].sum().backward()
        return [x.grad, *(r.detach() for r in results)]

    compiled = fusec.compile(function)
    for _ in range(2):
        for got, want in zip(gradient(compiled), gradient(function), strict=True):
            torch.testing.assert_close(got, want)


def test_an_update_of_what_is_detached_from_a_view() -> None:
    """The history of the other view is asked for, which failed an assertion of torch 2.11's."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.transpose(0, 0)
        y.detach().mul_(0.5)
        return y

    def outcome(function: Any) -> tuple[torch.Tensor, torch.Tensor, bool]:
        x = torch.ones(2, 3).mT.contiguous().mT.requires_grad_()
        y = function(x)
        return x.detach(), y.detach(), y.grad_fn is not None

    compiled = fusec.compile(f)
    for _ in range(2):
        torch.testing.assert_close(outcome(compiled), outcome(f))


def wants_gradients_by_another_name(x: torch.Tensor) -> Results:
    y = torch.sigmoid(x.detach())
    y.float().requires_grad_()  # the same tensor
    return y * 3, y


def wanted_gradients_by_another_name(x: torch.Tensor) -> Results:
    y = torch.sigmoid(x.detach())
    z = y.contiguous()
    y.requires_grad_()
    return z * 3, z


def wants_gradients_without_history(x: torch.Tensor) -> Results:
    with torch.no_grad():
        y = torch.sigmoid(x)
    z = y.to(x.dtype)
    y.requires_grad_()
    return z * 3, z


def wants_gradients_in_inference_mode(x: torch.Tensor) -> Results:
    with torch.inference_mode():
        y = torch.sigmoid(x)
    z = y.contiguous()
    with torch.inference_mode():
        y.requires_grad_()
    return z, y


@pytest.mark.parametrize("make", [a_leaf, without_gradient], ids=["leaf", "plain"])
@pytest.mark.parametrize(
    "function",
    [
        wants_gradients_by_another_name,
        wanted_gradients_by_another_name,
        wants_gradients_without_history,
        wants_gradients_in_inference_mode,
    ],
    ids=lambda f: f.__name__,
)
def test_what_wants_gradients_by_another_name(
    function: Callable[[torch.Tensor], Results], make: Callable[[], torch.Tensor]
) -> None:
    """AOTAutograd drops ``requires_grad_()``, and the gradient with it."""

    def outcome(f: Callable[[torch.Tensor], Results]) -> list[object]:
        x = make()
        first, second = f(x)
        found: list[object] = [
            (each.requires_grad, each.is_leaf, each.is_inference()) for each in (first, second)
        ]
        if first.grad_fn is not None:
            first.sum().backward()
        return [*found, first is second, x.grad, None if second.grad is None else second.grad.sum()]

    compiled = fusec.compile(function)
    for _ in range(2):
        assert outcome(compiled) == outcome(function)
