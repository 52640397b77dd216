"""Times of single steps, and of other compilers beside our own."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
import fuselab
from fusec.timing.step_times import step_calls, step_times
from fuselab.display.pages.subjects import timings_of
from fuselab.panel import Workbench, workbench
from fuselab.panel.tabs import timings
from support.waiting import wait_for

x, weight = torch.randn(24, 32), torch.randn(32, 16)


def function(x: torch.Tensor, weight: torch.Tensor) -> Any:
    y = F.gelu(x)
    z = F.layer_norm(y, (32,))
    return z @ weight, (y * z).sum(0), torch.sort(x, dim=-1)[0] @ weight


@pytest.fixture
def fused() -> Any:
    torch._dynamo.reset()
    found = fuselab.fuse(function)
    found(x, weight)
    return found


def test_every_step_has_a_time_and_a_line() -> None:
    torch._dynamo.reset()
    compiled = fusec.compile(function, keep_inputs=True)
    before = compiled(x, weight)
    (graph,) = compiled.graphs
    state = torch.random.get_rng_state()
    steps = step_times(graph, 0.05)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert {s.name for s in steps if s.kind == "kernel"} == set(compiled.kernels)
    calls = [s for s in steps if s.kind == "extern"]
    assert [s.name for s in calls].count("aten.mm") == 2
    assert any("sort" in s.name for s in calls)
    first = function.__code__.co_firstlineno
    assert {s.where.line - first for s in calls if s.where} == {3}
    assert all(s.timing.median > 0 for s in steps)
    assert [s.name for s in step_times(graph, 0.02, externs=False)] == list(compiled.kernels)
    torch.testing.assert_close(compiled(x, weight), before)


def test_a_kernel_is_timed_without_the_way_through_python() -> None:
    """It took 6 us alone where its cell, a native program, took 0.5: a part above its whole."""
    torch._dynamo.reset()
    compiled = fusec.compile(lambda x: x * 2 + x.exp(), keep_inputs=True)
    wanted = compiled(torch.arange(4.0))
    (graph,) = compiled.graphs
    (part,) = graph.parts
    ((name, call, tensors),) = step_calls(part)
    assert call.func is part.kernels[name].runnable().function
    tensors[-1].zero_()
    assert call() == 0
    assert torch.equal(tensors[-1], wanted)


def test_steps_of_training_and_of_what_is_updated() -> None:
    torch._dynamo.reset()

    def step(x: torch.Tensor, weight: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(1)
        return torch.tanh(x @ weight).sum() + total.sum()

    parameter, total = weight.clone().requires_grad_(), torch.zeros(3)
    compiled = fusec.compile(step, keep_inputs=True)
    compiled(x, parameter, total).backward()
    steps = step_times(compiled.graphs[0], 0.05)
    assert {s.kind for s in steps} == {"kernel", "extern"}
    assert {s.name for s in steps} >= set(compiled.kernels)
    assert total.tolist() == [1.0] * 3, "timing updates nothing of the user's"


def test_a_graph_that_never_ran_has_no_steps() -> None:
    torch._dynamo.reset()
    compiled = fusec.compile(lambda x: x.exp() + 1)
    compiled(x)
    assert step_times(compiled.graphs[0], 0.01) == (), "its inputs were not kept"


def test_times_as_text(fused: Any) -> None:
    page = timings_of(fused.result)
    assert "aten.mm" in page.text
    assert "%" in page.text
    assert "each timed alone" in page.text
    assert "<table" in page.html


# --- other compilers -----------------------------------------------------------------------


def test_another_compiler_is_timed_in_the_same_run(fused: Any) -> None:
    cell = fused.result
    assert cell.compare("aot_eager", 0.05) is cell.others["aot_eager"]
    assert "interleaved in random order with 2 others" in cell.eager.method
    assert cell.others["aot_eager"].samples == cell.fused.samples
    cell.refresh()
    assert "with 2 others" in cell.fused.method, "measured again, they stay comparable"
    assert not cell.failed


def test_another_compiler_that_fails_says_why(fused: Any) -> None:
    def broken(module: Any, inputs: Any) -> Any:
        raise RuntimeError("no such instruction")

    cell = fused.result
    cell.measure(0.05)
    eager = cell.eager
    assert cell.compare(broken, 0.05) is None  # type: ignore[arg-type]
    assert "no such instruction" in next(iter(cell.failed.values()))
    assert cell.eager is eager
    assert any("failed" in note for note in cell.notes)


def test_waiting_can_be_ended_and_taken_up_again(fused: Any) -> None:
    go = threading.Event()

    def slow(module: Any, inputs: Any) -> Any:
        assert go.wait(60)
        return module.forward

    cell = fused.result
    begun = time.monotonic()
    assert cell.compare(slow, 0.05, stop=lambda: time.monotonic() > begun + 0.2) is None  # type: ignore[arg-type]
    assert time.monotonic() - begun < 20
    assert not cell.failed
    go.set()
    assert cell.compare(slow, 0.05) is not None  # type: ignore[arg-type]


# --- the tab -------------------------------------------------------------------------------


def settled(panel: Workbench) -> Any:
    wait_for(lambda: not panel.tab("Timings").comparing)
    assert panel.wait(60)
    return panel.tab("Timings")


@pytest.fixture
def panel(fused: Any) -> Any:
    panel = workbench(fused.result)
    panel._repr_mimebundle_()
    panel.tabs.selected_index = 1
    assert panel.wait(60)
    yield panel
    panel.close()


def test_a_button_times_the_other_compiler(
    panel: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timings, "PEER", "aot_eager")
    tab = panel.tab("Timings")
    assert tab.peer.description == "TorchInductor"
    tab.peer.click()
    assert tab.peer.description == "Stop"
    settled(panel)
    assert "aot_eager, whole cell" in tab.table.value
    assert tab.peer.description == "TorchInductor"
    assert bytes(tab.plot.png[:4]) == b"\x89PNG"


def test_a_failure_is_shown_as_such(panel: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timings, "PEER", "no_such_backend")
    panel.tab("Timings").peer.click()
    tab = settled(panel)
    assert "no_such_backend failed" in tab.table.value
    assert panel.bench.problem is None


def test_stop_frees_the_panel_at_once(panel: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def stalled_backend(module: Any, inputs: Any) -> Any:
        assert go.wait(60)
        return module.forward

    monkeypatch.setattr(timings, "PEER", stalled_backend)
    tab = panel.tab("Timings")
    tab.peer.click()
    assert "compiles" in tab.method.value
    panel.kernels.check.click()  # everything else goes on meanwhile
    assert panel.wait(60)
    assert "Passed" in panel.kernels.verdict.value
    assert tab.comparing
    tab.peer.click()
    settled(panel)
    go.set()
    assert "was stopped" in tab.method.value
    assert not panel.bench.facts.others
    assert not panel.bench.facts.failed
    assert "stalled_backend" not in tab.table.value


def test_shares_of_kernels_and_calls(panel: Workbench) -> None:
    tab = panel.tab("Timings")
    assert "aten.mm" not in tab.table.value
    tab.again.click()
    assert panel.wait(60)
    assert "aten.mm, line" in tab.table.value
    assert "each timed alone" in tab.table.value


def test_an_edit_has_a_row_and_a_bar_of_its_own(panel: Workbench) -> None:
    name, kernel = next(iter(panel.bench.facts.kernels.items()))
    panel.bench.set_draft(name, kernel.source + "// mine\n")
    panel.kernels.choice.value = name
    panel.kernels.start_keep()
    assert panel.wait(60)
    assert f"{name}, the edit" in panel.tab("Timings").table.value
