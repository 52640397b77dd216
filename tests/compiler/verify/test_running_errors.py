"""How far roundings can carry a kernel's results, held against float32's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusec
from fusec.ir.interpret import Evaluator, run_body
from fusec.ir.node import Load
from fusec.verify.trials.running_errors import RunningErrors

FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "products": lambda a, b, c: a * b - b * c,
    "reordered": lambda a, b, c: a + b - c,
    "behind a root": lambda a, b, c: torch.sqrt(torch.relu(a * b - b * c)),
    "exponentials": lambda a, b, c: torch.exp(a * b) - torch.exp(b * c),
    "quotients": lambda a, b, c: torch.tanh((a * b - b * c) / (b * b + 1)),
    "sums": lambda a, b, c: (a * b - b * c).sum(-1, keepdim=True) * a,
}


def evaluated(
    function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], evaluate: type[Evaluator]
) -> torch.Tensor:
    torch._dynamo.reset()
    call = fusec.compile(function, keep_inputs=True, dynamic=False)
    expected = call(*inputs)
    (kernel,) = call.kernels.values()
    body = kernel.body
    assert body is not None
    (store,) = body.stores
    ranks = {node.buffer: len(node.index) for node in body.nodes() if isinstance(node, Load)}
    tensors = {f"arg{i}_1": tensor.double() for i, tensor in enumerate(inputs)}
    tensors[store.buffer] = torch.zeros(expected.shape, dtype=torch.float64)
    ranks[store.buffer] = len(store.index)
    laid_out = {
        name: each if ranks[name] == each.dim() else each.reshape(-1)
        for name, each in tensors.items()
    }
    run_body(body, laid_out, None, torch.float64, evaluate)
    return laid_out[store.buffer].reshape(expected.shape)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_is_within_them(name: str) -> None:
    """Where all cancels, as well: ``c`` is ``a`` but for its last digits."""
    a, b = torch.randn(40, 32), torch.randn(40, 32)
    c = a * (1 + 1e-7 * torch.randint(-3, 4, a.shape))
    exact = evaluated(FUNCTIONS[name], [a, b, c], Evaluator)
    reach = (evaluated(FUNCTIONS[name], [a, b, c], RunningErrors) - exact).abs()
    off = (FUNCTIONS[name](a, b, c).double() - exact).abs()
    assert bool((off > 0).any())
    assert bool((off <= reach).all())
    # Nor are they so far that a digit would not be missed.
    ordinary = torch.randn(40, 32)
    exact = evaluated(FUNCTIONS[name], [a, b, ordinary], Evaluator)
    reach = (evaluated(FUNCTIONS[name], [a, b, ordinary], RunningErrors) - exact).abs()
    assert float(reach.median()) < 4e-6 * float(exact.abs().mean())


def test_of_two_that_cannot_be_told_apart_either_may_be_chosen() -> None:
    """A ``relu`` of what is zero, or a little less."""
    a, b = torch.full((4, 8), 1000.0), torch.full((4, 8), 1.1)
    c = torch.nextafter(a, a + 1)
    bound = evaluated(FUNCTIONS["behind a root"], [a, b, c], RunningErrors)
    assert 0.01 < float(bound.min()) <= float(bound.max()) < 0.05


def test_a_step_is_no_rounding() -> None:
    a, b = torch.full((4, 8), 3.0), torch.full((4, 8), 1.0)
    assert torch.equal(
        evaluated(lambda a, b: torch.floor(a / b), [a, b], RunningErrors), a.double()
    )
