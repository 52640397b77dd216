"""Backward parts that are compiled while the forward part runs for the first time."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

import fusec
from fusec.capture import graph_compiler
from fusec.capture.background import EarlyValue
from fusec.errors import FusecError
from support.waiting import wait_for


def working() -> bool:
    return any(thread.name == "fusec-early" for thread in threading.enumerate())


# -- the thread -----------------------------------------------------------------------------


def test_it_is_made_once_by_a_thread_that_is_told_to_begin() -> None:
    made: list[str] = []

    def make() -> int:
        made.append(threading.current_thread().name)
        return 7

    early = EarlyValue(make)
    early.begin()
    early.begin()
    assert [early.result(), early.result()] == [7, 7]
    assert made == ["fusec-early"]


def test_who_needs_it_first_makes_it() -> None:
    made: list[threading.Thread] = []
    early = EarlyValue(lambda: made.append(threading.current_thread()))
    early.result()
    early.begin()  # too late
    assert made == [threading.current_thread()]


def test_who_needs_it_meanwhile_waits() -> None:
    entered, go = threading.Event(), threading.Event()

    def make() -> str:
        entered.set()
        assert go.wait(60)
        return "made"

    early = EarlyValue(make)
    early.begin()
    assert entered.wait(60)
    threading.Timer(0.05, go.set).start()
    assert early.result() == "made"


def test_what_it_raises_is_raised_where_it_is_needed() -> None:
    def make() -> None:
        raise FusecError("no such thing")

    early = EarlyValue(make)
    early.begin()
    for _ in range(2):
        with pytest.raises(FusecError, match="no such thing"):
            early.result()


def test_after_an_interrupt_it_is_made_anew() -> None:
    tries: list[int] = []

    def make() -> str:
        tries.append(len(tries))
        if len(tries) == 1:
            raise KeyboardInterrupt
        return "made"

    early = EarlyValue(make)
    with pytest.raises(KeyboardInterrupt):
        early.result()
    assert [early.result(), early.result()] == ["made", "made"]
    assert tries == [0, 1]


# -- backward -------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 5))


def kinds(compiled: Any) -> list[str]:
    return [part.kind for graph in compiled.graphs for part in graph.parts]


def compare(compiled: Any, module: nn.Module) -> None:
    for _ in range(2):
        x = torch.randn(9, 24)
        results = []
        for call in (compiled, module):
            module.zero_grad(set_to_none=True)
            given = x.clone().requires_grad_()
            call(given).square().mean().backward()
            results.append([given.grad, *[p.grad for p in module.parameters()]])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """No size has been another one before: parts for any size are not compiled early."""
    torch._dynamo.reset()


@pytest.fixture
def by_a_thread(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have backward compiled by a thread on the CPU as well; return the names of who did it."""
    names: list[str] = []
    original = graph_compiler.GraphCompiler._make

    def make(self: Any, kind: str, module: Any) -> Any:
        if kind == "backward":
            names.append(threading.current_thread().name)
        return original(self, kind, module)

    monkeypatch.setattr(graph_compiler.GraphCompiler, "_make", make)
    monkeypatch.setattr(graph_compiler, "_leaves_cores_free", lambda part: True)
    return names


@pytest.mark.parametrize("waits", [True, False])
def test_a_thread_compiles_backward(by_a_thread: list[str], waits: bool) -> None:
    module = network()
    compiled = fusec.compile(module)
    compiled(torch.randn(9, 24).requires_grad_())
    if waits:
        wait_for(lambda: not working())
        assert by_a_thread == ["fusec-early"]
    compare(compiled, module)
    assert by_a_thread == ["fusec-early"]
    assert kinds(compiled) == ["forward", "backward"]
    names = [stage.name for graph in compiled.graphs for stage in graph.stages]
    assert names.count("lower") == names.count("emit") == names.count("build") == 2
    assert "decompose backward" in names


def test_nobody_sees_it_before_it_is_used(by_a_thread: list[str]) -> None:
    compiled = fusec.compile(network())
    compiled(torch.randn(9, 24).requires_grad_())
    wait_for(lambda: not working())
    assert by_a_thread
    assert kinds(compiled) == ["forward"]
    assert "decompose backward" not in [s.name for g in compiled.graphs for s in g.stages]


def test_the_cpu_is_left_to_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    monkeypatch.setattr(EarlyValue, "begin", begun.append)
    module = network()
    compiled = fusec.compile(module)
    compare(compiled, module)
    assert kinds(compiled) == ["forward", "backward"]
    assert not begun


def test_graphs_that_are_compiled_meanwhile(by_a_thread: list[str]) -> None:
    """A break: the second graph is compiled when the first has run, beside its backward."""

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = network(), nn.Linear(5, 24), network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            torch._dynamo.graph_break()
            x = torch.tanh(self.second(x))
            torch._dynamo.graph_break()
            return self.third(x).sigmoid()

    module = Broken()
    compiled = fusec.compile(module)
    compare(compiled, module)
    assert sorted(kinds(compiled)) == ["backward"] * 3 + ["forward"] * 3
    assert by_a_thread == ["fusec-early"] * 3
    kernels = [name for graph in compiled.graphs for part in graph.parts for name in part.kernels]
    assert len(set(kernels)) == len(kernels)


@pytest.fixture
def broken(by_a_thread: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have whatever the thread compiles fail."""
    original = graph_compiler.run_stages

    def fails(state: Any) -> Any:
        if threading.current_thread().name == "fusec-early":
            raise RuntimeError("broken")
        return original(state)

    monkeypatch.setattr(graph_compiler, "run_stages", fails)


@pytest.mark.usefixtures("broken")
def test_a_failure_of_backward_leaves_it_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSEC_STRICT", raising=False)
    module = network()
    compiled = fusec.compile(module)
    compare(compiled, module)
    assert [graph.fallback for graph in compiled.graphs] == [
        "backward runs in eager: RuntimeError: broken"
    ]


@pytest.mark.usefixtures("broken")
def test_a_failure_of_backward_is_raised_where_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    compiled = fusec.compile(network())
    for _ in range(2):
        result = compiled(torch.randn(9, 24).requires_grad_())
        with pytest.raises(RuntimeError, match="broken"):
            result.sum().backward()


def test_a_compilation_that_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    original = graph_compiler.run_stages
    left = [2]  # the backward part's turn comes second

    def stops(state: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return original(state)

    monkeypatch.setattr(graph_compiler, "run_stages", stops)
    module = network()
    compiled = fusec.compile(module)
    with pytest.raises(KeyboardInterrupt):
        compiled(torch.randn(9, 24).requires_grad_()).sum().backward()
    compare(compiled, module)
    assert kinds(compiled) == ["forward", "backward"]


def test_symbolic_sizes_are_not_left_to_a_thread(by_a_thread: list[str]) -> None:
    """What a thread learns of a size would come too late for the guards."""
    module = network()
    compiled = fusec.compile(module, dynamic=True)
    for rows in (9, 13, 4):
        x = torch.randn(rows, 24)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(ours).square().mean().backward()
        module(theirs).square().mean().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert "fusec-early" not in by_a_thread


@pytest.mark.sample(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("earlier", [0, 1])
def test_gradients_that_are_asked_for_again(earlier: int, dynamic: bool) -> None:
    """From the first time on, or later; what forward saved is as it was."""
    module = network()
    compiled = fusec.compile(module, dynamic=dynamic)
    for _ in range(earlier):
        compiled(torch.randn(9, 24)).sum().backward()
    x = torch.randn(9, 24, requires_grad=True)
    found = []
    for call in (compiled, module):
        loss = call(x).square().mean()
        for retained in (True, True, False):
            (slope,) = torch.autograd.grad(loss, x, retain_graph=retained)
            found.append(slope)
    for slope in found:
        torch.testing.assert_close(slope, found[-1])
