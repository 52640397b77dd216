"""Triton text of scans: against the reference interpreter, and compiled for a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.node import Scan, const, recording
from fusec.targets.triton.toolchain.cross_compile import artifacts
from fusec.tunables import set_tunables
from support.triton_bodies import F32, Case, at, axes, buffer, powers, read, scans
from support.triton_cases import CASES, F64, HALF, emit, run

Change = Callable[[dict[str, torch.Tensor]], None]
STEPS = 80  # columns of a long row, which takes several steps of 32


def check(case: Case, strategy: str, change: Change | None = None) -> dict[str, torch.Tensor]:
    """Run with short steps: Triton's interpreter takes a while for every element of a scan."""
    text = emit(case, strategy).text
    if "RBLOCK = " in text:
        text = set_tunables(text, {"RBLOCK": 32})
    return run(case, strategy, change, text)


@pytest.mark.sample(3)
@pytest.mark.parametrize("strategy", ["persistent", "looped", "split"])
@pytest.mark.parametrize("dtype", [F32, F64, HALF, torch.int64, torch.int32, torch.int8])
def test_scans_along_rows(dtype: torch.dtype, strategy: str) -> None:
    kinds = ("sum", "prod", "max", "argmax", "min", "argmin")
    if dtype.is_floating_point:
        kinds += ("logsumexp",)
    for columns in (1, 33, STEPS):
        check(scans(kinds, 3, columns, dtype), strategy)


@pytest.mark.parametrize("strategy", ["persistent", "looped"])
def test_scans_of_special_values(strategy: str) -> None:
    def special(tensors: dict[str, torch.Tensor]) -> None:
        x = tensors["x"]
        x[0, 5:9] = torch.tensor([0.0, -0.0, 0.0, -0.0])
        x[1] = -0.0
        x[2, 3], x[2, 9], x[2, 50] = math.nan, math.inf, math.nan
        x[3, 4], x[3, 8] = math.inf, -math.inf
        x[4, :5], x[4, 50] = -math.inf, math.inf
        x[5] = 1.0

    for kinds in (("sum",), ("max", "argmax"), ("min", "argmin"), ("argmax",), ("logsumexp",)):
        check(scans(kinds, 6, STEPS), strategy, special)
    for kind in ("max", "min", "sum", "logsumexp"):
        case = scans((kind,), 6, STEPS)
        with recording():
            (store,) = case.body.stores
            plain = next(n for n in case.body.nodes() if isinstance(n, Scan))
            case.body = replace(case.body, stores=(replace(store, value=plain),))
        tensors = case.inputs()
        special(tensors)
        wanted = case.expected(tensors)[f"{kind}_out"]
        got = check(case, strategy, special)[f"{kind}_out"]
        assert bool(((wanted.signbit() == got.signbit()) | wanted.isnan()).all()), "signs"


@pytest.mark.parametrize("strategy", ["persistent", "looped"])
def test_scans_of_bools_and_of_what_does_not_depend_on_the_position(strategy: str) -> None:
    check(scans(("max", "argmax", "min"), 4, STEPS, torch.bool), strategy)
    with recording():
        (i,), (r,) = axes(4), axes(STEPS, prefix="r")
        row = ops.scan("sum", read("x", at(i), F32), r, F32)
        count = ops.scan("sum", const(1, torch.int64), r, torch.int64)
        body = Body((i,), (r,), (Store("out", at(i, r), row), Store("n", at(i, r), count)))
    buffers = {"x": buffer("x", (4,)), "out": buffer("out", (4, STEPS))}
    buffers["n"] = buffer("n", (4, STEPS), torch.int64)
    check(Case("rows", body, buffers, fill={"x": powers}), strategy)


@pytest.mark.parametrize("strategy", ["persistent", "looped"])
def test_a_reduction_of_a_scan_of_a_reduction(strategy: str) -> None:
    with recording():
        (i,), (r,) = axes(3), axes(STEPS, prefix="r")
        x = read("x", at(i, r), F32)
        above = ops.binary("sub", x, ops.reduce("min", x, (r,), F32))
        running = ops.scan("sum", above, r, F32)
        share = ops.binary("truediv", running, ops.reduce("max", running, (r,), F32))
        place = ops.reduce("argmax", running, (r,), torch.int64)
        stores = (Store("out", at(i, r), share), Store("place", at(i), place))
        body = Body((i,), (r,), stores)
    buffers = {"x": buffer("x", (3, STEPS)), "out": buffer("out", (3, STEPS))}
    buffers["place"] = buffer("place", (3,), torch.int64)
    check(Case("share", body, buffers, fill={"x": powers}), strategy)


def test_scans_compile_for_gpus() -> None:
    for name in ("scan_persistent", "scan_looped", "scan_columns"):
        case, strategy = CASES[name]()
        source = emit(case, strategy)
        artifacts(source.text, source.signature, gpu="sm_90")
    for dtype in (torch.int8, torch.bool, HALF):
        source = emit(scans(("max", "argmax"), 20, 3000, dtype), "looped")
        artifacts(source.text, source.signature, gpu="sm_90", kinds=("llir",))
