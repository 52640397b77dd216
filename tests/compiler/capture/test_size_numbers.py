"""Numbers that follow from symbolic ones (``n / 10``): one graph is for all, with eager's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

import fusec

F64 = torch.float64


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()  # TorchDynamo remembers which numbers changed


FUNCTIONS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "a factor": lambda x, n: x * (n / 10),
    "an inverse": lambda x, n: x + 1 / n,
    "a schedule": lambda x, n: x * (1 - n / 10) + x * x * (0.1 + 0.9 * n / 10),
    "a mean so far": lambda x, n: x * (n / (n + 1)) + 1 / (n + 1),
    "warming up": lambda x, n: x * min(1.0, n / 6),
    "at least": lambda x, n: x * max(0.5, n / 6),
    "a distance": lambda x, n: x * abs(n / 10 - 0.5) + -(n / 10),
    "a divisor": lambda x, n: x / (n / 3),
    "bounds": lambda x, n: x.clamp(-n / 30, n / 70),
    "a bound": lambda x, n: F.hardtanh(x, -n / 30, n / 70),
    "a filled tensor": lambda x, n: torch.full((2, 3), n / 3, device=x.device),
    "filled alike": lambda x, n: x - torch.full_like(x, n / 3),
    "a tensor": lambda x, n: x * torch.tensor(n / 10),
    "a choice": lambda x, n: torch.where(x > n / 10, x, n / 3),
    "a mask": lambda x, n: x.masked_fill(x > 0, n / 3),
    "a comparison": lambda x, n: (x > n / 10, x == n / 10),
    "an update": lambda x, n: x.clone().add_(n / 3).mul_(n / 7),
    "a slope": lambda x, n: F.leaky_relu(x, n / 100),
    "a threshold": lambda x, n: F.threshold(x, n / 10, n / 7),
    "a remainder": lambda x, n: (x % (n / 10), torch.fmod(x, n / 10), x // (n / 10)),
    "a sign": lambda x, n: torch.copysign(x, n / 10 - 0.55),
    "a temperature": lambda x, n: torch.softmax(x / (n / 10), 0),
    "a scaled sum": lambda x, n: torch.add(x, x * x, alpha=n / 7),
    "a result": lambda x, n: (x + 1, n / 10),
    "a branch": lambda x, n: x * (n / 10) if n / 10 > 0.55 else x - n / 10,
    "integers": lambda x, n: (x * 9).long() * (n / 10) + (x > 0) * (n / 3),
}
NUMBERS = (4, 3, 5, 8, 9)


def _graphs_of_aot_eager(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> int:
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=counter)
    for call in calls:
        compiled(*call)
    torch._dynamo.reset()
    return int(counter.frame_count)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_for_all_numbers(name: str) -> None:
    function = FUNCTIONS[name]
    calls = [(torch.randn(37), n) for n in NUMBERS]
    wanted = _graphs_of_aot_eager(function, calls)
    compiled = fusec.compile(function)
    for x, n in calls:
        torch.testing.assert_close(compiled(x, n), function(x, n))
    assert len(compiled.graphs) == wanted <= 3


@pytest.mark.parametrize("name", ["a factor", "a schedule", "bounds", "a choice", "a result"])
def test_for_a_gpu(name: str) -> None:
    function = FUNCTIONS[name]
    compiled = fusec.compile(function, target="triton")
    for n in NUMBERS:
        x = torch.randn(37)
        torch.testing.assert_close(compiled(x, n), function(x, n), rtol=1e-6, atol=1e-7)
    assert len(compiled.graphs) == 2


LARGE = (2**31 + 5, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**60 + 1, 2**63 - 1)
EXACT: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...], int]] = {
    "numbers that float64 does not hold": (
        lambda x, n: x * (n / 10),
        tuple((n,) for n in (4, 5, -3, 10**9 + 7, *LARGE)),
        6,
    ),
    "a product of them": (
        lambda x, n: x * (n * n / 10),
        tuple((n,) for n in (4, 5, -3, 94906265, 94906267, 2**40 + 1)),
        4,
    ),
    "a quotient of a product that wraps": (
        lambda x, n: x * ((n * n * n // 2000) / 10),
        tuple((n,) for n in (4, 9, 2**20 + 3, 2**22 + 7, 2**30 + 1)),
        5,
    ),
    "a schedule": (
        lambda x, n, m: x * (1e-4 + 0.02 * n / m) + (1 - 0.1 * n) * (n / m),
        ((4, 10), (5, 11), (10, 12), (10, -7), (-3, 7), (0, -7)),
        3,
    ),
    "a sum that is zero": (
        lambda x, n: x / (1 - 0.1 * (n / 2)),
        tuple((n,) for n in (4, 6, 20, -20, 0)),
        2,
    ),
    "a zero with a sign": (
        lambda x, n: torch.full_like(x, 3).copysign(n / -7),
        tuple((n,) for n in (4, 6, 0, -3)),
        2,
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_to_the_last_bit(name: str) -> None:
    function, calls, graphs = EXACT[name]
    compiled, x = fusec.compile(function), torch.randn(7, dtype=F64)
    for numbers in calls:
        wanted = function(x, *numbers)
        torch.testing.assert_close(compiled(x, *numbers), wanted, rtol=0, atol=0)
    assert len(compiled.graphs) <= graphs


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.bool])
def test_as_a_number_that_is_known(dtype: torch.dtype) -> None:
    """Where a kernel rounds less often than eager, it does so for both kinds of numbers."""
    x = torch.randn(99).to(dtype)

    def function(x: torch.Tensor, a: float) -> tuple[torch.Tensor, ...]:
        return x + a, x * a, x / a, x > a

    compiled = fusec.compile(lambda x, n: function(x, n / 7))
    for n in (4, 3, 5, 10**6 + 1):
        known = fusec.compile(lambda x, n=n: function(x, n / 7))
        for result, wanted in zip(compiled(x, n), known(x), strict=True):
            assert result.dtype == wanted.dtype
            assert torch.equal(result, wanted)
    assert len(compiled.graphs) == 2


def test_products_of_large_numbers_for_a_gpu() -> None:
    """A kernel may be given sizes in 32 bits; their product is one of 64."""
    compiled = fusec.compile(lambda x, n: x * (n * n / 10), target="triton")
    for n in (4, 3, 100_000, -94_906_000):
        x = torch.randn(37)
        torch.testing.assert_close(compiled(x, n), x * (n * n / 10), rtol=1e-6, atol=0)
    assert len(compiled.graphs) == 2


def test_lengths_that_are_declared_to_change() -> None:
    compiled = fusec.compile(lambda x: x * (x.shape[0] / 10) + 1 / x.shape[0])
    for rows in (4, 5, 9):
        x = torch.randn(rows, 3, dtype=F64)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), x * (rows / 10) + 1 / rows, rtol=0, atol=0)
    assert len(compiled.graphs) == 1


GRADIENTS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "a factor": lambda x, n: x.sin() * (n / 10),
    "bounds": lambda x, n: x.clamp(-n / 10, n / 7) * x,
    "a threshold": lambda x, n: F.threshold(x * x, n / 10, n / 7),
    "a schedule": lambda x, n: ((1 - n / 10) * x + (n / 10) * x * x) / (1 + n / 20),
    "a choice": lambda x, n: torch.where(x > n / 10, x * x, n / 3),
    "a slope": lambda x, n: F.leaky_relu(x * x - 1, n / 100),
    "a remainder": lambda x, n: (x * x) % (n / 10),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    function = GRADIENTS[name]
    compiled = fusec.compile(function)
    for n in (4, 3, 6, 11):
        x = torch.randn(37, requires_grad=True)
        wanted = torch.autograd.grad(function(x, n).sum(), x)
        torch.testing.assert_close(torch.autograd.grad(compiled(x, n).sum(), x), wanted)
    assert len(compiled.graphs) == 2


POWERS: dict[str, Callable[..., torch.Tensor]] = {
    "a root": lambda x, n: x * n**0.5,
    "a power": lambda x, n: x + n**1.5,
    "a half": lambda x, n: x * (n * 0.5),
    "itself": lambda x, n: x * float(n),
    "one by it": lambda x, n: x * n**-1,
    "of float32": lambda x, n: x.float() / (n**2.0),
}


@pytest.mark.parametrize("name", POWERS)
def test_powers_of_large_numbers(name: str) -> None:
    """torch's own graph takes the number to float32 first, and so does aot_eager."""
    function = POWERS[name]
    x = torch.linspace(0.5, 2, 5, dtype=torch.float64)
    compiled = fusec.compile(function)
    for n in (3, 5, 2**24 + 1, 100_000_001, -(2**31) - 7 if name in ("a half", "itself") else 7):
        torch.testing.assert_close(compiled(x, n), function(x, n), rtol=1e-15, atol=0)


def test_a_tensor_of_a_large_number() -> None:
    """What the user makes a float32 of is rounded as in eager."""

    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        return x + torch.scalar_tensor(n) + torch.scalar_tensor(n).double()

    x = torch.linspace(0.5, 2, 5, dtype=torch.float64)
    compiled = fusec.compile(function)
    for n in (3, 5, 2**24 + 1):
        assert torch.equal(compiled(x, n), function(x, n))
