"""Loops as people write them, one element after the other: right, though less exact than eager."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
import torch

import fusec
from fusec.kernel import Kernel


def in_turn(step: str, start: str = "float s = 0.0f;") -> str:
    """Return one loop over a row of ``x``."""
    return f"{start} for (int64_t r = 0; r < N; ++r) {{ {step} }}"


ELEMENT = "x[i0 * N + r]"
MEAN = in_turn(f"s += {ELEMENT};") + " const float m = s / N;"
SQUARES = in_turn(f"const float d = {ELEMENT} - m; q += d * d;", "float q = 0.0f;")
LOOPS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str, str]] = {
    "sum": (lambda x: x.sum(-1), in_turn(f"s += {ELEMENT};"), "s"),
    "abs": (lambda x: x.abs().sum(-1), in_turn(f"s += __builtin_fabsf({ELEMENT});"), "s"),
    "norm": (
        lambda x: x.norm(dim=-1),
        in_turn(f"s += {ELEMENT} * {ELEMENT};"),
        "__builtin_sqrtf(s)",
    ),
    "exp": (lambda x: x.exp().sum(-1), in_turn(f"s += expf({ELEMENT});"), "s"),
    "var": (lambda x: x.var(-1, unbiased=False), MEAN + SQUARES, "q / N"),
}


def kernel_of(function: Callable[[torch.Tensor], torch.Tensor], columns: int) -> Kernel:
    call = fusec.compile(function, keep_inputs=True, dynamic=False)
    call(torch.randn(4, columns))
    (kernel,) = call.kernels.values()
    return kernel


def with_loop(text: str, loop: str, result: str, columns: int) -> str:
    """Return a kernel's text with ``loop`` in the place of all that it does with a row."""
    store = re.search(r"^\s*(\w+\[i0\]) = [^;]+;", text, re.MULTILINE)
    assert store is not None
    start = text.index("\n", text.index("for (int64_t i0"))
    made = f"{text[:start]}\n        {loop} {store[1]} = {result};{text[store.end() :]}"
    made = re.sub(r"\bN\b", str(columns), made)
    return made.replace("#include <stdint.h>", "#include <math.h>\n#include <stdint.h>")


@pytest.mark.parametrize("columns", [300, 3000])
@pytest.mark.parametrize("name", LOOPS)
def test_a_plain_loop_is_right(name: str, columns: int) -> None:
    function, loop, result = LOOPS[name]
    kernel = kernel_of(function, columns)
    text = with_loop(kernel.generated.text, loop, result, columns)
    verdict = kernel.check(text, timed=False)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("drawn", [60, 138])
def test_a_variance_of_a_few_different_numbers(drawn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers far from zero: squares of half a dozen differences, each rounded one way."""
    function, loop, result = LOOPS["var"]
    kernel = kernel_of(function, 3000)
    text = with_loop(kernel.generated.text, loop, result, 3000)
    monkeypatch.setattr("fusec.verify.trials.inputs._SECRETS", random.Random(drawn))
    verdict = kernel.check(text, timed=False)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("sum", "r < N;", "r < N - 1;"),
        ("exp", "r = 0;", "r = 1;"),
        ("exp", "= s;", "= s * 1.00001f;"),
        ("norm", "= __builtin_sqrtf(s)", "= __builtin_sqrtf(s) * 1.00001f"),
        ("abs", "s += __builtin_fabsf", "s += 1.00002f * __builtin_fabsf"),
    ],
)
def test_what_more_than_its_order_makes_is_refused(name: str, old: str, new: str) -> None:
    function, loop, result = LOOPS[name]
    kernel = kernel_of(function, 3000)
    text = with_loop(kernel.generated.text, loop, result, 3000)
    old, new = (word.replace("N", "3000") for word in (old, new))
    assert old in text
    verdict = kernel.check(text.replace(old, new), timed=False)
    assert (verdict.ok, verdict.stage) == (False, "wrong")


@pytest.mark.parametrize("seed", range(4))
def test_all_of_it_in_one_loop(seed: int) -> None:
    """1,440 equal numbers, whatever they are: their roundings go one way."""
    torch.manual_seed(seed)
    call = fusec.compile(lambda x: x.sum(), keep_inputs=True)
    call(torch.randn(24, 60))
    (kernel,) = call.kernels.values()
    loop = "float s = 0.0f; for (int64_t k = 0; k < 1440; ++k) s += x[k]; sum[0] = s;"
    verdict = kernel.check(kernel.generated.text.replace("sum[0] = row_sum;", loop), timed=False)
    assert verdict.ok, verdict.reason
