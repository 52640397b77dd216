"""Bodies: what they read, how they move, and how the interpreter runs their scans."""

from __future__ import annotations

import math

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store, new_axes
from fusec.ir.index import Expr
from fusec.ir.interpret import run_body
from fusec.ir.node import Load, Scan, const, recording
from fusec.ir.printer import format_body
from support.triton_bodies import F32, at, axes, read


def scattered() -> Body:
    """Return a body that writes ``out[where[i]] = x[i]``."""
    (i,) = axes(5)
    place = ops.checked_index(ops.load("where", at(i), torch.int64), Expr.of(9))
    return Body((i,), (), (Store("out", (place,), read("x", at(i), F32)),))


def test_what_a_computed_index_is_made_of_belongs_to_the_body() -> None:
    with recording():
        body = scattered()
        assert body.reads() == ("x", "where")
        assert len(body.nodes()) > len(body.roots)


def test_a_computed_index_moves_with_its_body() -> None:
    with recording():
        body = scattered()
        (old,) = body.axes
        (new,) = new_axes((Expr.of(5),), "n")
        moved = body.moved((new,), (), {old: 4 - Expr.of(new)})
        assert all(node.index == (4 - Expr.of(new),) for node in moved.loads())
        x, where = torch.randn(5), torch.tensor([3, 0, 8, 1, 2])
        outputs = []
        for each in (body, moved):
            out = torch.zeros(9)
            run_body(each, {"x": x, "where": where, "out": out})
            outputs.append(out)
        assert torch.equal(outputs[0], torch.zeros(9).index_put((where,), x))
        assert torch.equal(outputs[0], outputs[1])


def test_a_mask_leaves_the_rows_of_reductions_and_scans_whole() -> None:
    with recording():
        (i,), (r,) = axes(2), axes(4, prefix="r")
        x = read("x", at(i, r), F32)
        early = ops.binary("lt", ops.index_value(Expr.of(r), torch.int64), const(2, torch.int64))
        total, running = ops.reduce("sum", x, (r,), F32), ops.scan("sum", x, r, F32)
        value = ops.masked(early, ops.binary("add", ops.binary("add", x, total), running), -1.0)
        body = Body((i,), (r,), (Store("out", at(i, r), value),))
        x_value, out = torch.randn(2, 4), torch.empty(2, 4)
        run_body(body, {"x": x_value, "out": out})
    wanted = x_value + x_value.sum(1, keepdim=True) + x_value.cumsum(1)
    torch.testing.assert_close(out[:, :2], wanted[:, :2])
    assert bool((out[:, 2:] == -1).all())
    masks = [node.mask is not None for node in body.nodes() if isinstance(node, Load)]
    assert sorted(masks) == [False, True]


def test_a_scan_of_one_element_is_no_scan() -> None:
    with recording():
        (i,), (r,), (one,) = axes(3), axes(4, prefix="r"), axes(1, prefix="r")
        x = read("x", at(i, r), F32)
        assert ops.scan("max", x, one, F32) is x
        assert ops.scan("argmin", x, one, torch.int64) is const(0, torch.int64)
        body = Body((i,), (r,), (Store("out", at(i, r), ops.scan("sum", x, r, F32)),))
        assert "running sum(v0 along r0)" in format_body(body)
        single = body.moved((i,), (one,), {r: Expr.of(0)})
        assert not single.scans()
        assert body.has_reduction
        assert not single.has_reduction
        assert all(isinstance(node, Scan) for node in body.scans())


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "argmax", "min", "argmin", "logsumexp"])
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (3, 6)])
def test_interpreted_scans(kind: str, shape: tuple[int, int]) -> None:
    dtype = torch.int64 if kind.startswith("arg") else F32
    x = torch.randn(shape)
    x[:1, 2:3] = math.nan
    with recording():
        (i,), (r,) = axes(shape[0]), axes(shape[1], prefix="r")
        value = ops.scan(kind, read("x", at(i, r), F32), r, dtype)
        out = torch.empty(shape, dtype=dtype)
        run_body(Body((i,), (r,), (Store("out", at(i, r), value),)), {"x": x, "out": out})
    largest = {"max": x.cummax, "min": x.cummin}.get(kind.removeprefix("arg"))
    if largest is not None:
        wanted = largest(1)[1 if kind.startswith("arg") else 0]
    else:
        wanted = {"sum": x.cumsum, "prod": x.cumprod, "logsumexp": x.logcumsumexp}[kind](1)
    torch.testing.assert_close(out, wanted, equal_nan=True)


@pytest.mark.parametrize("kind", ["all", "any", "argmax", "max", "sum", "prod"])
def test_interpreted_reductions_of_no_rows(kind: str) -> None:
    dtype = torch.bool if kind in ("all", "any") else F32
    result = torch.int64 if kind == "argmax" else dtype
    for shape in ((0, 5), (0, 0)):
        with recording():
            (i,), (r,) = axes(shape[0]), axes(shape[1], prefix="r")
            x = ops.load("x", at(i, r), dtype)
            store = Store("out", at(i), ops.reduce(kind, x, (r,), result))
            out = torch.empty(0, dtype=result)
            run_body(Body((i,), (r,), (store,)), {"x": torch.zeros(shape, dtype=dtype), "out": out})
