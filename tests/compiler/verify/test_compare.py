"""The comparison with eager and float64: what passes, what does not, and where it points."""

from __future__ import annotations

import math

import pytest
import torch

from fusec.verify.comparison.compare import compare_output, compare_outputs, signed_zero_differences
from fusec.verify.comparison.words import describe, mismatch


def against(function, x, actual=None, dtype=torch.float32):
    """Compare with eager in `dtype` and with float64."""
    eager = function(x.to(dtype))
    exact = function(x.to(dtype).double())
    return compare_output("out", eager.clone() if actual is None else actual, eager, exact)


def test_equal():
    figure = against(torch.exp, torch.randn(100))
    assert figure.ok
    assert figure.against_eager == 0
    assert figure.against_float64 == figure.eager_against_float64 > 0
    assert (figure.name, figure.dtype, figure.shape) == ("out", "float32", (100,))


def test_one_wrong_element_among_many():
    x = torch.randn(300, 1000)
    actual = x.exp()
    actual[217, 543] += 0.01
    figure = against(torch.exp, x, actual)
    assert not figure.ok
    assert figure.worst == (217, 543)
    assert figure.against_eager == pytest.approx(0.01, rel=1e-3)
    assert figure.against_eager > figure.allowed
    assert "differs from eager by 0.01 at [217, 543]" in describe(figure)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_better_than_eager_passes_in_half_precision(dtype):
    def function(t):
        return ((t * 3.3 + 1) * 1.7 - 2).exp()

    x = torch.randn(5000).to(dtype)
    actual = function(x.float()).to(dtype)
    figure = against(function, x, actual, dtype)
    assert figure.ok
    assert figure.against_float64 < figure.eager_against_float64
    assert figure.against_eager <= figure.allowed


@pytest.mark.parametrize(
    ("dtype", "lower"),
    [
        (torch.float64, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.float16, torch.bfloat16),
    ],
)
def test_a_lower_precision_inside_does_not_pass(dtype, lower):
    x = torch.randn(5000).to(dtype)
    assert not against(torch.sin, x, torch.sin(x.to(lower)).to(dtype), dtype).ok


def test_another_order_of_a_sum_passes():
    x = torch.randn(64, 5000)
    actual = x.flip(1).cumsum(1)[:, -1]
    assert against(lambda t: t.sum(1), x, actual).ok


def test_catastrophic_cancellation_passes_where_eager_is_as_bad():
    def function(t):
        return (t + 1e6) - 1e6

    x = torch.randn(2000)
    eager = function(x)
    other = x + torch.where(torch.rand(2000) < 0.5, 0.03, -0.03)
    assert compare_output("out", other, eager, function(x.double())).ok


def test_small_values_are_compared_at_their_own_scale():
    x = torch.randn(1000, 1000)
    assert not against(lambda t: t.softmax(0), x, torch.zeros(1000, 1000)).ok
    eager = x.softmax(0)
    assert not compare_output("out", torch.zeros(1000, 1000), eager, strict=True).ok
    assert compare_output("out", eager.clone(), eager, strict=True).ok


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_has_to_agree(value):
    x = torch.randn(50)
    actual = x.exp()
    actual[7] = value
    figure = against(torch.exp, x, actual)
    assert not figure.ok
    assert math.isnan(figure.against_eager)
    assert figure.worst == (7,)
    assert "NaN or infinite where eager's is not" in describe(figure)
    # And the other way round.
    assert not compare_output("out", x.exp(), actual, x.double().exp()).ok


def test_the_same_infinities_and_nans_pass():
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 1.0])
    figure = against(lambda t: t * 2, x)
    assert figure.ok
    assert figure.against_eager == 0
    assert not compare_output("out", x, -x, None).ok


def test_beside_nan_the_furthest_element_is_told_as_without():
    x = torch.randn(40)
    x[3] = math.nan
    actual = x.exp()
    actual[9] = actual[9].nextafter(torch.tensor(math.inf))
    figure = against(torch.exp, x, actual)
    assert figure.ok
    assert figure.worst == (9,)
    assert figure.against_eager > 0
    actual[30] += 1
    figure = against(torch.exp, x, actual)
    assert not figure.ok
    assert figure.worst == (30,)
    actual[30] = math.nan  # one more than eager has
    assert not against(torch.exp, x, actual).ok


def test_eager_may_overflow_in_half_precision():
    x = torch.full((5,), 60000.0, dtype=torch.float16)

    def function(t):
        return t * 2 / 4

    assert against(function, x, torch.full_like(x, 30000.0), torch.float16).ok
    assert not against(function, x, torch.full_like(x, 20000.0), torch.float16).ok
    wide = x.float() * 1e34
    assert not against(function, wide, torch.full_like(wide, 3.0)).ok


def test_integers_are_exact():
    eager = torch.arange(10)
    actual = eager.clone()
    actual[4] += 3
    figure = compare_output("out", actual, eager)
    assert (figure.ok, figure.against_eager, figure.worst) == (False, 3.0, (4,))
    assert figure.dtype == "int64"
    assert compare_output("out", eager.clone(), eager).ok
    big = torch.tensor([2**62, 2**62 + 1])
    assert not compare_output("out", big.flip(0), big).ok


def test_integers_may_be_right_where_eager_rounded():
    # A comparison of half-precision values that eager rounds on the way.
    eager = torch.tensor([True, False, True])
    exact = torch.tensor([True, True, True])
    assert compare_output("out", torch.tensor([True, True, True]), eager, exact).ok
    assert not compare_output("out", torch.tensor([False, True, True]), eager, exact).ok


def test_bools_that_are_neither():
    eager = torch.tensor([True, True])
    actual = torch.tensor([1, 7], dtype=torch.uint8).view(torch.bool)
    figure = compare_output("out", actual, eager)
    assert not figure.ok
    assert figure.dtype == "bool"


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_odd_shapes(shape):
    figure = against(torch.exp, torch.randn(shape))
    assert figure.ok
    assert figure.shape == shape
    figure = compare_output("out", torch.ones(shape) * 2, torch.ones(shape))
    assert figure.ok == (0 in shape)


def test_dtype_and_shape():
    x = torch.randn(4)
    for other in (x.double(), x[None], x[:2]):
        figure = compare_output("out", other, x)
        assert not figure.ok
        assert mismatch(other, x)
    assert "is float64 where eager gives float32" in mismatch(x.double(), x)
    assert not mismatch(x, x)


def test_strides_may_differ():
    x = torch.randn(3, 4)
    assert compare_output("out", x.t().contiguous().t(), x).ok


def test_signed_zeros_are_counted():
    zeros = torch.tensor([0.0, -0.0, 1.0, 0.0])
    assert signed_zero_differences(zeros, -zeros) == 3
    assert signed_zero_differences(zeros, zeros) == 0
    assert signed_zero_differences(torch.tensor([0]), torch.tensor([0])) == 0


def test_complex():
    x = torch.randn(20, dtype=torch.complex64)
    actual = x.clone()
    figure = compare_output("out", actual, x, x.to(torch.complex128))
    assert figure.ok
    assert figure.shape == (20,)
    actual[3] += 1j
    figure = compare_output("out", actual, x, x.to(torch.complex128))
    assert not figure.ok
    assert figure.worst == (3,)


def test_large_and_strided():
    x = torch.randn(1500, 1001).t()
    actual = x.exp().contiguous()
    actual[1000, 1499] *= 1.001
    figure = against(torch.exp, x, actual)
    assert not figure.ok
    assert figure.worst == (1000, 1499)


def test_several():
    x = torch.randn(5)
    figures = compare_outputs(["a", "b"], [x, x + 1], [x, x], [x.double(), None])
    assert [f.ok for f in figures] == [True, False]
    assert figures[1].against_float64 is None
    assert "is allowed" in describe(figures[1])


def test_nan_where_float64_has_a_number_is_no_error_of_zero():
    """It is as in eager, and passes; the figure said 0 where all was NaN."""
    eager = torch.tensor([float("nan")] * 4, dtype=torch.float16)
    figure = compare_output("p", eager.clone(), eager, torch.zeros(4, dtype=torch.float64))
    assert figure.ok
    assert figure.against_eager == 0
    assert figure.against_float64 == figure.eager_against_float64 == float("inf")
    both = compare_output("p", eager.clone(), eager, eager.double())
    assert both.against_float64 == 0


def _narrow(x, actual, eager, exact):
    return compare_output("out", actual.to(eager.dtype), eager, exact, narrow=True).ok


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_that_eager_rounds_once_are_judged_by_their_own_size(dtype):
    """Beside values near one, smaller ones may not be off by many times their last place."""
    x = torch.randn(24, 60).to(dtype)
    exact = x.double().tanh()
    eager = exact.to(dtype)
    band = exact.abs() < 0.4
    for times, right in ((1.2, True), (5.0, False)):
        off = torch.where(band, exact * (1 + times * torch.finfo(dtype).eps), exact)
        assert compare_output("out", off.to(dtype), eager, exact).ok
        assert _narrow(x, off, eager, exact) is right
    # float32 within, by another formula and another order
    e = torch.exp(-2 * x.float().abs())
    assert _narrow(x, ((1 - e) / (1 + e)).copysign(x.float()), eager, exact)
    sums = x.double().sum(-1, keepdim=True) + x
    backwards = x.float().flip(-1).cumsum(-1)[:, -1:] + x.float()
    assert _narrow(x, backwards, sums.to(dtype), sums)


def test_of_few_values_nobody_knows_how_eager_rounds():
    x = torch.linspace(0.1, 3, 12).half()
    exact = x.double().tanh()
    off = torch.where(x < 0.4, exact * (1 + 3 * torch.finfo(torch.float16).eps), exact)
    assert _narrow(x, off, exact.half(), exact)
    assert _narrow(x, off.repeat(20), exact.half().repeat(20), exact.repeat(20))
    x = torch.linspace(0.1, 3, 40).half()
    exact = x.double().tanh()
    off = torch.where(x < 0.4, exact * (1 + 3 * torch.finfo(torch.float16).eps), exact)
    assert not _narrow(x, off, exact.half(), exact)


def test_halves_that_eager_rounds_on_the_way_are_judged_as_before():
    x, y = torch.randn(2, 24, 60).half()
    eager, exact = x * y + x, x.double() * y.double() + x.double()
    assert _narrow(x, (x.float() * y.float() + x.float()), eager, exact)
    assert _narrow(x, x + y * x, eager, exact)
    assert _narrow(x, x * (y + 1), eager, exact)
