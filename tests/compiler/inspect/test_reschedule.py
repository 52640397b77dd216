"""Other fusions in use: rules in words, checked, kept by later calls, taken back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.call import native
from fusec.compiled.graph import CompiledGraph, NoInputs
from fusec.errors import BadOption
from fusec.inspect.reschedule import ScheduleRefused
from fusec.inspect.whatif import part_view
from fusec.options import Options
from fusec.report import Verdict
from fusec.rule_text import read_rules
from fusec.schedule.rules import UnknownComputation, with_rule
from fusec.schedule.step_graph import node_names, rule_for

x = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
RULE = "gelu:layer_norm"


def norm_and_sum(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = F.gelu(x)
    z = F.layer_norm(y, (48,))
    return z, (y * z).sum(0)


def compiled(function: Any, *args: torch.Tensor, **options: Any) -> Any:
    torch._dynamo.reset()
    found = fusec.compile(function, keep_inputs=True, **options)
    found(*args)
    return found


def assert_right(function: Any, plain: Any, *args: torch.Tensor) -> None:
    for mine, expected in zip(function(*args), plain(*args), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)


# --- rules ---------------------------------------------------------------------------------


def test_rules_are_read_as_people_write_them() -> None:
    assert read_rules("apart", "gelu:layer_norm, add #2 : sum") == ("gelu:layer_norm", "add#2:sum")
    assert read_rules("apart", ["a:b", "a:b"]) == ("a:b",)
    for wrong in ("gelu", "a:b:c", ["a:"], 3):
        with pytest.raises(BadOption, match="pairs of computations"):
            read_rules("apart", wrong)
    assert Options(apart=["a : b"]).apart == ("a:b",)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="together"):
        Options(together=("ab",))


def test_the_latest_rule_about_a_pair_wins() -> None:
    assert with_rule(("a:b", "c:d"), (), "b:a", joined=True) == (("c:d",), ("b:a",))
    assert with_rule((), ("a:b",), "a:b", joined=False) == (("a:b",), ())


def test_names_are_numbered_where_there_are_several() -> None:
    def twice(x: torch.Tensor) -> list[torch.Tensor]:
        y = torch.tanh(x)
        return [y.sum(0), y.sum(1)]

    view = part_view(compiled(twice, x).graphs[0].parts[0])
    names = node_names(view)
    sums = [name for name, text in names.items() if text.startswith("sum #")]
    assert [names[name] for name in sums] == ["sum #1", "sum #2"]
    assert rule_for(view, *sums) == "sum#1:sum#2"


# --- as an option --------------------------------------------------------------------------


def test_an_option_of_the_compiler() -> None:
    assert len(compiled(norm_and_sum, x).kernels) == 2
    apart = compiled(norm_and_sum, x, apart=[RULE])
    assert list(apart.kernels) == ["gelu_kernel", "layer_norm", "mul_sum"]
    assert_right(apart, norm_and_sum, x)
    torch._dynamo.reset()
    module = torch.compile(norm_and_sum, backend="fusec", options={"apart": ["gelu:layer_norm"]})
    assert_right(module, norm_and_sum, x)


# --- in use --------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [False, True])
def test_in_use_for_calls_of_every_path(wait: bool) -> None:
    function = compiled(norm_and_sum, x)
    first = function.graphs[0].parts[0]
    if wait:  # the native part is there, and what it holds is called past us
        native.types(wait=True)
        function(x)
        function(x)
    found = function.reschedule(apart=[RULE])
    assert found.kernels == ("gelu_kernel", "layer_norm", "mul_sum")
    assert [verdict.ok for verdict in found.verdicts] == [True]
    other = torch.randn(64, 48)
    assert_right(function, norm_and_sum, other)
    part = function.graphs[0].parts[0]
    assert part is not first
    torch.testing.assert_close(part.last_inputs[0], other), "it is this part that ran"
    assert "layer_norm" in next(s.text for s in function.graphs[0].stages if s.name == "emit")
    # What is compiled later follows the rules as well.
    assert_right(function, norm_and_sum, torch.randn(32, 48))
    assert len(function.kernels) >= 5
    for graph in function.graphs:
        assert graph.verify().ok
        graph.measure(0.02)
        graph.kernel_timings(0.02)


def test_taken_back_with_its_edits() -> None:
    function = compiled(norm_and_sum, x)
    native.types(wait=True)
    function(x)
    name = "gelu_layer_norm"
    edit = function.kernels[name].source + "// mine\n"
    assert function.kernels[name].keep(edit).ok
    last = function.kernels["mul_sum"]
    assert last.keep(last.source + "// too\n").ok
    found = function.reschedule(apart=[RULE])
    assert found.lost == (name,)
    assert function.kernels["mul_sum"].edited, "a kernel that stays as it was stays edited"
    assert_right(function, norm_and_sum, x)
    back = function.reschedule()
    assert (back.changed, back.lost) == (1, ())
    assert function.kernels[name].source == edit
    other = torch.randn(64, 48)
    assert_right(function, norm_and_sum, other)
    torch.testing.assert_close(function.graphs[0].last_inputs[0], other)
    assert function.reschedule().changed == 0


def test_training_and_what_is_updated() -> None:
    weight = torch.randn(48, requires_grad=True)
    total = torch.zeros(48)

    def step(x: torch.Tensor, weight: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total += 1
        return F.layer_norm(F.gelu(x), (48,), weight).sum(0) * total

    def run(function: Any) -> tuple[torch.Tensor, ...]:
        given, sum_ = weight.detach().clone().requires_grad_(), total.clone()
        result = function(x, given, sum_)
        result.sum().backward()
        assert given.grad is not None
        return result.detach(), given.grad, sum_

    torch._dynamo.reset()
    function = fusec.compile(step, keep_inputs=True)
    run(function)
    native.types(wait=True)
    run(function)
    before = list(function.kernels)
    found = function.reschedule(apart=[RULE])
    assert found.changed >= 1
    assert list(function.kernels) != before
    for mine, plain in zip(run(function), run(step), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-4)
    function.reschedule()
    assert list(function.kernels) == before
    for mine, plain in zip(run(function), run(step), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-4)


def test_updates_and_views_of_inputs_without_gradients() -> None:
    def step(x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = F.layer_norm(F.gelu(x), (48,))
        total.add_(z.sum(0))
        return z, x.t(), total

    totals = [torch.zeros(48), torch.zeros(48)]
    function = compiled(step, x, totals[0])
    native.types(wait=True)
    function(x, totals[0])
    step(x, totals[1])
    step(x, totals[1])
    for rules in ([RULE], [], [RULE]):
        function.reschedule(apart=rules)
        mine, plain = function(x, totals[0]), step(x, totals[1])
        for a, b in zip(mine, plain, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert mine[1]._is_view()
        assert mine[1]._base is x
        assert mine[2] is totals[0]


def test_calls_of_aten_between_kernels() -> None:
    weight = torch.randn(48, 48)

    def block(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.layer_norm(F.gelu(x), (48,))
        return torch.tanh(y @ weight), y

    function = compiled(block, x, weight)
    native.types(wait=True)
    function(x, weight)
    function.reschedule(apart=[RULE])
    assert_right(function, block, torch.randn(64, 48), weight)
    function.reschedule()
    assert_right(function, block, torch.randn(64, 48), weight)


def test_dynamic_sizes_and_empty_ones() -> None:
    function = compiled(norm_and_sum, x, dynamic=True)
    function.reschedule(apart=[RULE])
    for rows in (5, 0, 1, 200):
        assert_right(function, norm_and_sum, torch.randn(rows, 48))


def test_what_nobody_computes_is_refused() -> None:
    function = compiled(norm_and_sum, x)
    with pytest.raises(UnknownComputation, match="there is: gelu, layer_norm, mul, sum"):
        function.reschedule(apart=["gelu:softmax"])
    with pytest.raises(BadOption):
        function.reschedule(together=["gelu"])
    assert function.options.apart == ()
    assert list(function.kernels) == ["gelu_layer_norm", "mul_sum"]


def test_without_inputs_there_is_nothing_to_check_it_on() -> None:
    torch._dynamo.reset()
    function = fusec.compile(norm_and_sum)
    function(x)
    with pytest.raises(NoInputs):
        function.reschedule(apart=[RULE])
    assert_right(function, norm_and_sum, x)
    assert list(function.kernels) == ["gelu_layer_norm", "mul_sum"]


def test_a_wrong_schedule_never_stays_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    function = compiled(norm_and_sum, x)
    native.types(wait=True)
    function(x)
    wrong = Verdict(False, "wrong", "out[3] is off")
    monkeypatch.setattr(CompiledGraph, "verify", lambda self: wrong)
    with pytest.raises(ScheduleRefused, match="is off"):
        function.reschedule(apart=[RULE])
    assert list(function.kernels) == ["gelu_layer_norm", "mul_sum"]
    assert function.options.apart == ()
    assert_right(function, norm_and_sum, torch.randn(64, 48))
