"""Gradients of gradients: eager's, or an error; never none where eager has some."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import functional

import fusec

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _captured_anew() -> None:
    """A function that was captured within a derivative runs in eager elsewhere, too."""
    torch._dynamo.reset()


def cubes(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum() * x.prod() + x.exp().sum()


def of_two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.sin() * y * y).sum()


FORMS: dict[str, Function] = {
    "hessian": functional.hessian,
    "hessian, kept": lambda f, x: functional.hessian(f, x, create_graph=True),
    "hvp": lambda f, x: functional.hvp(f, x, x.cos())[1],
    "vhp": lambda f, x: functional.vhp(f, x, x.cos())[1],
    "jvp": lambda f, x: functional.jvp(f, x, x.cos())[1],
    "jacobian of jacobian": lambda f, x: functional.jacobian(
        lambda each: functional.jacobian(f, each, create_graph=True), x
    ),
    "jacobian": functional.jacobian,
    "vjp": lambda f, x: functional.vjp(f, x)[1],
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("within", [False, True])
def test_functional_derivatives(name: str, within: bool) -> None:
    """Of a compiled function, and within one: its own frame or the one that they call."""
    derive = FORMS[name]
    if within:
        call = fusec.compile(lambda x: derive(cubes, x))
    else:
        compiled = fusec.compile(cubes)

        def call(x: torch.Tensor) -> Any:
            return derive(compiled, x)

    for _ in range(3):
        x = torch.randn(4, dtype=torch.float64)
        torch.testing.assert_close(call(x), derive(cubes, x))


def test_of_two_inputs() -> None:
    compiled = fusec.compile(of_two)
    given = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(
        functional.hessian(compiled, given), functional.hessian(of_two, given)
    )


def test_a_graph_that_was_compiled_before_says_so() -> None:
    compiled = fusec.compile(cubes)
    x = torch.randn(4, requires_grad=True)
    compiled(x).backward()
    with pytest.raises(RuntimeError, match=r"functional\.hessian asks for gradients of gradients"):
        functional.hessian(compiled, x)
    torch.testing.assert_close(functional.jacobian(compiled, x), functional.jacobian(cubes, x))


@pytest.mark.parametrize(
    "ask",
    [
        lambda y, x: torch.autograd.grad(y, x, allow_unused=True),
        lambda y, x: y.backward(inputs=[x]),
    ],
    ids=["grad", "backward"],
)
def test_what_may_be_unused_is_not_taken_for_unused(ask: Function) -> None:
    """torch raises where it comes to the gradient's node; here no way would lead to it."""
    compiled = fusec.compile(cubes)
    for _ in range(2):  # the second is a recorded call
        x = torch.randn(4, requires_grad=True)
        (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
        (eager,) = torch.autograd.grad(cubes(x), x)
        torch.testing.assert_close(first.detach(), eager)
        with pytest.raises(RuntimeError, match="double backward"):
            ask(first.sum(), x)


def test_gradients_that_only_may_be_differentiated_are_the_same() -> None:
    """``create_graph=True`` alone asks for nothing."""
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    compiled = fusec.compile(model)
    x = torch.randn(3, 5)
    for _ in range(3):
        parameters = list(model.parameters())
        got = torch.autograd.grad(compiled(x).sum(), parameters, create_graph=True)
        expected = torch.autograd.grad(model(x).sum(), parameters)
        for one, other in zip(got, expected, strict=True):
            assert one.requires_grad
            assert one.stride() == other.stride()
            torch.testing.assert_close(one.detach(), other)


def constant(x: torch.Tensor) -> Any:
    """Its gradient has no history in eager; AOTAutograd gave it one that raises."""
    return torch.autograd.grad(x.sum(), x, create_graph=True)[0]


def penalty(x: torch.Tensor) -> Any:
    (slope,) = torch.autograd.grad((x.sin() * x).sum(), x, create_graph=True)
    return (slope.norm() - 1) ** 2


def slope_of(y: torch.Tensor, x: torch.Tensor, create_graph: bool = True) -> torch.Tensor:
    return torch.autograd.grad(y, x, create_graph=create_graph)[0]


def by_another_function(x: torch.Tensor) -> Any:
    return slope_of((x**3).sum(), x).exp().sum()


def by_a_function_within(x: torch.Tensor) -> Any:
    y = (x**3).sum()

    def slope() -> torch.Tensor:
        return torch.autograd.grad(y, x, create_graph=True)[0]

    torch._dynamo.graph_break()
    return slope().exp().sum()


def by_backward(x: torch.Tensor) -> Any:
    (x**3).sum().backward(create_graph=True)
    assert x.grad is not None
    return x.grad.exp().sum()


def by_its_place(x: torch.Tensor) -> Any:
    return torch.autograd.grad((x**3).sum(), x, None, None, True)[0].exp().sum()


def by_its_place_in_other_lines(x: torch.Tensor) -> Any:
    return torch.autograd.grad(
        (x**3).sum(),
        x,
        None,
        x.dim() == 2,
        # a comment keeps the lines apart
        True,
    )[0].exp()


def slope_by_its_place(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(y, x, None, True, True)[0]


def by_its_place_in_another_function(x: torch.Tensor) -> Any:
    return slope_by_its_place((x**3).sum(), x).exp().sum()


def by_its_place_of_backward(x: torch.Tensor) -> Any:
    (x**3).sum().backward(None, True, True)
    assert x.grad is not None
    return x.grad.exp().sum()


def by_a_dictionary(x: torch.Tensor) -> Any:
    given = {"create_graph": True}
    return torch.autograd.grad((x**3).sum(), x, **given)[0].exp().sum()


class Forces(nn.Module):
    """Energies with gradients of which training takes gradients."""

    def forward(self, x: torch.Tensor) -> Any:
        energy = (x**3).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=self.training, retain_graph=True)
        return energy + force.pow(2).sum()


def _as_in_eager(function: Function, compiled: Function) -> None:
    for _ in range(2):
        given = [torch.linspace(0.1, 2, 6).reshape(2, 3).requires_grad_() for _ in range(2)]
        expected, got = function(given[0]), compiled(given[1])
        torch.testing.assert_close(got, expected)
        assert got.requires_grad == expected.requires_grad
        if expected.requires_grad:
            expected.sum().backward()
            got.sum().backward()
            torch.testing.assert_close(given[1].grad, given[0].grad)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize(
    "function",
    [
        constant,
        penalty,
        by_another_function,
        by_a_function_within,
        by_backward,
        by_its_place,
        by_its_place_in_other_lines,
        by_its_place_in_another_function,
        by_its_place_of_backward,
        by_a_dictionary,
    ],
    ids=lambda each: each.__name__,
)
def test_gradients_kept_within_what_is_compiled(function: Function) -> None:
    compiled = fusec.compile(function)
    _as_in_eager(function, compiled)
    assert any("asks for gradients of gradients" in each for each in compiled.fallbacks)


@pytest.mark.parametrize("training", [True, False])
def test_gradients_kept_in_training_alone(training: bool) -> None:
    """Where ``create_graph`` is known to be false, nothing runs in eager."""
    model = Forces().train(training)
    compiled = fusec.compile(model)
    _as_in_eager(model, compiled)
    assert bool(compiled.fallbacks) == training


def test_gradients_that_are_not_kept_are_compiled() -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.autograd.grad((x**3).sum(), x, retain_graph=True, create_graph=False)[0]

    compiled = fusec.compile(function)
    _as_in_eager(function, compiled)
    assert not compiled.fallbacks


def test_gradients_that_are_not_kept_by_its_place_are_compiled() -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.autograd.grad((x**3).sum(), x, None, True, False)[0]

    compiled = fusec.compile(function)
    _as_in_eager(function, compiled)
    assert not compiled.fallbacks


def _view(x: torch.Tensor) -> torch.Tensor:
    return x[1:]


def _result(x: torch.Tensor) -> torch.Tensor:
    return x * 1.5


@pytest.mark.parametrize("backend", ["fusec", "torch"])
@pytest.mark.parametrize("of", ["input", "leaf"])
@pytest.mark.parametrize("made", [_view, _result])
def test_a_gradient_of_a_gradient_by_an_input_that_is_no_leaf(
    made: Function, of: str, backend: str
) -> None:
    """It was None: nothing joined the gradient to what is neither a leaf nor saved."""

    def function(z: torch.Tensor) -> torch.Tensor:
        return z.softmax(-1).exp().sum()

    compile_it = {"fusec": fusec.compile, "torch": torch.compile}[backend]
    compiled = compile_it(function, **({"backend": "fusec"} if backend == "torch" else {}))
    for _ in range(3):  # the first call takes a longer way
        x = torch.randn(4, 6, requires_grad=True)
        z = made(x)
        asked = z if of == "input" else x
        (gradient,) = torch.autograd.grad(compiled(z), asked, create_graph=True)
        with pytest.raises(RuntimeError, match="double backward"):
            torch.autograd.grad(gradient.sum(), asked, allow_unused=True)


def test_an_input_is_held_by_nobody_else() -> None:
    compiled = fusec.compile(lambda z: (z * 2).sum())
    for _ in range(3):
        z = torch.randn(3, requires_grad=True) * 1
        result, held = compiled(z), weakref.ref(z)
        del z
        gc.collect()
        assert held() is None
        result.backward()
