"""The machine's limits, the roofline, sweeps over sizes, and their figures."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
import fusec.timing.limits
import fuselab
from fusec.compiled.graph import NoInputs
from fusec.inspect.sweep import FixedSize, SweepPoint, sizes_of
from fusec.inspect.sweep import sweep as sweep_with
from fusec.report import Timing
from fusec.timing.limits import _machine, copy_time, machine, product_rate
from fusec.tuning_report import Trial, TuningRun
from fuselab.display.outcomes import trial_line
from fuselab.display.pages import limits
from fuselab.display.pages.tuning import left_words, time_left
from fuselab.display.plots import figures as plots
from fuselab.display.plots import search as plots_search
from fuselab.display.plots.machine import RooflinePoint, roofline_figure, sweep_figure
from fuselab.display.plots.tuning import outcome_figure
from fuselab.panel.tabs import roofline
from support.panel_fake import timing

sweep = partial(sweep_with, compile=fusec.compile)


def compiled(function: Any, *args: torch.Tensor, **options: Any) -> Any:
    torch._dynamo.reset()
    module = fusec.compile(function, keep_inputs=True, **options)
    module(*args)
    return module.graphs[0]


def softmax(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x).softmax(-1)


# --- limits --------------------------------------------------------------------------------


def test_machine_is_measured_once_and_makes_sense() -> None:
    found = machine()
    assert machine() is found
    assert 1e8 < found.memory <= found.cache
    assert found.operations > 1e8
    assert " thread" in found.method


@pytest.mark.timing
def test_a_copy_in_the_cache_finds_it_there() -> None:
    assert any(again() for again in [faster_in_cache] * 5), "others may have the machine meanwhile"


def faster_in_cache() -> bool:
    _machine.cache_clear()
    found = machine()
    return found.cache > 1.2 * found.memory


@pytest.mark.parametrize("dynamic", [None, True])
def test_limit_counts_inputs_and_outputs_once(dynamic: bool | None) -> None:
    graph = compiled(softmax, torch.randn(64, 128), dynamic=dynamic)
    found = graph.limit()
    assert found.bytes == 2 * 64 * 128 * 4
    assert found.products == 0
    assert found.seconds == found.copy.median > 0


def test_of_a_part_of_a_tensor_only_the_part_counts() -> None:
    """A call of ATen on ``x[0]`` is not said to move all of ``x``: eager does not, either."""
    x = torch.randn(50, 32, 16)
    found = compiled(lambda x: (x[0] @ x[0].T).relu(), x).limit()
    product = 32 * 32 * 4
    assert found.moved == 32 * 16 * 4 + product + 2 * product
    assert found.moved < found.eager
    assert found.bytes < x.nbytes


def test_products_count_with_their_operations() -> None:
    a, b = torch.randn(32, 48), torch.randn(48, 16)
    found = compiled(lambda a, b: (a @ b).relu(), a, b).limit()
    assert found.products == 2 * 32 * 48 * 16
    assert found.bytes == (32 * 48 + 48 * 16 + 32 * 16) * 4


def test_products_are_at_best_as_quick_as_those_of_their_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = torch.randn(32, 48), torch.randn(48, 16)
    graph = compiled(lambda a, b: (a.double() @ b.double()).relu().float() + a @ b, a, b)
    rates = {torch.float32: 1e6, torch.float64: 1e3}
    monkeypatch.setattr(fusec.timing.limits, "product_rate", lambda dtype, device: rates[dtype])
    operations = 2 * 32 * 48 * 16
    found = graph.limit()
    assert found.products == 2 * operations
    assert found.seconds == pytest.approx(operations / 1e6 + operations / 1e3)


def test_the_rate_of_a_type_is_measured() -> None:
    assert product_rate(torch.float32) == machine().operations
    assert product_rate(torch.float64) > 0
    assert product_rate(torch.int32) > 0
    assert product_rate(torch.float16) == machine().operations


def test_backward_counts_where_it_has_run() -> None:
    w = torch.randn(48, 16, requires_grad=True)
    x = torch.randn(32, 48)
    torch._dynamo.reset()
    module = fusec.compile(lambda x: (x @ w).relu(), keep_inputs=True)
    y = module(x)
    (graph,) = module.graphs
    product = 2 * 32 * 48 * 16
    alone = graph.limit()
    assert (graph.ran_backward, alone.products) == (False, product)
    assert "backward" not in graph.measure(0.02)[0].method
    y.sum().backward()
    both = graph.limit()
    assert graph.ran_backward
    assert both.products == 2 * product  # x wants no gradient
    assert both.bytes > alone.bytes
    before = w.grad.clone()
    for found in graph.measure(0.02):
        assert found.method.startswith("forward and backward, ")
    assert torch.equal(w.grad, before), "measuring leaves the user's gradients alone"


def test_limit_needs_a_call() -> None:
    torch._dynamo.reset()
    module = fusec.compile(softmax)
    module(torch.randn(4, 4))
    assert module.graphs[0].limit() is None


def test_copy_of_nothing_takes_no_time_to_speak_of() -> None:
    assert copy_time(0, seconds=0.005).median < 1e-3


def test_cell_has_a_limit_and_a_page() -> None:
    torch._dynamo.reset()
    fused = fuselab.fuse(softmax)
    fused(torch.randn(64, 128))
    cell = fused.result
    cell.measure(0.05)
    page = limits.limits_page(cell)
    assert cell.limit > 0
    assert "limit here" in page.text
    assert "GB/s" in page.text
    (point,) = limits.roofline_points(cell, {})
    assert point.bytes == 2 * 64 * 128 * 4


def test_kernels_of_symbolic_sizes_are_in_the_table_at_the_sizes_of_the_latest_call() -> None:
    torch._dynamo.reset()
    fused = fuselab.fuse(softmax, dynamic=True)
    fused(torch.randn(16, 128))
    fused(torch.randn(64, 128))
    cell = fused.result
    cell.measure(0.02)
    (point,) = limits.roofline_points(cell, limits.symbolic_costs(cell))
    assert point.bytes == 2 * 64 * 128 * 4
    assert point.operations > 64 * 128
    page = limits.limits_page(cell)
    assert limits.NO_ROWS not in page.text
    assert point.name in page.text


def test_what_is_not_known_has_words_in_place_of_an_empty_table() -> None:
    assert limits.NO_ROWS in roofline.table([], machine("cpu"), {})


# --- sweeps --------------------------------------------------------------------------------


def test_sizes_that_belong_together_vary_together() -> None:
    graph = compiled(lambda x, y: x + y, torch.randn(8, 6), torch.randn(8, 6))
    first, second = sizes_of(graph)
    assert (first.value, first.places) == (8, ((0, 0), (1, 0)))
    assert (second.value, second.places) == (6, ((0, 1), (1, 1)))
    assert first.label == "x.size(0) = 8"


def test_parameters_keep_their_sizes_while_a_batch_varies() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())
    module = fusec.compile(model, keep_inputs=True)
    module(torch.randn(16, 8))  # as many rows as the layer has outputs
    (graph,) = module.graphs
    sizes = sizes_of(graph)
    assert sizes[0].label.endswith("size(0) = 16")
    assert len(sizes[0].places) == 1
    points = list(sweep(graph, sizes[0], [4, 32], seconds=0.01))
    assert [point.size for point in points] == [4, 32]
    assert points[0].fused.method.startswith("forward alone, ")


def test_sizes_are_called_as_the_user_calls_them() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU())
    module = fusec.compile(lambda x: model(x).sum(1), keep_inputs=True)
    module(torch.randn(2, 6))
    labels = [size.label for size in sizes_of(module.graphs[0])]
    assert labels[0] == "x.size(0) = 2"
    assert "model.0.weight.size(0) = 4" in labels or "model.0.bias.size(0) = 4" in labels, labels


def test_sweep_times_each_size() -> None:
    graph = compiled(softmax, torch.randn(16, 24))
    kernels = graph.kernels
    points = list(sweep(graph, sizes_of(graph)[0], [4, 16, 40], seconds=0.01))
    assert [point.size for point in points] == [4, 16, 40]
    assert all(point.eager.median > 0 and point.fused.median > 0 for point in points)
    assert graph.kernels == kernels


def test_sweep_of_a_fixed_size_says_so() -> None:
    graph = compiled(lambda x: F.layer_norm(x, (24,)), torch.randn(16, 24))
    fixed = next(size for size in sizes_of(graph) if size.value == 24)
    with pytest.raises(FixedSize, match="captured for x"):
        list(sweep(graph, fixed, [12], seconds=0.01))


def test_sweep_stops_when_told() -> None:
    graph = compiled(softmax, torch.randn(16, 24))
    stop = threading.Event()
    found = []
    for point in sweep(graph, sizes_of(graph)[0], [4, 8, 16], seconds=0.01, stop=stop):
        found.append(point.size)
        stop.set()
    assert found == [4]


def test_sweep_takes_indices_in_range() -> None:
    table = torch.randn(5, 8)
    graph = compiled(lambda i: F.embedding(i, table).sum(-1), torch.tensor([0, 4, 2, 3]))
    size = next(size for size in sizes_of(graph) if size.value == 4)
    assert len(list(sweep(graph, size, [2, 9], seconds=0.01))) == 2


def test_sweep_needs_a_call() -> None:
    torch._dynamo.reset()
    module = fusec.compile(softmax)
    module(torch.randn(4, 4))
    with pytest.raises(NoInputs):
        sizes_of(module.graphs[0])


# --- figures -------------------------------------------------------------------------------


def texts(figure: Any) -> str:
    found = figure.findobj(match=lambda each: hasattr(each, "get_text"))
    return " ".join(text.get_text() for text in found)


def test_roofline_names_units_and_kernels() -> None:
    found = machine()
    points = [RooflinePoint("gelu", 10**7, 10**6, 1e-3), RooflinePoint("copy", 0, 10**6, 1e-3)]
    figure = roofline_figure(points, found)
    assert plots.figure_png(figure)[:4] == b"\x89PNG"
    shown = texts(figure)
    for fact in ("gelu: 1.00 GB/s", "operations a byte", "Gop/s", "copy through memory"):
        assert fact in shown
    assert "copy: 1.00 GB/s, only moves" in shown
    handles, labels = figure.axes[0].get_legend_handles_labels()
    assert all(each.get_linestyle() != "None" or each.get_marker() != "None" for each in handles)
    assert any(label.startswith("product of matrices: ") for label in labels)


def test_roofline_has_every_kernel() -> None:
    points = [RooflinePoint(f"kernel_{n}", 10**6, 10**6, 1e-3) for n in range(11)]
    figure = roofline_figure(points, machine())
    (axes,) = figure.axes
    assert sum(len(line.get_xdata()) == 1 for line in axes.lines) == 11
    assert "3 more, in the table" in texts(figure)
    assert plots.figure_png(roofline_figure([], machine()))


def test_sweep_figure_has_a_point_a_size() -> None:
    points = [SweepPoint(n, timing(n / 10), timing(n / 30)) for n in (8, 64, 512)]
    figure = sweep_figure(points, "x.size(0)")
    plots.figure_png(figure)
    shown = texts(figure)
    for fact in ("8", "64", "512", "3.0×", "x.size(0)", "time a call (ms)", "eager", "fused"):
        assert fact in shown
    assert plots.figure_png(sweep_figure(points[:1], "x"))


def run_of(configs: list[dict[str, int]], times: list[float | None]) -> TuningRun:
    trials = tuple(
        Trial(tuple(config.items()), None if time is None else timing(time), "")
        for config, time in zip(configs, times, strict=True)
    )
    return TuningRun("k", trials, 0, len(trials), None, "finished", 1.0)


def test_spots_lie_on_the_points() -> None:
    run = run_of([{"A": 1}, {"A": 2}, {"A": 4}], [2.0, None, 1.0])
    figure = plots_search.tuning_figure(run)
    plots.figure_png(figure)
    spots = plots_search.tuning_spots(figure, run)
    assert [index for _, _, index in spots] == [0, 2], "what failed cannot be picked"
    (x0, y0, _), (x1, y1, _) = spots
    assert 0 < x0 < x1 < 1
    assert 0 < y0 < y1 < 1, "the faster one is lower"


def test_squares_of_the_heat_map_are_the_trials_they_show() -> None:
    configs = [{"A": a, "B": b, "C": c} for a in (1, 2, 4) for b in (1, 2) for c in (1, 2)]
    times: list[float | None] = [float(20 - n) for n in range(len(configs))]
    times[3] = None  # the better one of its pair does not run
    run = run_of(configs, times)
    figure = plots.heat_figure(run)
    assert figure is not None
    plots.figure_png(figure)
    spots = plots.heat_spots(figure, run)
    assert [index for _, _, index in spots] == [1, 2, 5, 7, 9, 11]
    (x0, y0, _), (x1, y1, _), (x2, y2, _) = spots[:3]
    assert x0 == x1 < x2, "A goes to the right"
    assert 0 < y1 < y0 == y2 < 1, "B goes up"


def test_what_a_search_found_is_drawn() -> None:
    configs = [{"GRAIN": a, "UNROLL": b} for a in (1, 2, 4, 8) for b in (1, 2, 4)]
    run = run_of(configs, [10.0 + abs(n - 7) for n in range(len(configs))])
    figure = outcome_figure(run)
    assert figure is not None
    assert "GRAIN=1 UNROLL=1, in use, at the start" in texts(figure)
    assert {axes.get_xlabel() for axes in figure.axes} >= {"GRAIN", "UNROLL"}
    assert "best time with it (ms)" in {axes.get_ylabel() for axes in figure.axes}
    assert outcome_figure(run_of([{"A": 1}], [1.0])) is None
    assert plots.figure_png(outcome_figure(run_of([{"A": 1}, {"A": 2}], [1.0, 2.0])))


def test_time_that_is_left() -> None:
    run = run_of([{"A": n} for n in range(5)], [1.0] * 5)
    assert left_words(run) == "", "it has ended"
    going = replace(run, stopped="", total=20, seconds=5.0, budget=10.0)
    assert left_words(going) == "about 5\N{NO-BREAK SPACE}s left", "the budget ends it"
    assert time_left(replace(going, total=7)) == pytest.approx(2.0), "all will have been tried"
    assert left_words(replace(going, seconds=12.0)) == "settling on the best"
    assert time_left(replace(going, trials=())) is None
    assert "5 s left" in trial_line(going).replace("\N{NO-BREAK SPACE}", " ")


def test_heat_map_keeps_the_best_of_what_it_does_not_show() -> None:
    configs = [{"A": a, "B": b, "C": c} for a in (1, 2, 4) for b in (1, 2) for c in (1, 2)]
    run = run_of(configs, [float(n + 1) for n in range(len(configs))])
    assert plots.heat_axes(run) == ("A", "B")
    figure = plots.heat_figure(run)
    assert figure is not None
    shown = texts(figure)
    assert "1.00" in shown
    assert "2.00" not in shown
    assert "best time a call (ms)" in shown
    assert plots.heat_figure(run_of([{"A": 1}, {"A": 2}], [1.0, 2.0])) is None
    assert plots.heat_figure(run_of([{"A": 1, "B": 1}, {"A": 2, "B": 2}], [None, None])) is None


def test_timing_keeps_its_quartiles_in_the_sweep() -> None:
    point = SweepPoint(8, Timing(1, 0.9, 1.2, 9, "m"), Timing(1, 0.9, 1.2, 9, "m"))
    assert plots.figure_png(sweep_figure([point, point], "x"))


@pytest.mark.parametrize(
    ("function", "operations"),
    [
        (lambda x: x.sum(1), 64 * 512),  # a roofline must not say that it only moves
        (lambda x: x.amax(0), 64 * 512),
        (lambda x: x.cumsum(1), 64 * 512),
        (lambda x: (x * x).sum(), 2 * 64 * 512),
        (lambda x: x.sum(1) + 1, 64 * 512 + 64),
        (lambda x: x.t().contiguous(), 0),
    ],
)
def test_sums_are_operations(function: Any, operations: int) -> None:
    compiled = fusec.compile(function)
    compiled(torch.randn(64, 512))
    (graph,) = compiled.graphs
    assert sum(kernel.generated.operations for kernel in graph.kernels) == operations
