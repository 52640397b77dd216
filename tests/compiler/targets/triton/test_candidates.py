"""All settings that are tried for products and attention, over many sizes, as a golden text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr
from fusec.ir.node import recording
from fusec.machine import using
from fusec.targets.triton.plan import choices_attention as attention
from fusec.targets.triton.plan import choices_matmul as matmul
from fusec.targets.triton.plan.choice import Choice
from fusec.targets.triton.plan.choices import flat_knobs
from fusec.targets.triton.plan.choices_reductions import (
    choose_crossed,
    choose_looped,
    choose_walked,
    steps_that_fit,
)
from support.decisions import compare
from support.triton_bodies import at, axes, buffer
from support.whole_programs import MACHINE

F16, F32 = torch.float16, torch.float32
SIZES = ((1, 4096, 4096), (16, 11008, 4096), (32, 1024, 8192), (33, 4096, 4096), (64, 4096, 11008),
         (4096, 8, 4096), (11008, 60, 4096), (64, 64, 1 << 16), (8, 320, 1023), (1, 16896, 2048),
         (60, 1 << 17, 4096), (16, 8448, 16384), (16, 4096, 1023),
         (16, 4096, 1024), (16, 4096, 1025))  # fmt: skip

EXACT = ((1, 1023, 4096), (1, 1024, 2047), (1, 1024, 2048), (16, 4096, 4096), (17, 4096, 4096),
         (16, 20_000, 16_384), (33, 48, 64), (500, 20, 64))  # fmt: skip


def shown(found: Iterable[tuple[str, matmul.Settings]]) -> str:
    return "; ".join(f"{kind} {' '.join(str(v) for _, v in values)}" for kind, values in found)


def product(dtype: torch.dtype, precision: str, count: int = 1, described: bool = True) -> Any:
    node = SimpleNamespace(args=(SimpleNamespace(dtype=dtype),), precision=precision)
    return SimpleNamespace(node=node, count=Expr.of(count), described=described)


def few_rows() -> Iterable[str]:
    for rows, columns, inner in SIZES:
        for count in (1, 12):
            where = f"{rows} x {columns} over {inner}, {count}"
            yield f"few rows {where}: {shown(matmul._few_rows(rows, columns, inner, count))}"
            yield f"packed {where}: {shown(matmul._packed(rows, columns, inner, count))}"
    for columns in (4096, 8447, 8448, 11008):
        for rows in (1, 2, 8, 16):
            yield f"words {rows} x {columns}: {shown(matmul._words(rows, columns))}"
    for rows, columns, inner in EXACT:
        yield f"exact {rows} x {columns} over {inner}: {shown(matmul._exact(rows, columns, inner))}"


def many_rows() -> Iterable[str]:
    for rows in (1, 60, 128, 500, 1000, 2112, 2113, 4096, 100_000):
        for columns in (1, 17, 64, 128, 200, 256):
            for case in (product(F16, "ieee"), product(F32, "ieee"), product(F32, "tf32", 8)):
                kind = f"{case.node.args[0].dtype} {case.node.precision}"
                found = shown(matmul._whole_rows(case, rows, columns))
                yield f"whole rows {rows} x {columns} {kind}: {found}"
    for rows, columns in (
        (65, 65),
        (128, 4096),
        (500, 512),
        (1024, 1024),
        (4096, 4096),
        (8192, 300),
    ):
        for count in (1, 24):
            for described in (True, False):
                case = product(F16, "ieee", count, described)
                found = shown(matmul._many_rows(case, rows, columns, count))
                yield f"many rows {rows} x {columns}, {count} {described}: {found}"
    for itemsize in (1, 2, 4):
        for inner in (8, 48, 64, 4096):
            for values in ((128, 256, 64, 4, 8), (32, 256, 128, 6, 4), (256, 256, 128, 3, 8)):
                fit = matmul._fitted(matmul._setting(*values), itemsize, inner)
                yield f"fitted {values} {itemsize} {inner}: {dict(fit)}"


def others() -> Iterable[str]:
    for dtype in (F16, F32):
        query: Any = SimpleNamespace(query=SimpleNamespace(dtype=dtype))
        for depth in (16, 64, 65, 128, 129, 256, 512):
            for rows in (1, 16, 17, 33, 64, 65, 129):
                found = " ".join(map(str, attention._defaults(query, rows, depth).values()))
                yield f"attention {rows} of {depth} {dtype}: {found}"
    for tiles in ((128, 64, 3), (64, 64, 4), (32, 32, 2), (16, 16, 1)):
        for row in (64, 256, 512, 1024, 2048, 4096, 8192):
            yield f"fitted {tiles} {row}: {attention.fitted(*tiles, row, row)}"
    for bytes_each in (1, 2, 4, 8, 24):
        steps = [steps_that_fit(4, bytes_each, n) for n in (256, 1024, 2048, 4096, 8192, 1 << 16)]
        yield f"steps {bytes_each}: {steps}"
    for rows in (1, 32, 64, 4096):
        for parts, size in ((64, 3136), (32, 1024), (8, 9216), (3, 20_480), (5, 300), (64, 50_176)):
            part, along = axes(parts, size, prefix="r")
            for strategy in ("", "split", "looped"):
                chosen = choose_walked((), (part,), (along,), rows, strategy, 4)
                yield f"walked {rows} x {parts} x {size} {strategy}: {knobs(chosen)}"
    for columns in (500, 4095, 4096, 50_257):
        for again in (0, 4 * columns, 40 * columns):
            for each, places in ((0, False), (4, False), (2, True)):
                chosen = choose_looped((), axes(columns, prefix="r"), columns, each, again, places)
                yield f"looped {columns} {each} {again} {places}: {knobs(chosen)}"


def crossed() -> Iterable[str]:
    """Rows and sums of columns at once, in halves and in single precision."""
    for dtype in (F16, F32):
        for width in (64, 100, 512, 1024, 1025, 2048, 4096, 8192, 16_384, 25_600, 25_601, 40_000):
            for piece in (2, 6, 32, 4096):
                (row,), (column,) = axes(8192), axes(width, prefix="r")
                with recording():
                    x = ops.load("x", at(row, column), dtype)
                    total = Store("sums", (Expr.of(row) // piece, Expr.of(column)), x, "sum")
                held = {"x": buffer("x", (8192, width), dtype)}
                chosen = choose_crossed(Body((row,), (column,), (total,)), held)
                yield f"crossed {width} {piece} {dtype}: {chosen.row_block} {knobs(chosen)}"


def straight() -> Iterable[str]:
    """What moves little is taken by larger programs; few points by smaller ones."""
    types = (torch.int8, F16, F32, torch.float64)
    for points in (1 << 15, 264 << 7, (264 << 10) - 1, 264 << 10, 1 << 24):
        for given in (*((t,) for t in types), (torch.int8, F16), (F16, F16), (F32,) * 4):
            (axis,) = axes(points)
            with recording():
                loads = [ops.load(f"x{n}", at(axis), dtype) for n, dtype in enumerate(given)]
                stores = tuple(Store(f"y{n}", at(axis), load) for n, load in enumerate(loads[1:]))
            held = {f"x{n}": buffer(f"x{n}", (points,), dtype) for n, dtype in enumerate(given)}
            held |= {s.buffer: buffer(s.buffer, (1,), F32) for s in stores}
            body = Body((axis,), (), (Store("x0", at(axis), loads[0]), *stores))
            for irregular in (False, True):
                found = flat_knobs(body, held, points, irregular)
                values = " ".join(str(knob.value) for knob in found)
                names = " ".join(str(t).removeprefix("torch.") for t in given)
                yield f"straight {points} {names} {irregular}: {values}"


def knobs(choice: Choice) -> str:
    given = (f"{k.name}={k.value} of {' '.join(map(str, k.choices))}" for k in choice.knobs)
    return f"{choice.kind} {', '.join(given)}"


def test_what_is_tried() -> None:
    with using(MACHINE):
        compare(
            "triton_candidates", chain(few_rows(), many_rows(), others(), crossed(), straight())
        )
