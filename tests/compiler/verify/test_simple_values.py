"""What is right on random values, and wrong on the simplest ones."""

from __future__ import annotations

import pytest
import torch

import fusec


def compiled(rows):
    call = fusec.compile(lambda x: x.amax(1), keep_inputs=True)
    call(torch.randn(rows, 64))
    (kernel,) = call.graphs[0].kernels
    return kernel


@pytest.mark.parametrize(
    ("rows", "start", "said"),
    [
        (4, "0.0f", "on negative inputs alone"),  # of four rows none is masked
        (64, "-1e30f", "on inputs with NaN and infinities"),
    ],
)
def test_where_a_maximum_begins(rows, start, said):
    kernel = compiled(rows)
    text = kernel.source.replace("float row_max = -INFINITY", f"float row_max = {start}")
    assert text != kernel.source
    verdict = kernel.check(text, timed=False)
    assert (verdict.ok, verdict.stage) == (False, "wrong")
    assert said in verdict.reason


@pytest.mark.parametrize("number", ["100.0f", "1000.0f"])
def test_a_number_that_somebody_writes(number):
    kernel, end = compiled(64), "        amax[i0] = row_max;"
    assert end in kernel.source
    text = kernel.source.replace(end, f"        if (row_max == {number}) row_max = 1;\n{end}")
    verdict = kernel.check(text, timed=False)
    assert (verdict.ok, verdict.stage) == (False, "wrong")


@pytest.mark.parametrize("scale", [0.01, 100.0], ids=["small", "large"])
def test_an_exponential_that_is_rounded_badly(scale):
    """Inputs near zero, and rows of which one value is all, hide it: ordinary ones show it."""
    torch.manual_seed(0)
    call = fusec.compile(lambda x: torch.softmax(x, -1), keep_inputs=True)
    call(torch.randn(24, 60) * scale)
    (kernel,) = call.graphs[0].kernels
    lines = kernel.source.splitlines(keepends=True)
    (second_part_of_ln2,) = (
        i for i, line in enumerate(lines) if "r = " in line and "0x1.7f7d1cp-20" in line
    )
    lines.insert(second_part_of_ln2, lines[second_part_of_ln2])
    verdict = kernel.check("".join(lines), timed=False)
    assert (verdict.ok, verdict.stage) == (False, "wrong")


def test_a_branch_that_is_wrong_for_halves_of_one_power():
    """Between 1e-5 and 2e-5, less than any half has that is not denormal, it answers 2."""
    torch.manual_seed(0)
    call = fusec.compile(lambda x: (x.float() * 3).tanh().half(), keep_inputs=True)
    call(torch.randn(24, 60).half())
    (kernel,) = call.graphs[0].kernels
    bits = "fx_bits(fx_from_bits(bits) + 0.5f)"
    text = kernel.source.replace(bits, bits.replace("+", "/"))
    assert text != kernel.source
    verdict = kernel.check(text, timed=False)
    assert (verdict.ok, verdict.stage) == (False, "wrong")


def test_another_order_of_a_sum_where_all_of_it_cancels() -> None:
    def variance(x: torch.Tensor) -> torch.Tensor:
        return x.var(-1)

    call = fusec.compile(variance, keep_inputs=True)
    call(torch.randn(24, 45))
    (kernel,) = call.kernels.values()
    text = kernel.generated.text
    start, end = text.index("        float row_sum"), text.index("        var[i0]")
    plain = """\
        float row_sum = 0.0f, row_squares = 0.0f;
        for (int r = 0; r < 45; ++r) row_sum += x[i0 * 45 + r];
        const float mean = row_sum / 45.0f;
        for (int r = 0; r < 45; ++r) {
            const float difference = x[i0 * 45 + r] - mean;
            row_squares += difference * difference;
        }
"""
    right = kernel.check(text[:start] + plain + text[end:])
    assert right.ok, right.reason
    squares = plain.replace(" - mean;", ";").replace("= row_sum / 45.0f;\n", "= row_sum / 45.0f;\n")
    wrong = text[:start] + squares + "        row_squares -= mean * mean * 45.0f;\n" + text[end:]
    assert not kernel.check(wrong).ok


def test_a_minimum_that_begins_with_a_number() -> None:
    call = fusec.compile(lambda x: x.argmin(0), keep_inputs=True)
    call(torch.randn(40, 50))
    (kernel,) = call.kernels.values()
    text = kernel.generated.text
    begins = {"column_min[c] = INFINITY;": "column_min[c] = 1e30f;"}
    begins |= {"column_argmin[c] = -1": "column_argmin[c] = 0", "| (column_argmin[i0] < 0)": ""}
    for old, new in begins.items():
        assert old in text
        text = text.replace(old, new)
    verdict = kernel.check(text)
    assert not verdict.ok
    assert "beyond" in verdict.reason or "infinit" in verdict.reason


def test_a_count_that_stops_before_all() -> None:
    call = fusec.compile(lambda a, b: (a & ~b).sum(-1), keep_inputs=True)
    call(torch.rand(24, 60) > 0.5, torch.rand(24, 60) > 0.5)
    (kernel,) = call.kernels.values()
    assert "sum[i0] = row_count;" in kernel.generated.text
    slip = "sum[i0] = row_count > 59 ? 59 : row_count;"
    text = kernel.generated.text.replace("sum[i0] = row_count;", slip)
    assert kernel.check(text, timed=False).stage == "wrong"


@pytest.mark.parametrize(
    "code",
    [
        "float s = 0.0f; for (int64_t k = 0; k < 1440; ++k) s += x[k]; sum[0] = s;",
        "float a = 0, b = 0, c = 0, d = 0;\n"
        "for (int64_t k = 0; k < 1440; k += 4)"
        " { a += x[k]; b += x[k + 1]; c += x[k + 2]; d += x[k + 3]; }\n"
        "sum[0] = (a + b) + (c + d);",
    ],
    ids=["one by one", "four by hand"],
)
def test_a_sum_in_another_order_is_right(code: str) -> None:
    """Equal numbers and sorted ones are where its roundings go one way."""
    call = fusec.compile(lambda x: x.sum(), keep_inputs=True)
    torch.manual_seed(7)  # sorted, one by one is off by 9e-4 of a sum of 9
    call(torch.randn(24, 60))
    (kernel,) = call.kernels.values()
    assert "sum[0] = row_sum;" in kernel.generated.text
    text = kernel.generated.text.replace("sum[0] = row_sum;", code)
    verdict = kernel.check(text, timed=False)
    assert verdict.ok, verdict.reason


ROUNDED_ONCE = {
    "products": (
        lambda a, b, c: a * b - b * c,
        "a[i0] * b_val - b_val * c[i0]",
        "__builtin_fmaf(a[i0], b_val, -(b_val * c[i0]))",
    ),
    "sigmoids": (
        lambda a, b, c: torch.sigmoid(a) * b - torch.sigmoid(b) * a,
        "fx_sigmoid(a_val) * b_val - fx_sigmoid(b_val) * a_val",
        "__builtin_fmaf(fx_sigmoid(a_val), b_val, -(fx_sigmoid(b_val) * a_val))",
    ),
    "quotients": (
        lambda a, b, c: torch.exp(a / (b * b + 1)) - torch.exp(a / (c * c + 1)),
        "b_val * b_val + 1.0f",
        "__builtin_fmaf(b_val, b_val, 1.0f)",
    ),
    "behind a root": (
        lambda a, b, c: torch.sqrt(torch.relu(a * b - b * c)),
        "a[i0] * b_val - b_val * c[i0]",
        "__builtin_fmaf(a[i0], b_val, -(b_val * c[i0]))",
    ),
}


@pytest.mark.parametrize("name", ROUNDED_ONCE)
@pytest.mark.parametrize("seed", range(3))
def test_a_product_and_a_sum_that_are_rounded_once(name: str, seed: int) -> None:
    """Equal inputs, where eager has zero, and large ones, where it has luck."""
    function, old, new = ROUNDED_ONCE[name]
    torch.manual_seed(seed)
    call = fusec.compile(function, keep_inputs=True)
    call(*(torch.randn(24, 60) for _ in range(3)))
    (kernel,) = call.kernels.values()
    text = kernel.generated.text
    assert old in text
    verdict = kernel.check(text.replace(old, new), timed=False)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("products", "- b_val * c[i0]", "- b_val * c[i0] * 1.00001f"),
        ("products", "a[i0] * b_val - b_val * c[i0]", "(a[i0] - c[i0]) * b_val + 1e-5f"),
        ("sigmoids", "fx_sigmoid(b_val) * a_val", "fx_sigmoid(b_val) * a_val * 1.00001f"),
        ("quotients", "c_val * c_val + 1.0f", "c_val * c_val + 1.00001f"),
        ("behind a root", "a[i0] * b_val", "a[i0] * b_val * 1.00001f"),
    ],
)
def test_what_more_than_a_rounding_makes_is_refused(name: str, old: str, new: str) -> None:
    function = ROUNDED_ONCE[name][0]
    torch.manual_seed(0)
    call = fusec.compile(function, keep_inputs=True)
    call(*(torch.randn(24, 60) for _ in range(3)))
    (kernel,) = call.kernels.values()
    assert old in kernel.generated.text
    verdict = kernel.check(kernel.generated.text.replace(old, new), timed=False)
    assert (verdict.ok, verdict.stage) == (False, "wrong")
