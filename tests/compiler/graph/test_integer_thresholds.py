"""Thresholds of integers: eager makes both numbers integers of the tensor's type first."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.ir.numbers import whole

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# The threshold, and what is put where it is not passed.
NUMBERS = ((-2.5, 3.7), (-0.5, 3), (-1, 2), (1.5, -0.5), (2, 0.9), (0.5, 7), (3.5, 1.5))


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def values(dtype: torch.dtype) -> torch.Tensor:
    kind = torch.iinfo(dtype)
    near = torch.arange(-4, 5).clamp(min=kind.min)
    return torch.cat([near, torch.tensor([kind.min, kind.max, kind.max - 1])]).to(dtype)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_numbers_with_a_fraction(dtype: torch.dtype, dynamic: bool) -> None:
    x = values(dtype)
    compiled = fusec.compile(F.threshold, dynamic=dynamic)
    for threshold, value in NUMBERS:
        try:
            wanted = F.threshold(x, threshold, value)
        except RuntimeError:  # a fraction below zero, of an unsigned type
            assert dtype == torch.uint8
            with pytest.raises(Exception, match="without overflow"):
                compiled(x, threshold, value)
            continue
        found = compiled(x, threshold, value)
        assert found.dtype == dtype
        assert torch.equal(found, wanted), (threshold, value, found, wanted)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8])
def test_in_place_and_within_a_kernel(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
        own = x.clone()
        F.threshold_(own, limit, 2.5)
        return own, F.threshold(x - 1, limit, -3.5) * 3

    x = values(dtype)
    for limit in (-2.5, 1.5):
        for found, wanted in zip(
            fusec.compile(function)(x, limit), function(x, limit), strict=True
        ):
            assert torch.equal(found, wanted)


def test_a_whole_number_that_changes_is_one_graph() -> None:
    compiled = fusec.compile(F.threshold, dynamic=True)
    x = values(torch.int64)
    for number in (3, 4, 7, 2):
        assert torch.equal(compiled(x, number, number + 2), F.threshold(x, number, number + 2))
    assert len(compiled.graphs) == 1


def test_a_number_that_changes_and_goes_beyond_the_type() -> None:
    compiled = fusec.compile(F.threshold, dynamic=True)
    x = values(torch.int8)
    assert torch.equal(compiled(x, 5, 1), F.threshold(x, 5, 1))
    with pytest.raises(Exception, match="without overflow"):
        compiled(x, 300, 1)


def test_what_an_integer_type_makes_of_a_number() -> None:
    made = [whole(n, torch.int8) for n in (-2.5, 2.9, True, -128, 127.0)]
    assert made == [-2, 2, 1, -128, 127]
    assert [whole(n, torch.uint8) for n in (-1, -255, 255, 0.5)] == [255, 1, 255, 0]
    for number, dtype in (
        (128, torch.int8),
        (-129, torch.int8),
        (-0.5, torch.uint8),
        (-256, torch.uint8),
        (float("nan"), torch.int64),
        (1e30, torch.int64),
    ):
        with pytest.raises(RuntimeError, match="without overflow"):
            whole(number, dtype)
