"""What no loss depends on has no gradient, as in eager: zeros would move parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fusec
from fusec.capture.backend import fusec_backend
from support.calls import strict_calls

__all__ = ["strict_calls"]  # a fixture of every test here

pytestmark = pytest.mark.timeout(300)

Function = Callable[..., Any]
Tensor = torch.Tensor


class Pair(torch.autograd.Function):
    """Whoever is asked for the gradient of one result of a function gives zeros for the other."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a * 2, b * 3

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a * 2, b * 3


class Ones(torch.autograd.Function):
    """Its gradient does not depend on the one that it is given."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        return a * 2

    @staticmethod
    def backward(ctx: Any, a: Tensor) -> Tensor:
        return torch.ones_like(a)


class NoSecond(torch.autograd.Function):
    """Gives the second of its inputs no gradient."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a * 1, b * 1

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, None]:
        return a, None


def apart(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return x * 2, y * z


def shared(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return x * y, y * z


def rounded(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return torch.round(x) * 1, x * y * z  # the first gradient of x is zeros, in eager as well


def of_a_pair(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    a, b = Pair.apply(x, y)
    return a, b * z


def of_ones(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return Ones.apply(x) + z, y * z


def views(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    a, b = x * 2, y * z
    return a[:2], b[1:], a[1:], b.view(3)


def view_and_base(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    a = x * 2
    return a[:2], (y * z).view(3), a


def view_of_input(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return x.view(3), x * 2, y * z


def checkpointed(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return checkpoint(lambda a: a.sin() * y, x, use_reentrant=False), x * z


def under_no_grad(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        a = x * 2
    return a * y, x * z.detach()


def in_two_graphs(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    a, b = x * 2, y * z
    torch._dynamo.graph_break()
    return a + 1, b * 2


def under_autocast(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", torch.bfloat16):
        return x.outer(y) @ y, y.outer(z) @ z


FUNCTIONS = (
    apart,
    shared,
    rounded,
    of_a_pair,
    of_ones,
    views,
    view_and_base,
    view_of_input,
    checkpointed,
    under_no_grad,
    in_two_graphs,
    under_autocast,
)


def leaves(call: int) -> list[Tensor]:
    torch.manual_seed(call)
    return [torch.randn(3, requires_grad=True) for _ in range(3)]


def same_gradients(mine: Sequence[Tensor], eager: Sequence[Tensor]) -> None:
    assert [each.grad is None for each in mine] == [each.grad is None for each in eager]
    for a, b in zip(mine, eager, strict=True):
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)


def compare(function: Function, compiled: Function, asked: Function) -> None:
    for call in range(3):
        mine, eager = leaves(call), leaves(call)
        asked(compiled(*mine))
        asked(function(*eager))
        same_gradients(mine, eager)


class OfZeros(torch.autograd.Function):
    """Makes something of a gradient that nobody asked for, which is zeros."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(b)
        return a * 2, b * 3

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        (saved,) = ctx.saved_tensors
        return a * b.exp(), b * 3 + saved.sin() + (b + 1).sum()


def of_zeros(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a, b = OfZeros.apply(x, y)
    return a.sin(), b.cos(), x * y


def again(function: Function) -> Function:
    return lambda x, y: checkpoint(function, x, y, use_reentrant=False)


ZEROS: dict[str, Function] = {
    "here": of_zeros,
    "in a checkpoint": again(of_zeros),
    "in a checkpoint, goes on": lambda x, y: tuple(
        each * y.sin() for each in again(of_zeros)(x * 2, y)
    ),
    "in two": again(again(of_zeros)),
}


@pytest.mark.parametrize("function", ZEROS.values(), ids=ZEROS)
@pytest.mark.parametrize("result", range(3))
def test_a_function_of_the_users_may_make_anything_of_zeros(
    result: int, function: Function
) -> None:
    found = []
    for called in (fusec.compile(function), function):
        torch.manual_seed(0)
        given = [torch.randn(5, requires_grad=True) for _ in range(2)]
        called(*given)[result].sum().backward()
        found.append(given)
    same_gradients(*found)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("function", "dynamic"),
    [*((each, False) for each in FUNCTIONS), (shared, True), (views, True)],
    ids=[*(each.__name__ for each in FUNCTIONS), "shared, dynamic", "views, dynamic"],
)
def test_some_results_are_in_the_loss(function: Function, dynamic: bool) -> None:
    compiled = fusec.compile(function, dynamic=dynamic)
    count = len(function(*leaves(0)))
    for i in range(count):
        compare(function, compiled, lambda results, i=i: results[i].sum().backward())
    compare(function, compiled, lambda results: sum(r.sum() for r in results).backward())


def test_by_torchs_own_way() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(apart, backend=fusec_backend)
    compare(apart, compiled, lambda results: results[1].sum().backward())


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("options", [{"retain_graph": True}, {"create_graph": True}], ids=str)
def test_a_graph_that_is_kept(options: dict[str, bool]) -> None:
    def asked(results: tuple[Tensor, ...]) -> None:
        torch.autograd.backward(results[0].sum(), **options)

    compare(apart, fusec.compile(apart), asked)


def test_one_after_the_other() -> None:
    def asked(results: tuple[Tensor, ...]) -> None:
        results[0].sum().backward(retain_graph=True)
        results[1].sum().backward()

    compare(apart, fusec.compile(apart), asked)


def test_none_of_the_results() -> None:
    """A function after it gives them no gradient."""

    def asked(results: tuple[Tensor, ...]) -> None:
        a, b = NoSecond.apply(torch.ones(3, requires_grad=True), results[1])
        (a.sum() + b.sum()).backward()

    compare(shared, fusec.compile(shared), asked)
    one = lambda x, y, z: (x, x * y * z)  # noqa: E731
    compare(one, fusec.compile(one), asked)


def test_what_is_unused_is_refused() -> None:
    compiled = fusec.compile(apart)
    x, y, z = leaves(0)
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad(compiled(x, y, z)[0].sum(), [x, y])
    found = torch.autograd.grad(compiled(x, y, z)[0].sum(), [x, y], allow_unused=True)
    assert found[1] is None


def test_inputs_that_are_no_leaves() -> None:
    compiled = fusec.compile(shared)
    for call in range(3):
        found = []
        for function in (compiled, shared):
            given = leaves(call)
            function(*(each.sin() for each in given))[1].sum().backward()
            found.append(given)
        same_gradients(*found)
        assert found[0][0].grad is None


def test_beside_a_buffer_that_is_updated() -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        buffer.add_(1)
        return x * buffer, y * z

    buffer = torch.zeros(3)
    compiled = fusec.compile(function)
    for i in range(2):
        buffer.zero_()
        mine, eager = leaves(0), leaves(0)
        compiled(*mine)[i].sum().backward()
        buffer.zero_()
        function(*eager)[i].sum().backward()
        same_gradients(mine, eager)


class TwoHeads(nn.Module):
    """A model of which one step trains one head, and the next step the other."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.body(x).relu()
        return tuple(head(x) for head in self.heads)


@pytest.mark.parametrize("name", ["momentum", "decay", "adamw"])
def test_an_optimizer_moves_what_it_does_in_eager(name: str) -> None:
    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        if name == "adamw":
            return torch.optim.AdamW(model.parameters(), lr=0.1)
        given = {"momentum": 0.9} if name == "momentum" else {"weight_decay": 0.1}
        return torch.optim.SGD(model.parameters(), lr=0.1, **given)

    weights = []
    for compile_it in (True, False):
        torch.manual_seed(0)
        model = TwoHeads()
        call = fusec.compile(model) if compile_it else model
        steps = optimizer(model)
        for step in range(4):
            steps.zero_grad()
            call(torch.randn(3, 4))[step // 3].pow(2).sum().backward()
            steps.step()
        weights.append([each.detach().clone() for each in model.parameters()])
    torch.testing.assert_close(*weights)


def test_compiled_autograd_is_given_zeros() -> None:
    compiled = fusec.compile(shared)
    mine, eager = leaves(0), leaves(0)
    with torch._dynamo.compiled_autograd._enable(lambda g: torch.compile(g, backend="eager")):
        compiled(*mine)[0].sum().backward()
    torch._dynamo.compiled_autograd.reset()
    shared(*eager)[0].sum().backward()
    torch.testing.assert_close([mine[0].grad, mine[1].grad], [eager[0].grad, eager[1].grad])


def infinite(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return x * 2 + y, torch.log(x * 0) * z  # zeros times the derivative at 0 are NaN


def infinite_cat(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    a, b = torch.cat([x, y]).chunk(2)
    return a.sin(), b.sin() / (b * 0), a * b * z


def infinite_rows(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    rows = torch.stack([x, y, z])
    return torch.softmax(rows @ rows, -1) @ z, (rows * 0).norm(dim=-1) ** 0.5


@pytest.mark.sample(1)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "function", [infinite, infinite_cat, infinite_rows], ids=lambda each: each.__name__
)
def test_nothing_is_computed_from_zeros(function: Function, dynamic: bool) -> None:
    compiled = fusec.compile(function, dynamic=dynamic)
    for i in range(len(function(*leaves(0)))):
        for call in range(2):
            mine, eager = leaves(call), leaves(call)
            compiled(*mine)[i].sum().backward()
            function(*eager)[i].sum().backward()
            assert [each.grad is None for each in mine] == [each.grad is None for each in eager]
            for a, b in zip(mine, eager, strict=True):
                if b.grad is not None:
                    torch.testing.assert_close(a.grad, b.grad, equal_nan=True)


@pytest.mark.parametrize("way", ["detach", "no_grad"])
def test_a_leaf_that_is_only_updated_has_no_gradient(way: str) -> None:
    def function(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before = a * 3
        if way == "detach":
            c.detach().mul_(0.5)
        else:
            with torch.no_grad():
                c.mul_(0.5)
        return before * b, (c.detach() * b).cos(), c * b

    def gradients(called: Function, loss: Function) -> list[Tensor | None]:
        torch.manual_seed(0)
        given = [torch.randn(4, requires_grad=True) for _ in range(3)]
        loss(called(*given)).backward()
        return [*(t.grad for t in given), given[2].detach()]

    losses: list[Function] = [
        lambda r: r[0].sum(),
        lambda r: (r[0] + r[1]).sum(),
        lambda r: (r[0] * r[1] + r[2]).sum(),
        lambda r: r[1].sum(),
    ]
    for loss in losses:
        compiled = fusec.compile(function)
        for _ in range(2):
            found, wanted = gradients(compiled, loss), gradients(function, loss)
            assert [t is None for t in found] == [t is None for t in wanted]
            for ours, eagers in zip(found, wanted, strict=True):
                torch.testing.assert_close(ours, eagers)


def updated(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    x.mul_(y)
    return z * 2, x + 1


def updated_by_view(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    before = x + z
    x[1:].mul_(0.5)
    return y * 2, before, x * y, z.exp()


def updated_twice(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    y.add_(z)
    x.mul_(y)
    return z * 2, z * x, y * z


@pytest.mark.sample(2)
@pytest.mark.parametrize("change", [torch.sin, lambda each: (each * 1).view(3)], ids=["", "view"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "function", [updated, updated_by_view, updated_twice], ids=lambda each: each.__name__
)
def test_an_updated_input(function: Function, dynamic: bool, change: Function) -> None:
    compiled = fusec.compile(function, dynamic=dynamic)
    count = len(function(*(each * 1 for each in leaves(0))))
    for i in range(count + 1):  # the last is the gradient of what the first became
        found = []
        for called in (compiled, function):
            ends = leaves(i)
            given = [change(each) for each in ends]
            [*called(*given), given[0]][i].sum().backward()
            found.append(ends)
        same_gradients(*found)
