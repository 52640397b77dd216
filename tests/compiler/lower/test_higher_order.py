"""Operators that take functions stay calls of torch's own; what stands around them is fused."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import fusec
from fusec.lower.higher_order import HigherOrderCall
from support.compare import difference

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def chosen(x: torch.Tensor) -> torch.Tensor:
    (found,) = torch.cond(x.sum() > 2, lambda x: (x.cos(),), lambda x: (x.sin(),), [x * 2])
    return found.exp() + 1


def repeated(x: torch.Tensor) -> torch.Tensor:
    _, found = while_loop(
        lambda n, x: n > 0, lambda n, x: (n - 1, x.cos()), (torch.tensor(3), x + 1)
    )
    return found * 2


def scanned(x: torch.Tensor) -> torch.Tensor:
    carry, found = scan(lambda c, x: (c + x, (c * x).sin()), torch.zeros(4), x * 2)
    return carry + found.sum(0)


def mapped(x: torch.Tensor) -> torch.Tensor:
    return torch_map(lambda row, y: row.sin() + y, x, torch.ones(4)) * 3


def inverted(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(x.t() @ x + torch.eye(4)) * 2 + 1


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("function", "call"),
    [
        (chosen, "cond"),
        (inverted, "with_effects|check_errors"),  # torch 2.13 and 2.11
        (scanned, "scan"),
        (mapped, "map_impl"),
        (repeated, "while_loop"),
    ],
)
def test_only_the_operator_itself_is_a_call(function: Function, call: str) -> None:
    compiled = fusec.compile(function)
    for x in (torch.linspace(0, 1, 20).reshape(5, 4), -torch.ones(5, 4)):
        assert not difference(compiled(x), function(x))
    (graph,) = compiled.graphs
    assert not graph.fallback
    assert graph.kernels
    assert any(re.search(call, extern.reason) for extern in graph.externs)


def test_gradients_through_a_condition() -> None:
    compiled = fusec.compile(chosen)
    for start in (torch.ones(3), -torch.ones(3)):
        x, y = start.clone().requires_grad_(), start.clone().requires_grad_()
        compiled(x).sum().backward()
        chosen(y).sum().backward()
        assert not difference(x.grad, y.grad)
    assert not any(graph.fallback for graph in compiled.graphs)


def test_an_operator_that_fails_says_so() -> None:
    """Nobody reads what the check of a factorization gives; it is called all the same."""
    compiled = fusec.compile(lambda x: torch.linalg.cholesky(x) * 2)
    assert not difference(compiled(torch.eye(3)), torch.eye(3) * 2)
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(-torch.eye(3))


def test_results_lie_as_traced_in_memory_of_their_own() -> None:
    class Passes:
        def name(self) -> str:
            return "passes"

        def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
            return x, x.t(), None

    x = torch.arange(6.0).reshape(2, 3)
    call = HigherOrderCall(Passes(), ((3, 1), (2, 1), None))  # type: ignore[arg-type]
    same, turned, nothing = call(x)
    assert nothing is None
    assert torch.equal(same, x)
    assert torch.equal(turned, x.t())
    assert (same.stride(), turned.stride()) == ((3, 1), (2, 1))
    memory = {tensor.untyped_storage().data_ptr() for tensor in (x, same, turned)}
    assert len(memory) == 3
