"""Triton text of norms and extremes: what a loop carries along, in one pass over a row."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import fusec
from fusec.errors import CompileError
from fusec.targets.triton.toolchain.cross_compile import artifacts
from fusec.tunables import set_tunables
from support.triton_bodies import (
    F32,
    Case,
    batch_norm,
    batch_norm_last,
    group_norm,
    normalize,
    reduce_rows,
    running_mean,
    spread_rows,
)
from support.triton_cases import BF16, F64, emit, run


@pytest.mark.sample(2)
@pytest.mark.parametrize("strategy", ["looped", "split"])
@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=str)
def test_norms_in_every_strategy(dtype: torch.dtype, strategy: str) -> None:
    run(group_norm(2, 2, 3, 300, dtype), strategy)  # a step is a part of the row
    run(group_norm(1, 2, 2, 2048, dtype), strategy)  # several steps are
    run(batch_norm(5, 3, 260, dtype), strategy)
    run(batch_norm_last(70, 10, dtype), strategy)
    run(normalize((3, 5000), (1,), (1,), dtype), strategy)


@pytest.mark.parametrize("strategy", ["looped", "split"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: normalize((2, 9000), (1,), (1,), F32),
        lambda: batch_norm(7, 2, 300, F32),
        lambda: batch_norm_last(500, 4, F32),
    ],
)
def test_variances_do_not_cancel(make: Callable[[], Case], strategy: str) -> None:
    """The mean is far from zero, and a part of the row is not where the rest is."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        x = tensors["x"]
        x.mul_(1e-2).add_(1000)
        x[0].view(-1)[:40] = 0

    run(make(), strategy, change)


@pytest.mark.parametrize("strategy", ["persistent", "looped", "split"])
def test_what_is_carried_needs_no_other_use_of_what_it_is_carried_with(strategy: str) -> None:
    run(spread_rows(3, 5000), strategy)
    run(spread_rows(1, 40000, F32), strategy)


def test_steps_that_neither_divide_a_part_nor_hold_it_are_refused() -> None:
    source = emit(group_norm(1, 2, 3, 300), "looped")
    text = set_tunables(source.text, {"RBLOCK": 256})
    with pytest.raises(CompileError, match="does not compile"):
        artifacts(text, source.signature, "sm_90", ["ptx"])


@pytest.mark.parametrize("strategy", ["looped", "split"])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_first_of_equal_extremes(kind: str, strategy: str) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        x = tensors["x"]
        x.clamp_(-0.5, 0.5)  # many are equal
        x[1], x[2] = math.inf, -math.inf
        x[3, 40:60] = math.nan
        x[4, ::2], x[4, 1::2] = 0.0, -0.0

    run(reduce_rows(kind, 5, 5000), strategy, change)


@pytest.mark.sample(4)
@pytest.mark.parametrize("strategy", ["persistent", "looped", "split"])
@pytest.mark.parametrize("shape", [(5, 300), (33, 70), (2, 5000)])
def test_a_rows_value_is_updated_where_it_lies(shape: tuple[int, int], strategy: str) -> None:
    run(running_mean(*shape), strategy)
    if strategy != "persistent":
        run(running_mean(*shape, down=True), strategy)


@pytest.mark.parametrize("down", [False, True])
def test_programs_share_rows_whose_value_is_updated(down: bool) -> None:
    """As they would if it were not: of a network's first norms a program a channel took 25 ms."""
    updating, reading = (running_mean(64, 800_000, down, each) for each in ("total", "old"))
    text = emit(updating).text
    assert "SPLITS" in text
    assert text.count("@triton.jit") == (3 if down else 2), "no kernel more than without"
    # what the others still have to read is not overwritten by one of them
    assert "SPLITS" not in emit(reading).text
    run(running_mean(3, 4100, down, "old"), "split")


@pytest.mark.parametrize("correction", [0, 1])
def test_a_variance_of_what_a_softmax_yields(
    correction: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of squares is carried with the sum of what is itself made of a carried sum."""
    monkeypatch.setenv("FUSEC_STRICT", "1")

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.softmax(x, 0)
        return (x * 0.1).cumsum(1) - y, torch.sigmoid(y).var(-2, correction=correction)

    x = torch.randn(17, 7)
    results = fusec.compile(function, target="triton", tuned=False)(x)
    for result, expected in zip(results, function(x.double()), strict=True):
        torch.testing.assert_close(result.double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gelu", "silu", "softplus"])
def test_a_variance_of_what_is_written_in_a_form_of_its_own(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")

    def function(x: torch.Tensor) -> torch.Tensor:
        return getattr(torch.nn.functional, name)(x).var(0)

    x = torch.randn(300, 20).to(dtype)
    result = fusec.compile(function, target="triton", tuned=False)(x)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(result.double(), function(x.double()), atol=0, rtol=tolerance)
