"""Compiled autograd, which captures a backward pass and hands its saved tensors over in a list."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx
from torch._dynamo import compiled_autograd

import fusec
from fusec.capture.inputs.list_inputs import Flat, has_lists


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1)
    )


def gradients(module, call, x):
    for parameter in module.parameters():
        parameter.grad = None
    call(x).pow(2).mean().backward()
    return [parameter.grad.clone() for parameter in module.parameters()]


@pytest.fixture
def x():
    torch._dynamo.reset()
    compiled_autograd.reset()
    yield torch.randn(32, 8)
    torch._dynamo.reset()
    compiled_autograd.reset()


@pytest.mark.sample(1)
@pytest.mark.parametrize("forward", ["eager", "compiled"])
def test_gradients_are_those_of_eager(forward, x):
    module = model()
    wanted = gradients(module, module, x)
    call = fusec.compile(module) if forward == "compiled" else module
    with compiled_autograd._enable(torch.compile(backend="fusec")):
        for _ in range(3):
            torch.testing.assert_close(gradients(module, call, x), wanted)


def test_other_sizes_and_gradients_that_add_up(x):
    module = model()
    wanted = []
    for size in (32, 5, 17):
        wanted.append(gradients(module, module, x[:size]))
    module.zero_grad()
    module(x).sum().backward()
    module(x).sum().backward()
    added = [parameter.grad.clone() for parameter in module.parameters()]
    with compiled_autograd._enable(torch.compile(backend="fusec", dynamic=True)):
        for size, expected in zip((32, 5, 17), wanted, strict=True):
            torch.testing.assert_close(gradients(module, module, x[:size]), expected)
        module.zero_grad()
        module(x).sum().backward()
        module(x).sum().backward()
        torch.testing.assert_close([p.grad for p in module.parameters()], added)


def test_as_an_option_of_torch(x):
    module = model()
    wanted = gradients(module, module, x)

    @torch.compile(backend="fusec")
    def step(x):
        loss = module(x).pow(2).mean()
        loss.backward()
        return loss

    # Not by monkeypatch: it would take the option away for good, as torch keeps options elsewhere.
    with torch._dynamo.config.patch(compiled_autograd=True):
        for _ in range(3):
            module.zero_grad()
            step(x)
            torch.testing.assert_close([p.grad for p in module.parameters()], wanted)


def of_a_list() -> fx.GraphModule:
    graph = fx.Graph()
    given, other = graph.placeholder("given"), graph.placeholder("other")
    given.meta["steal_arg"] = True
    first = graph.call_function(operator.getitem, (given, 2))
    second = graph.call_function(operator.getitem, (given, 0))
    graph.output((graph.call_function(torch.sub, (first, second)), other))
    return fx.GraphModule({}, graph)


def test_a_list_is_taken_apart_and_emptied():
    module = of_a_list()
    tensors = [torch.full((2,), float(value)) for value in range(3)]
    assert has_lists([tensors, 1])
    flat = Flat(module)
    assert flat.picks == [(0, 0), (0, 2), (1, None)]
    found = flat.call(flat.module)(tensors, 7)
    assert torch.equal(found[0], torch.full((2,), 2.0))
    assert found[1] == 7
    assert tensors == []
    # The graph itself is as it was.
    assert len([node for node in module.graph.nodes if node.op == "placeholder"]) == 2


def test_a_list_that_is_used_whole_stays():
    graph = fx.Graph()
    given = graph.placeholder("given")
    graph.output(graph.call_function(torch.stack, (given,)))
    flat = Flat(fx.GraphModule({}, graph))
    assert flat.picks == [(0, None)]
    assert has_lists(flat.pick([[torch.ones(2)]]))
