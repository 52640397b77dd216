"""Triton text: golden files, and every kernel against the reference interpreter."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import pytest
import torch

from fusec.codegen.common.reduction_passes import plan_passes
from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import const, index_value, recording
from fusec.targets.triton.toolchain.build import build_triton
from fusec.targets.triton.toolchain.cross_compile import artifacts
from fusec.tunables import set_tunables
from support.operations import operation_case, operations
from support.paths import GOLDEN
from support.triton_bodies import (
    F32,
    Case,
    at,
    axes,
    broadcast_add,
    buffer,
    cross_entropy,
    f32,
    gather,
    gelu_layer_norm,
    logsumexp,
    pointwise_chain,
    read,
    reduce_rows,
    softmax,
    sum_all,
    sum_columns,
    to_memory,
)
from support.triton_cases import BF16, CASES, F64, HALF, emit, run, sizes, symbolic

TEXTS = GOLDEN / "triton"


@pytest.mark.parametrize("name", CASES)
def test_golden_text(name: str) -> None:
    case, strategy = CASES[name]()
    text = emit(case, strategy).text
    path = TEXTS / f"{name}.py"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), "renew with UPDATE_GOLDEN=1 if the change is meant"
    assert max(len(each) for each in text.splitlines()) <= 100


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", CASES)
def test_golden_case_computes_what_the_reference_does(name: str) -> None:
    run(*CASES[name]())


@pytest.mark.sample(2)
@pytest.mark.parametrize("gpu", ["sm_90", "gfx942"])
@pytest.mark.parametrize("name", ["softmax_split", "gather"])
def test_golden_case_compiles_for_gpus(name: str, gpu: str) -> None:
    case, strategy = CASES[name]()
    source = emit(case, strategy)
    code = artifacts(source.text, source.signature, gpu=gpu)
    if name == "softmax_split" and gpu == "sm_90":
        assert "ld.global.v4.b32" in code["ptx"], "16-byte loads"
        assert "st.global.v4.b32" in code["ptx"], "16-byte stores"


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_all_golden_cases_compile_for_gpus(gpu: str) -> None:
    for make in CASES.values():
        case, strategy = make()
        source = emit(case, strategy)
        artifacts(source.text, source.signature, gpu=gpu, kinds=("llir",))


# -- operations ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "dtypes"),
    [
        ("sm_90", (F32,)),
        ("gfx942", (torch.uint8,)),
        pytest.param("sm_90", (F64, torch.int32, torch.int64), marks=pytest.mark.slow),
        pytest.param("gfx942", (F32, F64, torch.int32, torch.int64), marks=pytest.mark.slow),
    ],
)
def test_every_operation_compiles(gpu: str, dtypes: tuple[torch.dtype, ...]) -> None:
    for dtype in dtypes:
        source = emit(operation_case(dtype, operations(dtype)))
        text = set_tunables(source.text, {"XBLOCK": 128, "NUM_WARPS": 4})
        artifacts(text, source.signature, gpu=gpu, kinds=("llir",))


CASTS = [F32, F64, HALF, BF16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("source", CASTS, ids=str)
def test_casts_between_all_types(source: torch.dtype) -> None:
    buffers = {"x": buffer("x", (40,), source)}
    stores = []
    with recording():
        (i,) = axes(40)
        x = ops.load("x", at(i), source)
        for target in CASTS:
            if target != source:
                name = f"to_{str(target)[6:]}"
                buffers[name] = buffer(name, (40,), target)
                stores.append(Store(name, at(i), ops.cast(x, target)))
        body = Body((i,), (), tuple(stores))
    run(Case("casts", body, buffers))


def test_casts_of_special_halves() -> None:
    values = torch.tensor([1.9990234375, 65504.0, 1e-7, math.inf, -math.inf, math.nan, -0.0, 3e38])
    buffers = {"x": buffer("x", (8,)), "h": buffer("h", (8,), HALF), "b": buffer("b", (8,), BF16)}
    with recording():
        (i,) = axes(8)
        x = ops.load("x", at(i), F32)
        body = Body(
            (i,),
            (),
            (Store("h", at(i), ops.cast(x, HALF)), Store("b", at(i), ops.cast(x, BF16))),
        )
    case = Case("halves", body, buffers, fill={"x": lambda t: values})
    found = run(case)
    for name, dtype in (("h", HALF), ("b", BF16)):
        torch.testing.assert_close(found[name], values.to(dtype), rtol=0, atol=0, equal_nan=True)
        assert torch.equal(torch.signbit(found[name]), torch.signbit(values.to(dtype)))


def test_zero_constants_keep_their_sign() -> None:
    buffers = {"x": buffer("x", (4,)), "out": buffer("out", (4,)), "flat": buffer("flat", (4,))}
    with recording():
        (i,) = axes(4)
        x = ops.load("x", at(i), F32)
        total = ops.binary("add", x, f32(-0.0))
        body = Body((i,), (), (Store("out", at(i), total), Store("flat", at(i), f32(-0.0))))
    case = Case("zeros", body, buffers, fill={"x": lambda t: torch.tensor([-0.0, 0.0, 1.0, -1.0])})
    found = run(case)
    assert torch.equal(torch.signbit(found["out"]), torch.tensor([True, False, False, True]))
    assert bool(torch.signbit(found["flat"]).all())


@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
def test_constants_of_half_precision(dtype: torch.dtype) -> None:
    values = {"minus_zero": -0.0, "infinite": -math.inf, "nan": math.nan, "small": 2.0**-14}
    buffers = {"x": buffer("x", (4,), dtype)}
    stores = []
    with recording():
        (i,) = axes(4)
        x = ops.load("x", at(i), dtype)
        zero = const(0.0, dtype)
        for name, value in values.items():
            number = const(value, dtype)
            # Chosen against another constant; converted on; and by itself.
            buffers |= {name: buffer(name, (4,), dtype), f"{name}_32": buffer(f"{name}_32", (4,))}
            buffers[f"{name}_alone"] = buffer(f"{name}_alone", (4,), dtype)
            chosen = ops.where(ops.binary("lt", x, zero), number, zero)
            stores += [
                Store(name, at(i), chosen),
                Store(f"{name}_32", at(i), ops.cast(number, F32)),
                Store(f"{name}_alone", at(i), number),
            ]
        body = Body((i,), (), tuple(stores))
    given = torch.tensor([-1.0, 1.0, -2.0, math.nan], dtype=dtype)
    case = Case("constants", body, buffers, fill={"x": lambda t: given})
    found = run(case)
    for name, value in values.items():
        wanted = torch.tensor([value, 0.0, value, 0.0], dtype=dtype)
        alone = torch.full((4,), value, dtype=dtype)
        for got, right in (
            (found[name], wanted),
            (found[f"{name}_32"], alone.float()),
            (found[f"{name}_alone"], alone),
        ):
            torch.testing.assert_close(got, right, rtol=0, atol=0, equal_nan=True)
            known = ~right.isnan()
            assert torch.equal(torch.signbit(got)[known], torch.signbit(right)[known])
    source = emit(case)
    artifacts(source.text, source.signature, gpu="sm_90", kinds=("ptx",))


# -- reductions ---------------------------------------------------------------------------

KINDS = ("sum", "prod", "max", "min", "any", "all", "xor", "argmax", "argmin")


def all_reductions(rows: int, columns: int, dtype: torch.dtype, down: bool) -> Case:
    """Return one body with every kind of reduction, along rows or down columns."""
    cases = {k: reduce_rows(k, rows, columns, dtype, down) for k in KINDS}
    shape = (columns, rows) if down else (rows, columns)
    buffers = {"x": buffer("x", shape, dtype)}
    stores = []
    with recording():
        (i,), (r,) = axes(rows), axes(columns, prefix="r")
        for kind, case in cases.items():
            if dtype == torch.bool and kind in ("argmax", "argmin", "max", "min"):
                continue
            (store,) = case.body.stores
            (old_i,), (old_r,) = case.body.axes, case.body.reduce_axes
            mapping = {old_i: Expr.of(i), old_r: Expr.of(r)}
            moved = case.body.moved((i,), (r,), mapping)
            buffers[kind] = buffer(kind, (rows,), case.buffers["out"].dtype)
            stores.append(Store(kind, at(i), moved.stores[0].value))
            del store
        body = Body((i,), (r,), tuple(stores))
    return Case("reductions", body, buffers)


def poke(tensors: dict[str, torch.Tensor]) -> None:
    """Put NaN, infinities and ties where they hurt: first, last, and in a row of their own."""
    for tensor in tensors.values():
        if tensor.is_floating_point() and tensor.dim() == 2 and not tensor.isnan().any():
            tensor[0, 3], tensor[-1, -1] = math.nan, math.inf
            tensor[1], tensor[2, 5] = -math.inf, -math.inf


@pytest.mark.parametrize(
    "dtype", [F32, F64, HALF, torch.int64, torch.int8, torch.uint8, torch.bool], ids=str
)
def test_every_reduction(dtype: torch.dtype) -> None:
    run(all_reductions(4, 70, dtype, False), "persistent")


@pytest.mark.slow
@pytest.mark.parametrize("down", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("strategy", ["looped", "split"])
@pytest.mark.parametrize(
    "dtype", [F64, HALF, torch.int64, torch.int8, torch.uint8, torch.bool], ids=str
)
def test_every_reduction_in_every_strategy(dtype: torch.dtype, strategy: str, down: bool) -> None:
    rows, columns = (20, 37) if down else (4, 70)
    run(all_reductions(rows, columns, dtype, down), strategy)


@pytest.mark.parametrize(
    ("strategy", "down"),
    [("persistent", False), ("looped", False), ("looped", True), ("split", False), ("split", True)],
)
def test_reductions_of_nan_and_infinities(strategy: str, down: bool) -> None:
    run(all_reductions(8, 70, F32, down), strategy, poke)


@pytest.mark.sample(5)
@pytest.mark.parametrize("strategy", ["persistent", "looped", "split"])
@pytest.mark.parametrize("make", [softmax, logsumexp, gelu_layer_norm, cross_entropy])
def test_rows_in_every_strategy(make: Callable[..., Case], strategy: str) -> None:
    for dtype in (F32, BF16) if strategy == "split" else (F32, F64, HALF, BF16):
        run(make(2, 70, dtype), strategy)


@pytest.mark.sample(3)
@pytest.mark.parametrize("strategy", ["persistent", "looped", "split"])
@pytest.mark.parametrize("masked", [False, True])
def test_softmax_family_with_infinities(strategy: str, masked: bool) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        x = tensors["x"]
        x[0], x[1, 3], x[2, 10] = -math.inf, math.inf, math.nan
        x[3, :3000], x[4, 5000:] = -math.inf, -math.inf

    run(softmax(6, 5100, F32), strategy, change)
    run(logsumexp(6, 5100, F32, masked), strategy, change)


@pytest.mark.parametrize("strategy", ["persistent", "looped", "split"])
@pytest.mark.parametrize(("rows", "columns"), [(0, 5), (3, 0), (1, 1), (1, 700), (30, 1)])
def test_empty_and_single_rows(rows: int, columns: int, strategy: str) -> None:
    run(reduce_rows("sum", rows, columns), strategy)
    if rows:
        run(reduce_rows("all", rows, columns), strategy)
    if rows and columns:
        run(reduce_rows("argmax", rows, columns), strategy)
        run(softmax(rows, columns), strategy)


def test_empty_and_zero_dimensional_pointwise() -> None:
    run(pointwise_chain(0, 5))
    run(pointwise_chain())
    run(pointwise_chain(1))
    run(sum_all())
    run(sum_all(3, 0, 4))
    run(sum_all(3, 7, 50))


@pytest.mark.parametrize("strategy", ["", "looped", "split"])
def test_symbolic_sizes(strategy: str) -> None:
    makers: list[Callable[[Expr, Expr], Case]] = [
        lambda n, m: softmax(n, m, F32),
        lambda n, m: logsumexp(n, m, F32),
        lambda n, m: sum_columns(n, m, F32),
        lambda n, m: sum_all(n, m, dtype=F32),
        lambda n, m: reduce_rows("argmin", n, m),
    ]
    for make in makers:
        run(symbolic(make, 5, 70), strategy)


def test_one_kernel_serves_all_sizes() -> None:
    n, m = sizes("s0", "s1")
    case = broadcast_add(Expr.of(n), Expr.of(m))
    source = emit(case)
    kernel = build_triton(source.text, source.signature)
    for rows, columns in ((3, 40), (7, 1), (0, 5), (4, 0), (130, 3)):
        case.sizes = {n: rows, m: columns}
        tensors = case.inputs()
        expected = case.expected(tensors)
        kernel([tensors[a.name] for a in source.signature.arguments], [rows, columns])
        torch.testing.assert_close(tensors["out"], expected["out"])


# -- memory -------------------------------------------------------------------------------


def test_masked_loads_do_not_touch_what_is_outside() -> None:
    # cat([a, b]): each load is in range only where its mask holds
    buffers = {
        "a": buffer("a", (5,)),
        "b": buffer("b", (3,)),
        "one": buffer("one", (1,)),
        "out": buffer("out", (8,)),
    }
    with recording():
        (i,) = axes(8)
        first = ops.binary("lt", index_value(Expr.of(i), torch.int64), const(5, torch.int64))
        left = ops.masked(first, ops.load("a", at(i), F32), 0)
        right = ops.masked(ops.logical_not(first), ops.load("b", (Expr.of(i) - 5,), F32), 7)
        alone = ops.masked(first, ops.load("one", (Expr.of(0),), F32), 2)
        value = ops.binary("add", ops.where(first, left, right), alone)
        body = Body((i,), (), (Store("out", at(i), value),))
    run(Case("cat", body, buffers))


def test_indices_out_of_range_are_refused_and_never_read() -> None:
    case = gather(10, 20, 33)
    source = emit(case)
    kernel = build_triton(source.text, source.signature)
    tensors = case.inputs()
    tensors["which"][7] = 10**9
    with pytest.raises(IndexError, match="index out of range"):
        kernel([tensors[a.name] for a in source.signature.arguments], [])
    # outside of the debug mode the row is left out: the address is never formed
    assert "& in_range" in source.text


@pytest.mark.parametrize("mode", ["set", "add"])
@pytest.mark.parametrize("shape", [(5,), (3, 40)])
def test_one_place_that_only_some_elements_may_use(shape: tuple[int, ...], mode: str) -> None:
    buffers = {
        "x": buffer("x", (9,)),
        "where": buffer("where", (1,), torch.int64),
        "out": buffer("out", (9, *shape)),
    }
    with recording():
        variables = axes(*shape)
        places = tuple(map(Expr.of, variables))
        few = ops.binary("lt", index_value(places[-1], torch.int64), const(4, torch.int64))
        index = ops.load("where", (Expr.of(0),), torch.int64)
        known = ops.binary("lt", index, const(9, torch.int64))
        inside = ops.binary("logical_or", known, few)
        place = ops.indirect(ops.check(inside, index, "index out of range"), Expr.of(9))
        value = ops.binary("add", ops.load("x", (place,), F32), const(1.0, F32))
        body = Body(variables, (), (Store("out", (place, *places), value, mode),))
    case = Case("place", body, buffers, fill={"where": lambda t: t % 9})
    run(case)
    source = emit(case)
    for gpu in ("sm_90", "gfx942"):
        artifacts(source.text, source.signature, gpu=gpu, kinds=("llir",))


def test_accumulating_stores_are_atomic_and_guarded() -> None:
    buffers = {
        "x": buffer("x", (50, 3)),
        "where": buffer("where", (50,), torch.int64),
        "weight": buffer("weight", (10,)),
        "out": buffer("out", (10, 3)),
    }
    with recording():
        i, j = axes(50, 3)
        row = ops.checked_index(ops.load("where", at(i), torch.int64), Expr.of(10))
        value = ops.binary("mul", ops.load("x", at(i, j), F32), ops.load("weight", (row,), F32))
        body = Body((i, j), (), (Store("out", (row, Expr.of(j)), value, "add"),))
    case = Case("scatter", body, buffers, fill={"where": lambda t: t % 20 - 10})
    source = emit(case)
    assert "tl.atomic_add(" in source.text
    tensors = case.inputs()
    where = tensors["where"] + 10 * (tensors["where"] < 0)
    added = tensors["x"] * tensors["weight"][where][:, None]
    expected = tensors["out"].clone().index_add_(0, where, added)
    kernel = build_triton(source.text, source.signature)
    kernel([tensors[a.name] for a in source.signature.arguments], [])
    torch.testing.assert_close(tensors["out"], expected)
    for gpu in ("sm_90", "gfx942"):
        artifacts(source.text, source.signature, gpu=gpu, kinds=("llir",))


@pytest.mark.parametrize("strategy", ["persistent", "looped", "split"])
def test_a_buffer_may_be_updated_in_place(strategy: str) -> None:
    case = softmax(5, 300, F32)
    with recording():
        (store,) = case.body.stores
        body = Body(case.body.axes, case.body.reduce_axes, (Store("x", store.index, store.value),))
        again = ops.reduce("sum", ops.load("x", store.index, F32), case.body.reduce_axes, F32)
        first = Store("total", store.index[:1], again)
        body = Body(body.axes, body.reduce_axes, (*body.stores, first))
    del case.buffers["out"]
    case.buffers["total"] = buffer("total", (5,))
    case.body = body
    run(case, strategy)


def test_strided_and_broadcast_buffers() -> None:
    buffers = {
        "x": buffer("x", (6, 40), F32, strides=(80, 2)),
        "y": buffer("y", (6, 40), F32, strides=(1, 6)),
        "z": buffer("z", (6, 40), F32, strides=(0, 1)),
        "out": buffer("out", (6, 40), F32, strides=(50, 1)),
    }
    with recording():
        i, j = axes(6, 40)
        total = ops.binary("add", ops.load("x", at(i, j), F32), ops.load("y", at(i, j), F32))
        total = ops.binary("mul", total, ops.load("z", at(i, j), F32))
        flipped = ops.load("x", (Expr.of(5) - i, Expr.of(39) - j), F32)
        body = Body((i, j), (), (Store("out", at(i, j), ops.binary("sub", total, flipped)),))
    run(Case("strided", body, buffers))


def test_large_tensors_get_wide_indices() -> None:
    assert "tl.int64" not in emit(pointwise_chain(1 << 10, 1 << 10)).text
    assert ".to(tl.int64)" in emit(pointwise_chain(1 << 16, 1 << 16)).text
    assert ".to(tl.int64)" in emit(softmax(1 << 20, 4096)).text
    text = emit(symbolic(pointwise_chain, 4, 4)).text
    assert "wide = s0 * s1 >= 2**31" in text
    assert "INDEX=tl.int64 if wide else tl.int32" in text


def test_positions_as_values() -> None:
    buffers = {"out": buffer("out", (9, 11), torch.int64), "low": buffer("low", (9, 11))}
    with recording():
        i, j = axes(9, 11)
        row, column = (index_value(Expr.of(s), torch.int64) for s in (i, j))
        lower = ops.where(ops.binary("le", column, row), f32(1.0), f32(0.0))
        large = index_value(Expr.of(i) * 10**9 - 5, torch.int64)
        body = Body((i, j), (), (Store("out", at(i, j), large), Store("low", at(i, j), lower)))
    run(Case("positions", body, buffers))


# -- the text -----------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["erf", "tanh"])
def test_quick_gelu_is_as_good_as_half_precision(function: str) -> None:
    z = torch.cat([torch.linspace(-6, 6, 2000), torch.tensor([-math.inf, math.inf, math.nan, 0.0])])
    buffers = {n: buffer(n, (len(z),), HALF) for n in ("z", "out")}
    with recording():
        (i,) = axes(len(z))
        x = read("z", at(i), HALF)
        value = ops.binary("add", ops.unary(function, x), f32(1.0))
        body = Body((i,), (), (Store("out", at(i), to_memory(value, HALF)),))
    case = Case("one_plus", body, buffers, fill={"z": lambda t: z})
    assert f"one_plus_{function}(z)" in emit(case).text
    tensors = case.inputs()
    exact = 1 + getattr(torch, function)(tensors["z"].double())
    if function == "erf":
        exact = torch.special.erfc(-tensors["z"].double())
    source = emit(case)
    build_triton(source.text, source.signature)([tensors["z"], tensors["out"]], [])
    unit = 2.0 ** (torch.floor(torch.log2(exact.clamp(min=2.0**-14))) - 10)
    error = ((tensors["out"].double() - exact).abs() / unit)[exact.isfinite()]
    assert error.max() < 0.55  # half a unit is rounding alone
    assert bool(tensors["out"][z.isnan()].isnan().all())


@pytest.mark.parametrize("strategy", ["persistent", "looped", "split"])
def test_reduced_rows_may_be_scattered(strategy: str) -> None:
    buffers = {
        "x": buffer("x", (6, 40)),
        "where": buffer("where", (6,), torch.int64),
        "out": buffer("out", (9,)),
    }
    with recording():
        (i,), (r,) = axes(6), axes(40, prefix="r")
        row = ops.checked_index(ops.load("where", at(i), torch.int64), Expr.of(9))
        known = ops.cast(ops.load("where", at(i), torch.int64), F32)
        total = ops.reduce("sum", ops.load("x", at(i, r), F32), (r,), F32)
        value = ops.binary("add", total, known)
        body = Body((i,), (r,), (Store("out", (row,), value, "add"),))
    case = Case(
        "scatter", body, buffers, fill={"where": lambda t: torch.tensor([0, 3, 3, 8, -1, 0])}
    )
    source = emit(case, strategy)
    tensors = case.inputs()
    where = tensors["where"] % 9
    added = tensors["x"].sum(1) + tensors["where"]
    expected = tensors["out"].clone().index_add_(0, where, added)
    kernel = build_triton(source.text, source.signature)
    kernel([tensors[a.name] for a in source.signature.arguments], [])
    torch.testing.assert_close(tensors["out"], expected)


def test_shared_rows_are_not_overwritten_while_others_read_them() -> None:
    buffers = {"x": buffer("x", (2, 70000)), "y": buffer("y", (2, 70000)), "z": buffer("z", (2,))}
    with recording():
        (i,), (r,) = axes(2), axes(70000, prefix="r")
        scale = ops.load("z", at(i), F32)
        total = ops.reduce("sum", ops.load("x", at(i, r), F32), (r,), F32)
        scaled = ops.binary("mul", ops.load("x", at(i, r), F32), scale)
        stores = (Store("y", at(i, r), scaled), Store("z", at(i), ops.binary("add", total, scale)))
        body = Body((i,), (r,), stores)
    case = Case("update", body, buffers)
    assert "looped" in emit(case).summary
    run(case)


def test_a_softmax_has_three_passes() -> None:
    first, second, last = plan_passes(softmax(8, 90, F32).body).passes
    assert [node.kind for node in first.reductions] == ["max"]
    assert [node.kind for node in second.reductions] == ["sum"]
    assert not first.stores
    assert not last.reductions
    assert [store.buffer for store in last.stores] == ["out"]


def test_a_copy_of_unknown_size_computes_nothing() -> None:
    n = Symbol("n", "size", low=2)
    buffers = {name: buffer(name, (Expr.of(n),)) for name in ("x", "out")}
    with recording():
        (i,) = axes(Expr.of(n))
        body = Body((i,), (), (Store("out", at(i), read("x", at(i), F32)),))
    assert emit(Case("copy", body, buffers)).operations == 0


def test_the_largest_float32_is_no_float64() -> None:
    with recording():
        (i,) = axes(300)
        least = const(torch.finfo(F32).min, F32)
        floor = ops.binary("maximum", read("x", at(i), F32), least)
        body = Body((i,), (), (Store("out", at(i), floor),))
    case = Case("floor", body, {n: buffer(n, (300,), F32) for n in ("x", "out")})
    source = emit(case)
    assert "f64" not in artifacts(source.text, source.signature, kinds=("ttir",))["ttir"]
