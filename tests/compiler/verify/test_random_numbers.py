"""Graphs that draw random numbers are judged beside float64 as well, with the same numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.compiled.graph import CompiledGraph
from fusec.inspect.numerics import trace_part
from fusec.memory.strided import clone_strided
from fusec.random import SameNumbers
from fusec.report import Verdict
from fusec.timing.counters import count_kernels
from fusec.timing.step_times import step_times

BFLOAT16 = torch.bfloat16
LAYER = torch.nn.Linear(64, 64, dtype=BFLOAT16, bias=False)

DRAWN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: x + LAYER(F.dropout(F.gelu(LAYER(x)), 0.1)),
    "numbers": lambda x: (
        (LAYER(x) * torch.rand_like(x)).softmax(-1)
        + torch.where(torch.rand_like(x) < 0.5, x, -x).exp()
        + torch.randn(x.shape, dtype=x.dtype)
    ),
    # Where eager rounds a sum to 0, or has the other sign, all later slopes are still the same.
    "slopes": lambda x: (
        F.rrelu(x * 1.01 - x, 0.1, 0.9, training=True) + F.rrelu(LAYER(x).tanh() + x, training=True)
    ),
}


def verdict_of(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Verdict:
    torch._dynamo.reset()
    compiled = fusec.compile(function, keep_inputs=True)
    compiled(x)
    (graph,) = compiled.graphs
    verdict: Verdict = graph.verify(timed=False)
    return verdict


@pytest.mark.parametrize("name", DRAWN)
def test_a_graph_in_half_precision_has_a_float64_run(name: str) -> None:
    torch.manual_seed(0)
    verdict = verdict_of(DRAWN[name], torch.randn(96, 64, dtype=BFLOAT16))
    assert verdict.ok, verdict.reason
    (output,) = verdict.outputs
    # With other numbers it would be off by as much as the numbers are.
    assert output.eager_against_float64 is not None
    assert output.eager_against_float64 < 0.3  # rounding of sums near 30


def test_without_float64_it_would_be_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rule of eager alone says of a right block: why the float64 run is there."""
    torch.manual_seed(0)
    x = torch.randn(96, 64, dtype=BFLOAT16)
    monkeypatch.setattr("fusec.compiled.checking._in_float64", lambda graph: None)
    assert not verdict_of(DRAWN["dropout"], x).ok


def test_tensors_that_decide_have_no_float64_run() -> None:
    """Probabilities of float64 decide otherwise than rounded ones."""
    verdict = verdict_of(lambda p: torch.bernoulli(p) * 2, torch.rand(64, dtype=BFLOAT16))
    assert verdict.ok
    assert verdict.outputs[0].eager_against_float64 is None


@pytest.mark.parametrize("name", ["dropout", "slopes"])
def test_a_check_in_inference_mode_draws_the_same(name: str) -> None:
    """Autograd does not take composite operators apart there; the check does."""
    with torch.inference_mode():
        verdict = verdict_of(DRAWN[name], torch.randn(96, 64, dtype=BFLOAT16))
    assert verdict.ok, verdict.reason
    assert verdict.outputs[0].eager_against_float64 is not None


@pytest.mark.parametrize("dtype", [torch.float16, BFLOAT16, torch.float32])
def test_float64_draws_what_the_other_type_draws(dtype: torch.dtype) -> None:
    numbers = []
    for stands_for in (None, dtype):
        torch.manual_seed(3)
        with SameNumbers() as mode:
            mode.stands_for = stands_for
            given = torch.empty(100, dtype=torch.float64 if stands_for else dtype)
            numbers.append([torch.rand_like(given), F.dropout(given.fill_(1.0), 0.5)])
    for plain, mine in zip(*numbers, strict=True):
        assert mine.dtype == torch.float64
        assert torch.equal(mine.to(dtype), plain)


def test_a_kernel_that_drops_others_is_wrong() -> None:
    """The float64 run excuses roundings, and nothing else."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    compiled = fusec.compile(DRAWN["dropout"], keep_inputs=True)
    compiled(torch.randn(96, 64, dtype=BFLOAT16))
    (graph,) = compiled.graphs
    (kernel,) = (each for each in graph.kernels if "0.9" in each.source)
    found = kernel.check(kernel.source.replace("0.9", "0.89", 1), timed=False)
    assert not found.ok


def seeded(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x.tanh(), 0.5) * 2


def drawn_by_aten(x: torch.Tensor) -> torch.Tensor:
    return x[torch.randperm(len(x))].tanh()


def one_graph(function: Callable[[torch.Tensor], torch.Tensor]) -> CompiledGraph:
    torch._dynamo.reset()
    compiled = fusec.compile(function, keep_inputs=True)
    compiled(torch.randn(8, 64))
    (graph,) = compiled.graphs
    return graph


LOOKS: dict[str, Callable[[CompiledGraph], object]] = {
    "checked": lambda graph: graph.verify(timed=False),
    "timed": lambda graph: step_times(graph, 0.01),
    "counted": lambda graph: count_kernels(graph, seconds=0.01),
    "followed": lambda graph: trace_part(graph.parts[0]),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("random", [True, False], ids=["random", "plain"])
def test_a_thread_that_looks_takes_and_puts_back_nothing(
    look: str, random: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A panel put torch's generator back: what a cell had drawn meanwhile was drawn once more."""
    graph = one_graph(seeded if random else lambda x: x.tanh() * 2)
    torch.manual_seed(0)
    expected = [torch.rand(3), torch.rand(3)]
    torch.manual_seed(0)
    runs, drawn = threading.Event(), threading.Event()
    kernel = next(iter(graph.kernels))
    asked = clone_strided if look == "checked" else kernel.runnable
    result: list[object] = []

    def hooked(*args: Any) -> object:
        runs.set()
        assert drawn.wait(100)
        return asked(*args)

    def work() -> None:
        result.append(LOOKS[look](graph))

    # What is called while a look is on, and not before.
    if look == "checked":
        monkeypatch.setattr("fusec.verify.comparison.graph_outputs.clone_strided", hooked)
    else:
        monkeypatch.setattr(kernel, "runnable", hooked)
    thread = threading.Thread(target=work)
    thread.start()
    assert runs.wait(100)
    first = torch.rand(3)
    drawn.set()
    thread.join()
    assert result
    assert torch.equal(first, expected[0])
    assert torch.equal(torch.rand(3), expected[1])


@pytest.mark.parametrize("function", [seeded, drawn_by_aten])
def test_a_thread_sees_the_same_numbers_twice(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    graph = one_graph(function)
    assert any(part.draws for part in graph.parts) == (function is drawn_by_aten)
    found: list[Verdict] = []
    thread = threading.Thread(target=lambda: found.append(graph.verify(timed=False)))
    thread.start()
    thread.join()
    assert found[0].ok, found[0].reason
