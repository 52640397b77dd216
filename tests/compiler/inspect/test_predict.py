"""Predictions are what is then built: kernels, bytes, calls, breaks, guards, recompiles."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fusec
from fusec.inspect.explain import bytes_text
from programs import check, generate
from support.predictions import differences, predict
from support.releases import OLD


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def branchy(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y = y + 1 if y.sum() > 0 else y - 1
    return torch.softmax(y, -1)


def stops(x: torch.Tensor) -> torch.Tensor:
    y = x.exp().add_(1)
    x.mul_(2)
    torch._dynamo.graph_break()
    return (y * x).cumsum(0)


def helper(x: torch.Tensor) -> torch.Tensor:
    y = x.relu()
    torch._dynamo.graph_break()
    return y + 1


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "pointwise": lambda x: (x + 1).relu() * 2,
    "softmax": lambda x: torch.softmax(x * 2, -1),
    "product": lambda x: torch.nn.functional.gelu(x @ x.T) + 1,
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5) + 1,
    "in place": lambda x: x.clone().mul_(3).add_(1),
    "branch": branchy,
    "break": stops,
    "break within": lambda x: helper(x * 2) * 3,
    "views": lambda x: (x.t() + 1, x[1:].sum(0)),
    "values": lambda x: x[x > 0].sum(),
    "nothing": lambda x: x,
}


def whole(function: Callable[..., Any], args: list[Any]) -> None:
    """Call it and ask for every gradient."""
    outputs = function(*args)
    ends = outputs if isinstance(outputs, tuple) else (outputs,)
    ends = [each.sum() for each in ends if each.requires_grad]
    if ends:
        torch.stack(ends).sum().backward()


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.sample(1)
def test_prediction_is_what_is_built(name: str, gradients: bool) -> None:
    if gradients and name == "break":
        pytest.skip("eager refuses to update a leaf")

    def inputs() -> list[torch.Tensor]:
        made = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
        return [made.requires_grad_(gradients)]

    assert differences(FUNCTIONS[name], inputs, whole) == []


def test_totals_of_a_softmax() -> None:
    x = torch.randn(64, 128)
    said = predict(lambda x: torch.softmax(x + 1, -1), (x,))
    (kernel,) = said.kernels
    assert kernel.operators == ("add", "softmax")
    assert said.read_bytes == said.written_bytes == 64 * 128 * 4
    assert kernel.reads == ("x: 64 x 128 float32",)
    assert "1 kernel, 0 extern calls, 0 graph breaks, reads 32.0 KiB" in str(said)
    data = json.loads(json.dumps(said.data()))
    assert data["totals"]["kernels"] == 1
    assert data["parts"][0]["steps"][0]["written_bytes"] == 32768
    shown = said._repr_mimebundle_()
    assert shown["text/plain"] == str(said)
    assert "<li>kernel" in shown["text/html"]


def test_guards_have_no_name_that_torchdynamo_made_up() -> None:
    """Where ``type(x)`` asks for a tensor's class, torch has another name in each compilation."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if type(x.relu()) is torch.Tensor else x

    assert differences(function, lambda: [torch.randn(3)]) == []
    texts = [guard.text for guard in predict(function, (torch.randn(3),)).guards]
    assert not [text for text in texts if "_c" in text]


def test_one_byte_is_no_bytes() -> None:
    assert [bytes_text(count) for count in (0, 1, 2, 1536, 800_000)] == [
        "0 bytes", "1 byte", "2 bytes", "1.50 KiB", "781 KiB",
    ]  # fmt: skip


def test_nothing_runs_without_a_break() -> None:
    """Not even in eager: what would be out of range is not noticed, and nothing is printed."""
    table, places = torch.randn(4, 3), torch.tensor([100])

    def function(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return table[places] + 1

    said = predict(function, (table, places))
    assert len(said.kernels) == 1
    with pytest.raises(IndexError):
        function(table, places)


def test_state_is_put_back_after_a_break() -> None:
    norm = nn.BatchNorm1d(3)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(torch.rand(()))
            y = self.norm(x)
            torch._dynamo.graph_break()
            return y.mul_(2)

    x = torch.randn(5, 3)
    before, numbers = x.clone(), torch.get_rng_state()
    said = predict(Model(), (x,))
    assert len(said.breaks) == 1
    assert len(said.parts) == 4  # each graph with its backward part
    assert torch.equal(x, before)
    assert torch.equal(norm.running_mean, torch.zeros(3))
    assert int(norm.num_batches_tracked) == 0
    assert torch.equal(torch.get_rng_state(), numbers)


def test_recompiles_of_several_calls() -> None:
    x = torch.randn(8, 4)
    said = predict(lambda x: x.relu() + 1, (x,), (x[:5],), (x[:6],), (x.double(),))
    assert len(said.recompiles) == 2
    assert "as long as what one of its versions asks for holds" in str(said), "not all at once"
    assert "dimension 0" in said.recompiles[0].text
    assert "float64" in said.recompiles[1].text
    assert [kernel.read_bytes for kernel in said.kernels] == [128, -1, -1]
    assert said.read_bytes == -1
    assert "a size-dependent number of bytes" in str(said)


def test_predicting_costs_no_later_compilation() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    compiled, x = fusec.compile(function), torch.randn(5)
    for _ in range(6 if OLD else 12):  # more than TorchDynamo's limit of recompilations
        predict(compiled, (x,))
    y = torch.randn(7)
    assert torch.allclose(compiled(y), function(y))
    assert len(compiled.graphs) == 1
    (kernel,) = compiled.kernels.values()
    assert kernel.generated.read_bytes == 28, "no size is symbolic because of a prediction"
    assert not compiled.recompiles
    assert not compiled.breaks


def test_options_count() -> None:
    x = torch.randn(4, 4)
    compiled = fusec.compile(lambda x: x.relu() + 1, name="mine", apart=("relu:add",))
    said = fusec.predict(compiled, x)
    assert [kernel.name for kernel in said.kernels] == ["mine_relu", "mine_add"]
    assert compiled.graphs == ()


@pytest.mark.parametrize("seed", [8])
def test_random_programs(seed: int) -> None:
    """Two of them; ``tests/nets/test_predictions.py`` has a thousand."""
    program = generate.write(seed, train=seed % 2 == 1)
    assert differences(program.function(), program.fresh, check.call) == [], str(program)


def test_a_part_says_which_operators_of_aten_are_in_it() -> None:
    softmin = torch.nn.functional.softmin
    said = fusec.predict(lambda x: softmin(-x, -1), torch.randn(4, 8))
    (part,), (kernel,) = said.parts, said.kernels
    assert "softmin" in kernel.operators  # as the user called it
    assert set(part.aten) == {"neg", "softmax"}
