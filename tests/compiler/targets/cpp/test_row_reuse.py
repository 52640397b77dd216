"""C++ kernels whose rows share what they are computed from: images made larger."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.codegen.common.signatures import make_signature
from fusec.ir import ops
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import index_value, recording
from fusec.targets.cpp.plan.loop_tables import short_indices
from fusec.targets.cpp.text.scope import KernelWriter
from support.cpp_bodies import Bench


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def agree(x: torch.Tensor, held: int | None, **options: Any) -> None:
    """Resize, compare with eager and float64, and see how many kinds of row are held."""
    compiled = fusec.compile(lambda x: F.interpolate(x, **options) * 2)
    got, eager = compiled(x), F.interpolate(x, **options) * 2
    (graph,) = compiled.graphs
    if held is not None:
        source = "\n".join(kernel.source for kernel in graph.kernels)
        assert source.count("INT64_MIN; // none yet") == held
        # all rows but the last take over what the one below them held
        assert len(re.findall(r"if \(row_held\w* == ", source)) == max(held - 1, 0)
        # positions that 32 bits hold: 64 halve the speed of the gathers
        assert not held or source.count("alignas(64) int32_t ") == 2
    exact = F.interpolate(x.double(), **options) * 2
    assert got.shape == eager.shape
    assert got.stride() == eager.stride()
    error, own = (got - exact).abs().max(), (eager - exact).abs().max()
    assert error <= own * 2 + torch.finfo(x.dtype).eps * 8 * exact.abs().max()
    again = torch.randn_like(x)
    assert torch.allclose(
        compiled(again), F.interpolate(again, **options) * 2, rtol=1e-2, atol=1e-2
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("factor", [2, 3, 1.7])
def test_bilinear(factor: float, align: bool, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(4, 8, 33, 40)
        agree(x, 2, scale_factor=factor, mode="bilinear", align_corners=align)
    finally:
        torch.set_num_threads(before)


def test_bicubic_holds_each_of_its_four_rows() -> None:
    x = torch.randn(2, 16, 20, 24)
    agree(x, None, scale_factor=2, mode="bicubic")
    compiled = fusec.compile(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"))
    compiled(x)
    source = "\n".join(kernel.source for kernel in compiled.graphs[0].kernels)
    assert len(re.findall(r"if \(row_held\w* == ", source)) == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    agree(torch.randn(2, 16, 16, 40).to(dtype), 2, scale_factor=2, mode="bilinear")


def test_trilinear() -> None:
    agree(torch.randn(2, 8, 5, 12, 20), None, scale_factor=2, mode="trilinear")


def test_not_contiguous() -> None:
    agree(torch.randn(16, 2, 40, 24).transpose(0, 1), 2, scale_factor=2, mode="bilinear")


def test_rows_that_change_every_time_are_not_held() -> None:
    agree(torch.randn(4, 8, 80, 80), 0, scale_factor=0.5, mode="bilinear")
    # with few images there would be no loop left to share among threads
    agree(torch.randn(1, 2, 40, 80), 0, scale_factor=2, mode="bilinear")


def test_places_are_narrow_only_where_32_bits_hold_them() -> None:
    """An index whose ends do not fit would come out of its table as another one."""
    for made, short in (
        (lambda j: ops.cast(ops.load("at", (j,), torch.int32), torch.int64), True),
        (lambda j: ops.load("at", (j,), torch.int64), False),
        (lambda j: index_value(j * (1 << 28), torch.int64), True),
        (lambda j: index_value((j + 1) * (1 << 28), torch.int64), False),
        (lambda j: index_value((j + 1) * (1 << 28) - 1, torch.int64), True),
        (lambda j: index_value(j - (1 << 31), torch.int64), True),
        (lambda j: index_value(j - (1 << 31) - 1, torch.int64), False),
    ):
        bench = Bench()
        j = bench.axis(8)
        bench.buffer("x", [Expr.of(1 << 40)], torch.float32)
        bench.buffer("y", [Expr.of(8)], torch.float32)
        with recording():
            place = made(j)
            bench.buffer("at", [Expr.of(8)], place.dtype)
            symbol = Symbol("place", "indirect", Expr.of(1 << 40), payload=place)
            bench.store("y", (j,), ops.load("x", (Expr.of(symbol),), torch.float32))
        signature, names = make_signature(bench.body, bench.buffers, frozenset())
        kernel = KernelWriter(bench.body, bench.buffers, names, signature, {})
        assert bool(short_indices(kernel)) is short, place
