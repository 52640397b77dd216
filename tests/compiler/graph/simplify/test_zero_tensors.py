"""Forward gradients of what has no tangent: zeros without memory, to which kernels have no way."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.func import jvp

import fusec

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FUNCTIONS: dict[str, Function] = {
    "dot": torch.dot,
    "vdot": torch.vdot,
    "matmul": torch.matmul,
    "mv": lambda v, c: torch.mv(v.outer(v), c),
    "ldexp": torch.ldexp,
    "mul": torch.mul,
    "div": torch.div,
    "addcmul": lambda v, c: torch.addcmul(v, c, c),
    "cross": torch.linalg.cross,
}
VALUES = {
    "finite": ([0.5, -1.0, 2.0], [1.0, -0.0, -3.0]),
    "special": ([math.inf, 1.0, math.nan], [-0.0, math.inf, 1.0]),
    "infinite constant": ([1.0, -0.0, 2.0], [math.inf, math.nan, 0.0]),
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_gradients(name: str, values: str, dynamic: bool) -> None:
    function = FUNCTIONS[name]

    def run(x: torch.Tensor, c: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return jvp(lambda v: function(v, c), (x,), (t,))  # type: ignore[no-any-return]

    torch._dynamo.reset()
    given, constant = (torch.tensor(each) for each in VALUES[values])
    tangent = torch.tensor([-0.0, 1.0, -2.0])
    compiled = fusec.compile(run, dynamic=dynamic)
    for actual, expected in zip(
        compiled(given, constant, tangent), run(given, constant, tangent), strict=True
    ):
        torch.testing.assert_close(actual, expected, equal_nan=True)
        assert torch.equal(actual.signbit()[expected == 0], expected.signbit()[expected == 0])
    assert not any(graph.fallback for graph in compiled.graphs)


# A tensor without memory as a call's own operand: what each operator makes of it in eager.
def zeros(x: torch.Tensor) -> torch.Tensor:
    return torch._efficientzerotensor(x.shape, dtype=x.dtype, device=x.device)


OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "product": lambda x: torch.ones_like(x) + x * zeros(x),
    "product with a number": lambda x: torch.ones_like(x) + zeros(x) * math.inf,
    "quotient": lambda x: torch.ones_like(x) + zeros(x) / x,
    "divisor": lambda x: x / zeros(x),
    "sum": lambda x: x + zeros(x),
    "sum, second": lambda x: zeros(x) + x,
    "difference": lambda x: x - zeros(x),
    "difference, second": lambda x: zeros(x) - x,
    "multiple": lambda x: torch.add(zeros(x), x, alpha=2),
    "multiple of it": lambda x: torch.add(x, zeros(x), alpha=-2),
    "product of a view": lambda x: torch.ones_like(x) + x[None] * zeros(x)[None].expand(2, -1),
    "computed with": lambda x: torch.addcmul(x, x, zeros(x)),
    "negated": lambda x: (-zeros(x)).copysign(x) + -zeros(x),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    function = OPERATORS[name]
    torch._dynamo.reset()
    x = torch.tensor([math.inf, -0.0, 0.0, -1.5, math.nan, 2.0])
    compiled = fusec.compile(function)
    actual, expected = compiled(x), function(x)
    torch.testing.assert_close(actual, expected, equal_nan=True)
    assert torch.equal(actual.signbit()[expected == 0], expected.signbit()[expected == 0])
    assert not any(graph.fallback for graph in compiled.graphs)
