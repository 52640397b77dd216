"""Rows added to a product's result where it lies, and large products: the same, and what is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec
from fusec.codegen.host_values import LARGE_BYTES


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)


class Tied(nn.Module):
    """A language model without the middle: one table at both ends."""

    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.table = nn.Embedding(211, 24, padding_idx=padding)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.table(ids))
        labels = (ids.flatten() + 1) % 211
        return F.cross_entropy((hidden @ self.table.weight.T).flatten(0, 1), labels)


def kernels_of(compiled: fusec.CompiledFunction, kind: str) -> list[str]:
    """Return what the host programs of a kind of part do with the table's gradient."""
    parts = [part for graph in compiled.graphs for part in graph.parts if part.kind == kind]
    assert parts
    return [str(part.state.schedule) for part in parts]


@pytest.mark.sample(2)
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("shape", [(2, 40), (1, 1), (3, 0)])
def test_tied_embeddings(padding: int | None, shape: tuple[int, int]) -> None:
    model = Tied(padding)
    compiled = fusec.compile(model)
    for _ in range(2):
        ids = torch.randint(0, 6, shape)  # rows come up many times
        if padding is not None and ids.numel():
            ids[0, 0] = padding
        exact = Tied(padding).double()
        exact.load_state_dict(model.state_dict())
        gradients = []
        for call, module in ((model, model), (compiled, model), (exact, exact)):
            module.zero_grad()
            call(ids).backward()
            gradients.append(module.table.weight.grad.clone())
        eager, found, truth = gradients
        scale = truth.nan_to_num().abs().max().item() + 1e-12
        own = (eager.double() - truth).nan_to_num().abs().max().item() / scale
        off = (found.double() - truth).nan_to_num().abs().max().item() / scale
        assert off <= 2 * own + 1e-6
        assert torch.equal(found.isnan(), eager.isnan())
    if shape == (2, 40):
        (text,) = kernels_of(compiled, "backward")
        assert "the result is changed where it lies" in text


def updates(compiled: fusec.CompiledFunction) -> bool:
    """Whether a copy was spared."""
    return "changed where it lies" in kernels_of(compiled, "inference")[0]


def check(function: Callable[..., object], *inputs: torch.Tensor) -> bool:
    """Compare with eager, the inputs as well; return ``updates``."""
    compiled = fusec.compile(function)
    for _ in range(2):
        wanted, found = function(*inputs), compiled(*inputs)
        torch.testing.assert_close(found, wanted)
    return updates(compiled)


def test_what_somebody_else_sees_is_copied() -> None:
    a, b = torch.randn(33, 17), torch.randn(17, 21)
    rows, values = torch.tensor([3, 3, 32, 0]), torch.randn(4, 21)

    def alone(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b).index_put((rows,), values, accumulate=True)

    def returned(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = a @ b
        return product, product.index_put((rows,), values, accumulate=True)

    def read(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = a @ b
        return product.index_put((rows,), values, accumulate=True) @ product.T

    def viewed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b).T.index_put((torch.tensor([1, 1]),), torch.ones(2, 33), accumulate=True)

    def given(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.index_put((rows,), values[:, :17], accumulate=True) @ b

    assert check(alone, a, b)
    for function in (returned, read, given):
        assert not check(function, a, b)
    check(viewed, a, b)


def test_a_table_that_is_no_zeros_and_sums_that_are_none() -> None:
    x, rows, values = torch.randn(50, 8), torch.tensor([1, 1, 7]), torch.randn(3, 8)
    weight = torch.randn(50, 8, requires_grad=True)

    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ones = torch.ones(50, 8).index_put((rows,), values, accumulate=True)
        zeros = torch.zeros(50, 8).index_put((rows,), values, accumulate=True)
        put = torch.zeros(50, 8).index_put((torch.tensor([1, 2, 7]),), values)
        twice = zeros + zeros
        scaled = torch.add(
            x, torch.zeros(50, 8).index_put((rows,), values, accumulate=True), alpha=3
        )
        row = x[:1] + torch.zeros(50, 8).index_put((rows,), values, accumulate=True)
        return ((x + ones) * weight + (x + put) + twice + scaled + row).sum(0)

    compiled = fusec.compile(forward)
    for call in (forward, compiled):
        result = call(x, weight)
        (gradient,) = torch.autograd.grad(result.square().sum(), weight)
        if call is forward:
            wanted = result, gradient
    torch.testing.assert_close((result, gradient), wanted, rtol=1e-5, atol=1e-4)


def test_large_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.graph.choices.is_amd", lambda: False)  # not by oneDNN
    side = 2900  # a little more than it takes
    assert side * side * 4 >= LARGE_BYTES
    a, b, bias = torch.randn(side, 8), torch.randn(8, side), torch.randn(side)
    c, d, e = torch.randn(2, side, 4), torch.randn(2, 4, side), torch.randn(2, side, 1)

    def function(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b, bias, c, d, e = given
        return (
            a @ b,
            torch.addmm(bias, a, b, beta=0.5, alpha=2),
            c @ d,
            torch.baddbmm(e, c, d, alpha=3.0),
        )

    compiled = fusec.compile(function)
    inputs = (a, b, bias, c, d, e)
    first = compiled(*inputs)
    kept = [x.clone() for x in first]
    for got, plain in zip(compiled(*inputs), function(*inputs), strict=True):
        assert torch.equal(got, plain)
    for got, before in zip(first, kept, strict=True):  # each call has memory of its own
        assert torch.equal(got, before)
    (part,) = compiled.graphs[0].parts
    assert part.state.host.text.count("multiply_into(") == 4
