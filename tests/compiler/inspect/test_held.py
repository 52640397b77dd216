"""Timing and checking a step of an optimizer is no step of training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from fusec.compiled.graph import CompiledGraph
from fusec.inspect.pass_gain import pass_gain
from fusec.inspect.sweep import sizes_of, sweep

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.1),
    "for each": lambda p: torch.optim.Adam(p, 0.1, foreach=True),
}


def steps(optimizer: str) -> tuple[list[torch.Tensor], CompiledGraph]:
    """Take two steps; return what the optimizer has, and the graph of the second one."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    model(torch.randn(5, 8)).square().sum().backward()
    chosen = OPTIMIZERS[optimizer](model.parameters())
    compiled = fusec.compile(chosen.step, keep_inputs=True)
    compiled()
    compiled()
    state = [v for each in chosen.state.values() for v in each.values()]
    held = [*model.parameters(), *(v for v in state if isinstance(v, torch.Tensor))]
    return held, compiled.graphs[-1]


def look_at(graph: CompiledGraph, what: str) -> None:
    if what == "measure":
        graph.measure(0.02)
    elif what == "verify":
        verdict = graph.verify()
        assert verdict.ok, verdict.reason
    elif what == "limit":
        graph.limit()
    elif what == "alone":
        graph.kernel_timings(0.02)
    elif what == "replay":
        graph.replay()()
    elif what == "check":
        kernel = graph.kernels[0]
        verdict = graph.check(kernel, kernel.source)
        assert verdict.ok, verdict.reason
    elif what == "tune":
        graph.tune(graph.kernels[0], budget=0.5, progress=None, stop=None)
    elif what == "pass":
        pass_gain(graph, "cse", 0.02)
    else:
        size = sizes_of(graph)[0]
        next(sweep(graph, size, [size.value], compile=fusec.compile, seconds=0.02))


@pytest.mark.sample(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_a_graph_holds_stays_as_it_is(optimizer: str) -> None:
    held, graph = steps(optimizer)
    before = copy.deepcopy(held)
    for what in ("measure", "verify", "limit", "alone", "replay", "check"):
        look_at(graph, what)
        assert all(map(torch.equal, held, before)), what


@pytest.mark.parametrize("what", ["tune", "pass", "sweep"])
def test_whoever_looks_closer_leaves_it_alone(what: str) -> None:
    held, graph = steps("momentum")
    before = copy.deepcopy(held)
    look_at(graph, what)
    assert all(map(torch.equal, held, before))


def test_a_wrong_step_is_seen() -> None:
    held, graph = steps("SGD")
    before = copy.deepcopy(held)
    kernel = graph.kernels[0]
    wrong = kernel.source.replace("-0.1f", "-0.11f")
    assert wrong != kernel.source
    assert not graph.check(kernel, wrong).ok
    assert all(map(torch.equal, held, before))
