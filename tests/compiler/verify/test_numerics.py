"""Where errors grow and where NaN begins: against what is known of small cases."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import fusec
from fusec.inspect import numerics
from fusec.inspect.numerics import NotTraced, trace_part
from fusec.inspect.trace import Trace
from fusec.ir.interpret import run_program

generator = torch.Generator().manual_seed(0)
x = torch.randn(16, 32, generator=generator)


def traced(function: Any, *args: torch.Tensor, **options: Any) -> Trace:
    torch._dynamo.reset()
    module = fusec.compile(function, keep_inputs=True, **options)
    module(*args)
    return trace_part(module.graphs[0].parts[0])


def test_cancellation_is_where_the_error_grows() -> None:
    def variance(x: torch.Tensor) -> torch.Tensor:
        square = (x * x).mean(-1)
        mean = x.mean(-1)
        return square - mean * mean  # loses what the two have in common

    trace = traced(variance, x + 1000)
    line = max(trace.lines, key=lambda each: each.error)
    assert line.operator == "sub"
    assert "square - mean" in line.where.text
    assert line.growth > 100
    (tensor,) = trace.tensors
    assert tensor.compiled > 1e-3
    assert tensor.eager > 1e-3
    index = tensor.worst.index
    exact = (x + 1000).double()
    expected = ((exact * exact).mean(-1) - exact.mean(-1) ** 2)[index]
    assert tensor.worst.exact == pytest.approx(float(expected), rel=1e-6)


def test_exact_values_have_no_error() -> None:
    trace = traced(lambda x: x * 2, x)
    assert [t.compiled for t in trace.tensors] == [0.0]
    assert not trace.anomalies


def test_nan_is_found_at_its_line_with_what_it_was_given() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.log()
        return (y + 1).sum(-1)

    given = x.abs() + 1
    given[3, 5] = -2.0
    trace = traced(function, given)
    first = trace.anomalies[0]
    assert (first.kind, first.operator, first.index, first.count) == ("NaN", "log", (3, 5), 1)
    assert first.arguments == (-2.0,)
    assert first.exact_too
    assert first.where is not None
    assert "x.log()" in first.where.text
    assert len(trace.anomalies) == 1, "what follows from it is no news"


def test_overflow_of_a_small_dtype_is_told_from_the_formula() -> None:
    trace = traced(lambda x: (x * 100).exp(), torch.full((4,), 2.0))
    first = trace.anomalies[0]
    assert (first.kind, first.operator, first.count) == ("infinity", "exp", 4)
    assert not first.exact_too


def test_nan_in_an_input_is_named() -> None:
    given = x.clone()
    given[1, 2] = math.nan
    trace = traced(lambda x: x.tanh().sum(0), given)
    (only,) = trace.anomalies
    assert (only.step, only.kind, only.index) == ("input", "NaN", (1, 2))


def test_an_extern_call_can_be_where_it_begins() -> None:
    large = torch.full((4, 4), 1e30)
    trace = traced(lambda a: (a @ a).relu(), large)
    assert [a.operator for a in trace.anomalies] == ["aten.mm"]
    assert trace.anomalies[0].kind == "infinity"


def test_halves_are_compared_in_their_own_dtype() -> None:
    trace = traced(lambda x: x.exp() / x.exp().sum(-1, keepdim=True), x.half())
    (tensor,) = trace.tensors
    assert tensor.dtype == "float16"
    assert 1e-5 < tensor.compiled < 1e-3


@pytest.mark.parametrize("shape", [(0, 4), (1,), (), (3, 0)])
def test_small_and_empty(shape: tuple[int, ...]) -> None:
    trace = traced(lambda x: (x.tanh() + 1, x.sum()), torch.ones(shape))
    assert not trace.anomalies
    assert all(t.compiled < 1e-6 for t in trace.tensors)


def test_backward_can_be_traced() -> None:
    torch._dynamo.reset()
    weight = torch.randn(32, 8, generator=generator).requires_grad_()
    module = fusec.compile(lambda x: (x @ weight).tanh().sum(), keep_inputs=True)
    module(x).backward()
    for part in module.graphs[0].parts:
        trace = trace_part(part)
        assert trace.tensors
        assert all(t.compiled < 1e-5 for t in trace.tensors)


def test_large_kernels_are_looked_at_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "MOST_VALUES", 8)
    trace = traced(lambda x: x.log().sum(-1), x.abs())
    assert trace.skipped
    assert not trace.lines
    assert trace.tensors[0].compiled < 1e-5


def test_random_numbers_are_the_same_in_float64() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x) / 3 + torch.rand_like(x)

    torch._dynamo.reset()
    module = fusec.compile(function, keep_inputs=True)
    module(x)
    state = torch.get_rng_state()
    trace = trace_part(module.graphs[0].parts[0])
    assert torch.equal(torch.get_rng_state(), state)  # the next call draws what it would have
    (tensor,) = trace.tensors
    assert tensor.compiled < 1e-6


def test_inputs_must_be_kept() -> None:
    torch._dynamo.reset()
    module = fusec.compile(lambda x: x + 1)
    module(x)
    with pytest.raises(NotTraced, match="inputs kept"):
        trace_part(module.graphs[0].parts[0])


def test_dynamic_sizes() -> None:
    trace = traced(lambda x: x.softmax(-1), x, dynamic=True)
    assert trace.tensors[0].compiled < 1e-6


def test_the_interpreter_gives_what_it_gave() -> None:
    torch._dynamo.reset()
    module = fusec.compile(lambda x: torch.cumsum(x, 0) @ x.t(), keep_inputs=True)
    expected = module(x)
    (part,) = module.graphs[0].parts
    (actual,) = run_program(part.state.scheduled, [x])
    assert isinstance(actual, torch.Tensor)
    torch.testing.assert_close(actual, expected)
