"""What a graph's inputs are called: as the user wrote them, and no two layers alike."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fusec
from fusec.capture.inputs.graph_inputs import plain_name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['x']", "x"),
        ("L['self']._modules['mlp']._parameters['weight']", "mlp_weight"),
        ("L['model']._modules['2']._parameters['weight']", "model_2_weight"),
        ("L['self']._modules['2']._parameters['bias']", "bias_2"),
        ("L['m']._modules['1']._modules['0']._parameters['bias']", "m_1_0_bias"),
        ("L['m']._modules['layers']._modules['3']._modules['fc']._parameters['bias']", "fc_bias"),
        ("L['args'][0]", "x"),
        ("L['self']", "x"),
    ],
)
def test_name_of_a_source(source: str, name: str) -> None:
    assert plain_name(source) == name
    assert name.isidentifier()


def test_layers_of_a_sequential_are_told_apart() -> None:
    model = nn.Sequential(nn.LayerNorm(32), nn.GELU(), nn.LayerNorm(32))

    def run(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    compiled = fusec.compile(run)
    x = torch.randn(8, 32)
    torch.testing.assert_close(compiled(x), model(x))
    (graph,) = compiled.graphs
    names = {argument.name for kernel in graph.kernels for argument in kernel.signature.arguments}
    assert {"model_0_weight", "model_2_weight", "model_0_bias", "model_2_bias"} <= names


def test_outputs_are_called_as_the_user_calls_them() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5))

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        y = y * 2
        z_1 = y.sin()
        return y, z_1, model(x)

    compiled = fusec.compile(run, keep_inputs=True)
    compiled(torch.ones(3, 4))
    (graph,) = compiled.graphs
    assert [output.name for output in graph.verify().outputs] == ["y", "z_1", "model_2"]
    names = {a.name for kernel in graph.kernels for a in kernel.signature.arguments}
    assert not [name for name in names if name.startswith("input")]


def test_what_an_optimizer_updates_is_called_as_it_calls_it() -> None:
    torch._dynamo.reset()
    layer = torch.nn.Linear(5, 3)
    optimizer = torch.optim.Adam(layer.parameters())
    step = fusec.compile(optimizer.step)
    layer(torch.ones(2, 5)).sum().backward()
    step()
    kernels = [kernel for graph in step.graphs for kernel in graph.kernels]
    found = {a.name for k in kernels for a in k.signature.arguments if a.role != "in"}
    assert {"exp_avg", "exp_avg_sq", "param"} <= found
    assert not [name for name in found if name.startswith("arg")]


def test_an_attribute_is_a_view_of_what_has_it() -> None:
    def run(spectrum: torch.Tensor) -> tuple[torch.Tensor, ...]:
        power = spectrum.real**2 + spectrum.imag**2
        return power, spectrum.mT.abs()

    compiled = fusec.compile(run)
    compiled(torch.fft.fft(torch.randn(5, 8)))
    (graph,) = compiled.graphs
    names = {a.name for kernel in graph.kernels for a in kernel.signature.arguments}
    assert "spectrum" in names
    assert not [name for name in names if "getattr" in name]


def test_a_tensor_of_numbers_is_called_so() -> None:
    compiled = fusec.compile(lambda x: x * torch.tensor([0.3, 0.2, 0.5]))
    compiled(torch.randn(4, 3))
    (kernel,) = compiled.graphs[0].kernels
    assert "lift" not in kernel.name
