"""Graphs that AOTAutograd refuses run in eager, which computes them, or raises what it raises."""

import copy

import pytest
import torch
from torch import nn

import fusec
from fusec.capture.untraceable import in_short


class Masked(nn.Conv2d):
    """A convolution that masks its own weight in each call, by way of ``.data``."""

    def __init__(self) -> None:
        super().__init__(4, 8, 3, padding=1)
        mask = torch.zeros_like(self.weight)
        mask[:, :, :1] = 1
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.data *= self.mask
        return super().forward(x)


@pytest.fixture(autouse=True)
def as_a_user_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "0")


def scatter(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    # Of this form torch has no derivative.
    return torch.ops.aten.scatter(x.sin(), 1, index, source, reduce="multiply").cos()


def test_a_parameter_set_through_its_data() -> None:
    ours = Masked()
    theirs = copy.deepcopy(ours)
    compiled = fusec.compile(ours)
    for _ in range(2):
        x = torch.randn(2, 4, 8, 8)
        result, expected = compiled(x), theirs(x)
        torch.testing.assert_close(result, expected)
        assert torch.equal(ours.weight, theirs.weight)
    result.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    (graph,) = compiled.graphs
    assert ".data is assigned: update the tensor itself" in graph.fallback


def test_what_has_no_derivative_runs_until_somebody_asks_for_one() -> None:
    x, source = torch.randn(5, 13, requires_grad=True), torch.randn(1, 4)
    index = torch.tensor([[3, 5, 7, 9]])
    compiled = fusec.compile(scatter)
    result = compiled(x, index, source)
    torch.testing.assert_close(result, scatter(x, index, source))
    with pytest.raises(RuntimeError, match="derivative"):
        scatter(x, index, source).sum().backward()
    with pytest.raises(RuntimeError, match="derivative"):
        result.sum().backward()
    # torch is as it was: the next function is compiled.
    another = fusec.compile(lambda x: x.sin() + 1)
    torch.testing.assert_close(another(x), x.sin() + 1)
    assert another.kernels


def test_an_error_in_short_has_no_stack_of_cpp() -> None:
    text = "Cannot call numel() on tensor with symbolic sizes/strides\nException raised from f at"
    error = RuntimeError(f"{text} TensorImpl.cpp:289 (most recent first):\nframe #0: c10::Error")
    words = "RuntimeError: Cannot call numel() on tensor with symbolic sizes/strides"
    assert in_short(error) == words
    assert in_short(RuntimeError("One thing. Another one.")) == "RuntimeError: One thing"
    assert in_short(RuntimeError()) == "RuntimeError"
