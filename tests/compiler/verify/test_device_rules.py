"""Triton edits that are right in an interpreter alone."""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.kernel import Kernel

pytest.importorskip("triton")
STORE = "tl.store(var_ptr + row, tl.div_rn(row_sum, 44.0), row_inside)"


@pytest.fixture(scope="module")
def rows() -> Kernel:
    """Return a kernel of a variance, which loads what a mask cuts short."""

    def variance(x: torch.Tensor) -> torch.Tensor:
        return x.var(-1)

    call = fusec.compile(variance, keep_inputs=True, target="triton")
    call(torch.randn(12, 45))
    (found,) = call.kernels.values()
    if STORE not in found.generated.text:
        pytest.skip("there is a GPU: its own checks see these")
    return found


def test_what_a_mask_keeps_away_is_undefined(rows: Kernel) -> None:
    text = rows.generated.text
    assert ", other=0.0" in text
    verdict = rows.check(text.replace(", other=0.0", ""))
    assert not verdict.ok
    assert "unless `other=` says what" in verdict.reason


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (
            f"{STORE}\n    before = tl.load(var_ptr + row - 1, row_inside & (row > 0), other=0.0)\n"
            "    tl.store(var_ptr + row, tl.div_rn(row_sum, 44.0) + before * 0.0, row_inside)",
            "loads what another program stores to",
        ),
        (
            f"tl.store(var_ptr + row * 0, 0.0, row_inside & (row == 0))\n    {STORE}\n"
            "    tl.atomic_add(var_ptr + row * 0, 0.0, row_inside)",
            "updates what another program stores to",
        ),
        (
            f"tl.store(var_ptr + row * 0, row * 1.0, row_inside)\n    {STORE}",
            "stores to what another program stores to",
        ),
    ],
    ids=["loads", "updates", "stores"],
)
def test_programs_run_at_the_same_time(rows: Kernel, edit: str, says: str) -> None:
    verdict = rows.check(rows.generated.text.replace(STORE, edit))
    assert not verdict.ok
    assert says in verdict.reason
    assert verdict.line


def test_a_maximum_of_positive_numbers() -> None:
    def least(x: torch.Tensor) -> torch.Tensor:
        return x.argmin(0)

    call = fusec.compile(least, keep_inputs=True, target="triton")
    call(torch.randn(12, 5))
    (found,) = call.kernels.values()
    old = 'other=float("inf")'
    assert old in found.generated.text
    verdict = found.check(found.generated.text.replace(old, "other=0.0"))
    assert not verdict.ok


def test_other_sizes() -> None:
    call = fusec.compile(lambda x: x * 2 + 1, keep_inputs=True, target="triton", dynamic=True)
    call(torch.randn(6, 7))
    (found,) = call.kernels.values()
    text = found.generated.text
    inside = next(line for line in text.splitlines() if line.strip().startswith("inside ="))
    verdict = found.check(text.replace(inside, inside.partition("<")[0] + "< 42"))
    assert not verdict.ok
    assert verdict.reason.endswith("sizes")
