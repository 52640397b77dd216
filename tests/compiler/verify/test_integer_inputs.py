"""Integers, sizes and limits that the notebook's own inputs do not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from fusec.kernel import Kernel
from fusec.verify.trials.inputs import fresh_inputs


def kernel(function: Callable[..., Any], *given: torch.Tensor) -> Kernel:
    """Return the kernel of a function that has one."""
    call = fusec.compile(function, keep_inputs=True)
    call(*given)
    (found,) = call.kernels.values()
    return found


def edited(found: Kernel, changes: dict[str, str]) -> str:
    """Return a kernel's text with changes, each of which has to be one."""
    text = found.generated.text
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


def with_body(found: Kernel, code: str) -> str:
    """Return a kernel's text with another function body."""
    head, _, rest = found.generated.text.partition('extern "C"')
    before, _, body = rest.partition("\n{\n")
    _, _, after = body.partition("\n}\n")
    return "".join((head, 'extern "C"', before, "\n{\n", code, "\n}\n", after))


def small_integers() -> torch.Tensor:
    """Return integers of which no sum leaves an int."""
    return torch.randint(-90, 90, (24, 60))


@pytest.mark.parametrize(
    "changes",
    [
        {
            "int64_t row_sum = 0;": "int row_sum = 0;",
            "row_sum = wrap_add(row_sum, total);": "row_sum += (int)total;",
        },
        {"wrap_mul(i[i0 * 60 + r0], 3)": "(int64_t)((int)i[i0 * 60 + r0] * 3)"},
    ],
    ids=["a sum", "a product"],
)
def test_an_int_is_not_wide_enough(changes: dict[str, str]) -> None:
    found = kernel(lambda i: (i * 3 + 1).sum(-1), small_integers())
    verdict = found.check(edited(found, changes), timed=False)
    assert (verdict.ok, verdict.stage) == (False, "wrong")
    assert "on integers of every size in `i`" in verdict.reason


def test_what_asks_the_worker_is_not_judged_while_it_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether a kernel takes such integers the worker is asked, which has to be free then."""
    found = kernel(lambda i: i.float() * 0.5, torch.randint(0, 200, (24, 60)))
    code = "    for (int64_t k = 0; k < 1440; ++k) mul[k] = (float)(int)i[k] * 0.5f;\n    return 0;"
    called: list[object] = []
    monkeypatch.setattr(
        "fusec.verify.isolation.sandbox.endure", lambda **given: called.append(given)
    )
    verdict = found.check(with_body(found, code))
    assert (verdict.ok, verdict.stage) == (False, "wrong")
    assert not called  # many times, in vain


def test_an_index_may_be_negative() -> None:
    found = kernel(lambda x, i: x[i] * 2, torch.randn(24, 60), torch.randint(0, 24, (9,)))
    wraps = "const int64_t wrapped = i_val < 0 ? wrap_add(i_val, 24) : i_val;"
    text = edited(found, {wraps: "const int64_t wrapped = i_val;"})
    verdict = found.check(text, timed=False)
    assert not verdict.ok
    assert "on integers from -24 to 23 in `i`" in verdict.reason


def test_a_limit_is_met_itself() -> None:
    found = kernel(lambda x: torch.where(x > 0.375, x, 0.0), torch.randn(24, 60))
    verdict = found.check(edited(found, {"> 0.375f": ">= 0.375f"}), timed=False)
    assert (verdict.ok, verdict.stage) == (False, "wrong")
    assert "on the numbers that it compares with" in verdict.reason


def test_what_is_left_of_a_block_may_be_even() -> None:
    x = torch.randn(64)
    torch._dynamo.mark_dynamic(x, 0)
    found = kernel(lambda x: x.sum(), x)
    (size,) = found.signature.sizes
    code = (
        "    double total = 0; int64_t i = 0;\n"
        f"    for (; i + 4 <= {size}; i += 4) for (int k = 0; k < 4; ++k) total += x[i + k];\n"
        f"    %s ({size} > i) total += x[i++];\n    sum[0] = (float)total;\n    return 0;"
    )
    assert found.check(with_body(found, code % "while"), timed=False).ok
    verdict = found.check(with_body(found, code % "if"), timed=False)
    assert (verdict.ok, verdict.stage) == (False, "wrong")
    assert f"where {size} is" in verdict.reason


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_right_edits_of_integers_are_accepted(dtype: torch.dtype) -> None:
    given = torch.randint(0, 100, (7, 9), dtype=dtype)
    found = kernel(lambda i: (i * 3 + 1) // 4 + (i % 7), given)
    verdict = found.check(found.generated.text + "\n// once more\n", timed=False)
    assert verdict.ok, verdict.reason


def loss(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(x, t, ignore_index=-100)


def test_classes_beside_a_number_that_says_none() -> None:
    given = torch.randint(13, (500,))
    given[::3] = -100
    (made,) = fresh_inputs([given], seed=3)
    assert set(made.tolist()) <= {-100, *range(13)}
    assert 0.2 < float((made == -100).double().mean()) < 0.5


def test_a_loss_with_ignored_classes_is_checked_on_other_inputs() -> None:
    labels = torch.randint(13, (30,))
    labels[::4] = -100
    call = fusec.compile(loss, keep_inputs=True)
    call(torch.randn(30, 13), labels)
    first, second = call.kernels.values()
    largest = "row_max = number_max(x[i0 * 13 + r0], row_max);"
    assert largest in first.generated.text
    assert not first.check(first.generated.text.replace(largest, "row_max = 0.0f;")).ok
    count = "(float)row_count"
    assert count in second.generated.text
    verdict = second.check(
        second.generated.text.replace(count, f"{count[:7]}(row_count ? row_count : 1)")
    )
    assert not verdict.ok
    assert "-100 alone" in verdict.reason


def test_integers_are_drawn_from_the_originals_where_eager_takes_no_others() -> None:
    given = torch.tensor([2, 2, 9, 16, 9, 2])
    (made,) = fresh_inputs([given], seed=3, resampled=True)
    assert set(made.tolist()) <= {2, 9, 16}


def test_the_least_integer_divided_by_minus_one() -> None:
    call = fusec.compile(lambda a, b: a // b, keep_inputs=True)
    call(torch.randint(-50, 50, (6, 5)), torch.randint(1, 9, (5,)))
    (kernel,) = call.kernels.values()
    guard = "bool negate = ((T)-1 < (T)0) & (y == (T)-1);"
    assert guard in kernel.generated.text
    verdict = kernel.check(kernel.generated.text.replace(guard, "bool negate = false;"))
    assert not verdict.ok
    assert "is the least integer" in verdict.reason


@pytest.mark.parametrize(
    ("dtype", "function", "old", "new"),
    [
        (
            torch.int32,
            lambda i: i.abs() + 1,
            "fx_abs<int32_t>(i[i0])",
            "(i[i0] == -2147483647 - 1 ? 2147483647 : fx_abs<int32_t>(i[i0]))",
        ),
        (
            torch.int8,
            lambda i: i * 3 + 7,
            "(int8_t)((int8_t)(i[i0] * 3) + 7)",
            "(int8_t)(i[i0] * 3 + 7 < -376 ? -128 : i[i0] * 3 + 7)",
        ),
        (
            torch.int8,
            lambda i: i * 3 + 7,
            "(int8_t)((int8_t)(i[i0] * 3) + 7)",
            "(int8_t)(i[i0] * 3 + 7 + (i[i0] == 77))",
        ),
    ],
    ids=["no negative of the least", "the least byte", "one byte"],
)
def test_the_ends_of_a_type(
    dtype: torch.dtype, function: Callable[..., Any], old: str, new: str
) -> None:
    found = kernel(function, torch.randint(-60, 60, (24, 60)).to(dtype))
    assert found.check(edited(found, {old: f"({old})"}), timed=False).ok
    verdict = found.check(edited(found, {old: new}), timed=False)
    assert (verdict.ok, verdict.stage) == (False, "wrong")
