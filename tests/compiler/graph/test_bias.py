"""Biases of products, added by the kernel that reads the product."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import fusec
from fusec.graph.facts.notes import NOTES, NoteKind, add_note
from fusec.graph.products.bias import add_biases_later


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)


def products(compiled: fusec.CompiledFunction) -> list[str]:
    """Return the products of the first part, in order."""
    return [e.name.split(".")[1] for e in compiled.graphs[0].parts[0].externs]


class Net(nn.Module):
    """A product that a kernel reads, through a view; one that is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 48), nn.Linear(48, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.first(x).unflatten(-1, (6, 8))).flatten(-2))


@pytest.mark.parametrize("shape", [(7, 32), (2, 5, 32), (0, 32)])
def test_only_a_kernel_takes_the_bias(shape: tuple[int, ...]) -> None:
    net, x = Net(), torch.randn(shape)
    compiled = fusec.compile(net)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-5, atol=1e-5)
    if x.numel():  # a product over nothing is none
        assert products(compiled) == ["mm", "addmm"]
        assert len(compiled.graphs[0].kernels) == 1


def test_gradients_of_the_bias() -> None:
    ours = Net()
    theirs = copy.deepcopy(ours)
    x = torch.randn(9, 32)
    compiled = fusec.compile(ours)
    compiled(x).square().sum().backward()
    theirs(x).square().sum().backward()
    assert products(compiled) == ["mm", "addmm"]
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-4)


def test_factors_and_wide_biases_stay() -> None:
    def function(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addmm(c, a, b).relu() + torch.addmm(c[0], a, b, alpha=2).relu()

    inputs = torch.randn(8, 8), torch.randn(8, 5), torch.randn(5, 8)
    compiled = fusec.compile(function)
    torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=1e-5, atol=1e-5)
    assert products(compiled) == ["addmm", "addmm"]


@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, True), (False, False, True)])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_sums_of_gradients_are_taken_out_of_convolutions_on_a_gpu(
    dims: int, wanted: tuple[bool, bool, bool]
) -> None:
    kernel, ones = [3] * dims, [1] * dims

    def backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Sequence[object]:
        found = torch.ops.aten.convolution_backward(
            *(gradient, x, weight, [6], ones, ones, ones, False, [0] * dims, 1, wanted)
        )
        return [each for each, want in zip(found, wanted, strict=True) if want]

    given = (torch.randn(2, 6, *[8] * dims), torch.randn(2, 4, *[8] * dims))
    inputs = (*given, torch.randn(6, 4, *kernel))
    with FakeTensorMode():
        module = make_fx(backward)(*(torch.empty(t.shape, device="cuda") for t in inputs))
    (before,) = (n.meta["val"] for n in module.graph.nodes if "backward" in str(n.target))
    assert add_biases_later(module) == 1
    for node in module.graph.nodes:
        if "backward" in str(node.target):  # what follows looks results up by their places
            left = node.meta["val"]
            assert [each is not None for each in left] == [*wanted[:2], False]
            assert [each is not None and each.shape for each in left[:2]] == [
                each is not None and each.shape for each in before[:2]
            ]
    calls = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    assert ("aten.convolution_backward.default" in calls) == any(wanted[:2])
    assert "aten.sum.dim_IntList" in calls
    torch.testing.assert_close(module(*inputs), backward(*inputs), rtol=1e-4, atol=1e-4)


def test_what_is_said_of_a_convolution_is_not_said_of_its_sum() -> None:
    def convolved(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, weight, bias)

    given = torch.randn(2, 4, 8, 8), torch.randn(6, 4, 3, 3), torch.randn(6)
    with FakeTensorMode():
        module = make_fx(convolved)(*(torch.empty(t.shape, device="cuda") for t in given))
    target = torch.ops.aten.convolution.default
    (node,) = module.graph.find_nodes(op="call_function", target=target)
    add_note(node, NoteKind.CHANNELS_LAST, "said")
    assert add_biases_later(module) == 1
    (bare,) = module.graph.find_nodes(op="call_function", target=target)
    (whole,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    assert NOTES in bare.meta
    assert NOTES not in whole.meta
