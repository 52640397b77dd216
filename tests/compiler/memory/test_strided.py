"""Whatever runs a graph once more runs it on memory that lies as its inputs do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusec
from fusec.inspect.numerics import trace_part
from fusec.memory.strided import clone_strided
from fusec.timing.step_times import step_times

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "every second": lambda x: x[:, ::2],
    "turned over": lambda x: x.t(),
    "a part of each row": lambda x: x[:, 5:261],
    "an offset": lambda x: x.flatten()[7:-1].view(-1, 8),
    "expanded": lambda x: x[:1].expand(300, -1),
    "a diagonal": lambda x: x.diagonal()[:, None],
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.mark.parametrize("name", LAYOUTS)
def test_copies_lie_as_the_tensor(name: str) -> None:
    tensor = LAYOUTS[name](torch.randn(300, 512))
    copy = clone_strided(tensor)
    assert copy.stride() == tensor.stride()
    assert torch.equal(copy, tensor)
    assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", LAYOUTS)
def test_checks_times_and_numbers_of_a_graph(name: str) -> None:
    compiled = fusec.compile(lambda x: (x * 2).tanh() - x.amax(-1, keepdim=True), keep_inputs=True)
    tensor = LAYOUTS[name](torch.randn(300, 512))
    expected = compiled(tensor)
    (graph,) = compiled.graphs
    (copy,) = graph.copies()
    assert copy.stride() == tensor.stride()
    verdict = graph.verify()
    assert verdict.ok, verdict.reason
    (part,) = graph.parts
    for found in trace_part(part).tensors:
        assert found.compiled < 1e-5
    assert all(fused.median > 0 for fused in graph.measure(0.01))
    assert step_times(graph, 0.01)
    assert torch.equal(compiled(tensor), expected)


def test_an_update_of_a_part() -> None:
    def update(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    compiled = fusec.compile(update, keep_inputs=True)
    whole = torch.randn(64, 96)
    before = whole.clone()
    compiled(whole[:, ::3])
    (graph,) = compiled.graphs
    verdict = graph.verify()
    assert verdict.ok, verdict.reason
    before[:, ::3] *= 2
    assert torch.equal(whole, before)  # what lies between is as it was, the rest updated once
