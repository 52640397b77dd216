"""What is set on a tensor after it was updated is set on that tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec
from fusec.capture.dynamo.same_tensor import install

State = Callable[[list[nn.Parameter], torch.Tensor], Any]


def training_by_hand(p: list[nn.Parameter], x: torch.Tensor) -> torch.Tensor:
    loss = ((x @ p[0] + p[1]) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for each in p:
            each -= 0.1 * each.grad
            each.grad = None
    return loss.detach()


def every_other_step(p: list[nn.Parameter], x: torch.Tensor) -> torch.Tensor:
    loss = ((x @ p[0] + p[1]) ** 2).mean()
    loss.backward()
    p[0].steps = getattr(p[0], "steps", 0) + 1
    if p[0].steps % 2 == 0:
        with torch.no_grad():
            for each in p:
                each -= 0.1 * each.grad
                each.grad = None
    return loss.detach()


def method(p: list[nn.Parameter], x: torch.Tensor) -> None:
    with torch.no_grad():
        p[0].mul_(0.5).add_(x.mean()).grad = None


def function(p: list[nn.Parameter], x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.relu_(p[0]).grad = None
        F.relu(p[1], inplace=True).grad = None


def initialized(p: list[nn.Parameter], x: torch.Tensor) -> None:
    nn.init.constant_(p[0], 2.0).grad = None


def as_operator(p: list[nn.Parameter], x: torch.Tensor) -> None:
    with torch.no_grad():
        operator.iadd(p[0], 1).grad = None


def own_attribute(p: list[nn.Parameter], x: torch.Tensor) -> None:
    with torch.no_grad():
        one = p[0]
        one -= 1
        one.note = 3


def frozen(p: list[nn.Parameter], x: torch.Tensor) -> None:
    with torch.no_grad():
        one = p[0]
        one -= 1
    one.requires_grad_(False)


def gradient_read_again(p: list[nn.Parameter], x: torch.Tensor) -> torch.Tensor:
    one = p[0]
    one.grad = torch.full((4, 3), 7.0)
    with torch.no_grad():
        one -= one.grad
        one -= one.grad
    return one.grad + 1


def nothing_to_do(p: list[nn.Parameter], x: torch.Tensor) -> None:
    p[0].contiguous().grad = None
    p[1].to(torch.float32).grad = None


def in_a_dictionary(p: list[nn.Parameter], x: torch.Tensor) -> None:
    named = {"w": p[0]}
    with torch.no_grad():
        named["w"] -= 1
        named["w"].grad = None
        named["w"] *= 2


def turned(p: list[nn.Parameter], x: torch.Tensor) -> tuple[Any, ...]:
    y, z = x + 1, x + 2
    y.t_()
    z.transpose_(0, 1)
    return y, z, tuple(y.shape), z.stride(), y.shape == x.shape


def product(p: list[nn.Parameter], x: torch.Tensor) -> tuple[Any, ...]:
    y = z = x.T @ x
    y @= y + 1
    return y, z, y is z


def product_in_eager(p: list[nn.Parameter], x: torch.Tensor) -> tuple[Any, ...]:
    p[0].data = p[0].data * 2  # such a graph runs in eager
    return product(p, x)


FORMS: tuple[State, ...] = (
    training_by_hand,
    every_other_step,
    method,
    function,
    initialized,
    as_operator,
    own_attribute,
    frozen,
    gradient_read_again,
    nothing_to_do,
    in_a_dictionary,
    turned,
    product,
    product_in_eager,
)


def after(form: State, compiler: Callable[[State], State]) -> list[Any]:
    torch._dynamo.reset()
    random = torch.Generator().manual_seed(0)
    held = [nn.Parameter(torch.randn(size, generator=random)) for size in ((4, 3), (3,))]
    for each in held:
        each.grad = torch.ones_like(each)
    called, found = compiler(form), []
    for _ in range(4):
        found.append(called(held, torch.randn(5, 4, generator=random)))
        for each in held:
            gradient = None if each.grad is None else each.grad.clone()
            found.append(
                (each.detach().clone(), gradient, each.requires_grad, getattr(each, "note", None))
            )
            each.requires_grad_()
    return found


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_it_is_as_in_eager(form: State) -> None:
    want = after(form, lambda f: f)
    torch.testing.assert_close(after(form, fusec.compile), want)
    by_name = after(form, lambda f: torch.compile(f, backend="fusec"))
    torch.testing.assert_close(by_name, want)


def test_a_conversion_that_does_nothing_is_not_in_the_graph() -> None:
    """Passes that ask who uses a tensor would see it: attention written out was not recognized."""
    seen = []

    def backend(module, inputs):
        seen.extend(node.target for node in module.graph.nodes if node.op.startswith("call"))
        return module

    install()
    torch._dynamo.reset()
    x = torch.randn(3)
    torch.compile(lambda x: (x * 2).to(x.dtype).contiguous().float() + 1, backend=backend)(x)
    assert not {"to", "contiguous", "float"} & set(seen)
    assert len(seen) == 2
