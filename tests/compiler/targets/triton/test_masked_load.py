"""Loads with a mask: what they yield where nothing is read, as it reaches a GPU."""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.ir.index import Expr, Symbol
from fusec.targets.triton.plan.choice import Choice, Knob
from fusec.targets.triton.text.expressions import Text
from fusec.targets.triton.text.masked_load import knows_masks, masked_load
from fusec.targets.triton.toolchain.cross_compile import artifacts

INFINITY = Text('-float("inf")')


def test_only_negative_numbers_of_float16_are_chosen_apart() -> None:
    chosen = masked_load("p", "inside", INFINITY, torch.float16).source
    assert chosen == 'tl.where(inside, tl.load(p, inside), tl.cast(-float("inf"), tl.float16))'
    text = masked_load("p", "inside", INFINITY, torch.bfloat16, "evict_first").source
    assert text == 'tl.load(p, inside, other=-float("inf"), eviction_policy="evict_first")'
    assert masked_load("p", "inside", Text("2.0"), torch.float16).source.count("other=") == 1
    assert masked_load("p", "", INFINITY, torch.float16).source == 'tl.load(p, other=-float("inf"))'
    assert masked_load("p", "inside", None, torch.float16).source == "tl.load(p, inside)"


def test_masks_are_known_in_short_loops_that_steps_do_not_divide() -> None:
    def known(kind: str, size: Expr) -> bool:
        knobs = (Knob("RBLOCK", 16, (4, 16, 64), ""),)
        return knows_masks(Choice(kind, (), (), knobs=knobs), size)

    assert known("looped", Expr.of(102))
    assert known("persistent", Expr.of(102))
    assert known("looped", Expr.of(63))
    assert known("looped", Expr.of(16 * 64 - 1))
    assert not known("looped", Expr.of(64))
    assert not known("looped", Expr.of(16 * 64 + 1))
    assert not known("split", Expr.of(102))
    assert not known("persistent", Expr.of(Symbol("s", "size")))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_minus_infinity_stays_negative_in_lanes_that_are_never_read(dtype: torch.dtype) -> None:
    """A block of 128 over 102 rows: ptxas made infinity of what the last lanes yield."""
    compiled = fusec.compile(lambda x: x.amax(-2), target="triton", tuned=False)
    x = torch.randn(102, 102).to(dtype)
    assert torch.equal(compiled(x), x.amax(-2))
    (kernel,) = compiled.kernels.values()
    code = artifacts(kernel.source, kernel.signature, "sm_90", ("sass",))["sass"]
    assert "NMX" in code
    infinity = {torch.float16: "0x7c00", torch.bfloat16: "0x7f80"}[dtype]
    moved = [line for line in code.splitlines() if "MOV" in line and f"{infinity} ;" in line]
    assert not moved
