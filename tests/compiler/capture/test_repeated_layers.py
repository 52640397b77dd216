"""``layers="once"``: the layers that a model repeats are captured and compiled once."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fusec
from fusec.capture.dynamo.repeated_layers import RepeatedLayers, repeated_layers
from fusec.errors import BadOption, FusecError


@pytest.fixture(autouse=True)
def fresh() -> None:
    """TorchDynamo compiles a layer's code so many times in a process, whoever asks for it."""
    torch._dynamo.reset()


class Layer(nn.Module):
    """A layer with parts of its own."""

    def __init__(self, width: int = 8, scale: float = 1.0) -> None:
        super().__init__()
        self.norm, self.linear, self.scale = nn.LayerNorm(width), nn.Linear(width, width), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` and something of it."""
        return x + torch.tanh(self.linear(self.norm(x))) * self.scale


class Model(nn.Module):
    """Layers between two other parts."""

    def __init__(self, layers: int, scales: Callable[[int], float] = lambda n: 1.0) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.layers = nn.ModuleList(Layer(scale=scales(n)) for n in range(layers))
        self.last = nn.Linear(8, 2)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the layers make of the first part's result."""
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return two numbers a row."""
        return self.last(self.body(x)).sigmoid() * 2


def of(*layers: nn.Module, kind: type[nn.Module] = nn.ModuleList) -> nn.Module:
    return kind(list(layers)) if kind is nn.ModuleList else kind(*layers)


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        (Model(3), [3]),
        (Model(1), []),
        (of(Layer(), Layer(), kind=nn.Sequential), [2]),
        (of(Layer(8), Layer(4), Layer(8), Layer(4)), [2, 2]),
        (of(Layer(8), Layer(4)), []),
        (of(nn.Linear(8, 8), nn.Linear(8, 8)), []),  # it has no parts: it is one operator
        (of(Layer().eval(), Layer()), []),
        (of(of(Layer(), Layer()), of(Layer(), Layer())), [2]),  # of the outer ones
        (nn.ModuleDict({"a": Layer(), "b": Layer()}), [2]),
    ],
)
def test_which_layers(model: nn.Module, sizes: list[int]) -> None:
    assert [len(kind) for kind in repeated_layers(model)] == sizes


@pytest.mark.sample(1)
@pytest.mark.parametrize("train", [False, True])
def test_any_number_of_layers_is_one_graph(train: bool) -> None:
    graphs = set()
    for count in (2, 5):
        torch.manual_seed(count)
        torch._dynamo.reset()  # the other number of layers is another model's
        model = Model(count)
        compiled = fusec.compile(model, layers="once")
        for rows in (3, 3, 6):
            x = torch.randn(rows, 4, requires_grad=train)
            eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
            model.zero_grad()
            with torch.set_grad_enabled(train):
                found, wanted, right = compiled(x), eager(x), exact(x.double())
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(found, right.float())
            assert found.requires_grad == train
            if train:
                for result in (found, wanted):
                    result.square().sum().backward()
                for ours, eagers in zip(model.parameters(), eager.parameters(), strict=True):
                    torch.testing.assert_close(ours.grad, eagers.grad)
        assert not compiled.fallbacks
        assert "breaks" not in str(compiled.explain()).partition("\n")[2]
        assert f"{count} x Layer" in str(compiled.explain())
        (part,) = compiled.parts
        assert len(set(compiled.kernels)) == sum(len(graph.kernels) for graph in compiled.graphs)
        assert len({graph.name for graph in compiled.graphs}) == len(compiled.graphs)
        graphs.add(len(part.graphs))
    assert len(graphs) == 1


def test_layers_that_differ_in_a_number_are_right() -> None:
    model = Model(4, lambda n: 0.5 + n)
    compiled = fusec.compile(model, layers="once")
    x = torch.randn(3, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x))


def test_a_model_is_as_it_was_outside_of_a_call() -> None:
    model = Model(3)
    compiled = fusec.compile(model, layers="once")
    compiled(torch.randn(3, 4))
    with pytest.raises(Exception, match=r"shape|size|mat1"):
        compiled(torch.randn(3, 5))
    assert not any("forward" in vars(layer) for layer in model.layers)
    graphs = len(compiled.graphs)
    model(torch.randn(9, 4, dtype=torch.float32))
    assert len(compiled.graphs) == graphs
    copied = copy.deepcopy(compiled)
    torch.testing.assert_close(copied(x := torch.randn(2, 4)), model(x))


def test_a_thread_that_leaves_takes_nothing_from_another() -> None:
    model = Model(2)
    layers = RepeatedLayers(model, lambda forward: forward)

    def enter_and_leave() -> None:
        with layers:
            pass

    with layers:
        thread = threading.Thread(target=enter_and_leave)
        thread.start()
        thread.join()
        assert all("forward" in vars(layer) for layer in model.layers)
    assert not any("forward" in vars(layer) for layer in model.layers)


def test_a_layer_whose_forward_somebody_has_replaced_is_left_alone() -> None:
    model = Model(3)
    model.layers[1].forward = lambda x: x * 2  # type: ignore[method-assign]
    x = torch.randn(3, 4)
    wanted = model(x)
    torch.testing.assert_close(fusec.compile(model, layers="once")(x), wanted)
    assert "forward" in vars(model.layers[1])


def test_what_somebody_puts_in_its_place_later_stays() -> None:
    model = Model(3)
    compiled = fusec.compile(model, layers="once")
    compiled(x := torch.randn(3, 4))
    model.layers[1].forward = lambda x: x * 2  # type: ignore[method-assign]
    torch.testing.assert_close(compiled(x), model(x))
    assert "forward" in vars(model.layers[1])


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_are_run_again_in_backward(reentrant: bool) -> None:
    model = Model(3)

    def body(x: torch.Tensor) -> torch.Tensor:
        x = model.first(x)
        for layer in model.layers:
            x = checkpoint(layer, x, use_reentrant=reentrant)
        return x

    model.body = body  # type: ignore[method-assign]
    compiled = fusec.compile(model, layers="once")
    x = torch.randn(3, 4)
    model(x).square().sum().backward()
    wanted = [each.grad.clone() for each in model.parameters()]
    for _ in range(2):
        model.zero_grad()
        compiled(x).square().sum().backward()
        torch.testing.assert_close([each.grad for each in model.parameters()], wanted)


def test_frozen_layers_compile_nothing() -> None:
    model = Model(2)
    compiled = fusec.compile(model, layers="once", dynamic=False)
    x = torch.randn(3, 4)
    wanted = compiled(x)
    compiled.frozen = True
    torch.testing.assert_close(compiled(x), wanted)
    with pytest.raises(FusecError):
        compiled(torch.randn(5, 4))


def test_functions_have_no_layers() -> None:
    with pytest.raises(BadOption, match="layers"):
        fusec.compile(lambda x: x * 2, layers="once")
    with pytest.raises(BadOption, match="layers"):
        fusec.compile(Model(2), layers="twice")
