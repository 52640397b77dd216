"""The numbers that an edit names are among the values that it is checked on."""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.verify.isolation.layout import Case
from fusec.verify.trials.candidate import Candidate
from fusec.verify.trials.made_trials import named_trials
from fusec.verify.trials.named_numbers import MOST, around, named_numbers


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("if (x[0] == 1234.5f) return 7;", [0.0, 1234.5, 7.0]),
        ("x < -1e-3", [-1e-3]),
        ("0x1p-3f + 1'000 + .5", [0.125, 1000.0, 0.5]),
        ("float32 x1 = y_2.z3;", []),
        ("1e999 + 3", [3.0]),
    ],
)
def test_what_is_a_number(text: str, found: list[float]) -> None:
    assert named_numbers(text, "") == found


def test_the_compilers_own_are_no_news() -> None:
    assert named_numbers("a[64] * 2.5f", "b[64]") == [2.5]


def test_of_many_some_are_drawn() -> None:
    text = ", ".join(map(str, range(1000)))
    found = named_numbers(text, "")
    assert len(set(found)) == MOST
    assert named_numbers(text, "") != found  # secretly


def test_around_a_number_are_both_signs() -> None:
    assert around(-2.0)[:2] == [-2.0, 2.0]
    assert min(map(abs, around(8.0))) < 8.0 < max(map(abs, around(8.0)))


def test_comments_name_nothing() -> None:
    call = fusec.compile(lambda x: x * 2.0, keep_inputs=True)
    call(torch.randn(6, 50))
    (kernel,) = call.graphs[0].kernels
    candidate = Candidate(kernel, kernel.source + "// 31337.5\n", *[None] * 5)
    assert not list(named_trials(candidate, [Case((torch.randn(6, 50), torch.empty(6, 50)), ())]))


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_a_condition_on_one(target: str) -> None:
    """It is met by no draw; the check gives it what it asks for."""
    call = fusec.compile(lambda x: x * 2.0, keep_inputs=True, target=target)
    call(torch.randn(6, 50))
    (kernel,) = call.graphs[0].kernels
    text, end = kernel.source, {"cpp": "* 2.0f;", "triton": "* 2.0\n"}[target]
    assert end in text
    condition = {
        "cpp": "* (float_[i0] == 31337.5f ? 3.0f : 2.0f);",
        "triton": "* tl.where(x == 31337.5, 3.0, 2.0)\n",
    }[target]
    name = next(a.name for a in kernel.signature.arguments if a.role == "in")
    verdict = kernel.check(text.replace(end, condition.replace("float_", name)), timed=False)
    assert (verdict.ok, verdict.stage) == (False, "wrong"), verdict
    assert "number" in verdict.reason
    assert "the edit's" in verdict.reason
