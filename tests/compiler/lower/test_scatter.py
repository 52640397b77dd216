"""Writing where the data say: index_put, scatter and its reductions, as generated kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from support.compare import difference

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fallback to eager."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def check(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Compare with eager; no operator may be left to ATen, no input may change."""
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    torch._dynamo.reset()
    built = fusec.compile(function, **options)
    got, wanted = built(*args), function(*args)
    assert not difference(got, wanted), difference(got, wanted)
    assert not any(graph.externs for graph in built.graphs), built.graphs[0].externs
    assert not difference(list(args), before)
    return built


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_floating_point:
        # eighths: sums are exact in any order and any type
        return (torch.randn(shape, generator=generator) * 8).round().div(8).to(dtype)
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


def places(limit: int, *shape: int, seed: int = 1, unique: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if unique:
        return torch.randperm(limit, generator=generator)[: shape[0]]
    return torch.randint(0, limit, shape, generator=generator)


@pytest.mark.sample(3)
@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize("dtype", FLOATS + WHOLE)
def test_index_put_in_every_dtype(dtype: torch.dtype, target: str) -> None:
    x, rows = values(9, 20, dtype=dtype), places(9, 30) - 4
    new = values(30, 20, dtype=dtype, seed=2)
    check(lambda x, i, v: x.index_put((i,), v, accumulate=True), x, rows, new, target=target)
    one = places(9, 6, unique=True)
    check(lambda x, i, v: x.index_put((i,), v), x, one, new[:6], target=target)


def test_index_put_as_numpy_indexes() -> None:
    x = values(4, 5, 6, 7)
    i, j = places(4, 3, 1), places(6, 2)
    put = torch.ops.aten.index_put.default
    cases: list[tuple[Callable[..., Any], torch.Tensor]] = [
        (lambda x, i, j, v: put(x, [i, None, j], v, True), values(3, 2, 5, 7)),
        (lambda x, i, j, v: put(x, [None, None, j], v, True), values(2, 7)),
        (lambda x, i, j, v: put(x, [i, i, j], v, True), values(7)),
        (lambda x, i, j, v: put(x, [i, None, j, j], v, True), values(1)),
    ]
    for function, new in cases:
        check(function, x, i, j, new)


def test_masks() -> None:
    x, mask = values(6, 8), values(6, dtype=torch.bool)
    for accumulate in (False, True):
        check(
            lambda x, m, v, a=accumulate: x.index_put((m,), v, accumulate=a),
            x,
            mask,
            torch.tensor(2.5),
        )
    check(
        lambda x, m: x.masked_scatter(m, x.flip(0).contiguous()), x, values(6, 8, dtype=torch.bool)
    )

    def assigned(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[m] = -1.0
        return y

    check(assigned, x, values(6, 8, dtype=torch.bool))


@pytest.mark.sample(2)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_scatter(dim: int, target: str) -> None:
    x, source = values(12, 9), values(7, 8, seed=2)
    index = places(9, 7, 8)
    only = torch.stack([places(8, 8, seed=s, unique=True) for s in range(7)])
    only = only if dim else torch.stack([places(12, 7, seed=s, unique=True) for s in range(8)], 1)
    check(lambda x, i, s: x.scatter(dim, i, s), x, only, source, target=target)
    check(lambda x, i: x.scatter(dim, i, 2.5), x, index, target=target)
    check(lambda x, i, s: x.scatter_add(dim, i, s), x, index, source, target=target)


@pytest.mark.slow
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce_and_index_reduce(reduce: str, include_self: bool) -> None:
    options = {"include_self": include_self}
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        x, source = values(6, 9, dtype=dtype), values(8, 9, dtype=dtype, seed=2)
        index = places(6, 8, 9)
        check(lambda x, i, s: x.scatter_reduce(0, i, s, reduce, **options), x, index, source)
        if reduce != "sum":
            rows = places(6, 8)
            check(lambda x, i, s: x.index_reduce(0, i, s, reduce, **options), x, rows, source)


def test_nan_and_infinities_are_kept() -> None:
    x, source = values(6), values(12)
    source[2], source[5], source[7] = float("nan"), float("inf"), -float("inf")
    index = torch.tensor([0, 0, 1, 1, 2, 3, 3, 4, 4, 5, 5, 5])
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        check(lambda x, i, s, r=reduce: x.scatter_reduce(0, i, s, r), x, index, source)


def test_other_ways_to_write_somewhere() -> None:
    x, rows = values(6, 9), places(6, 4, unique=True)
    new = values(4, 9, seed=3)
    check(lambda x, i, v: x.index_add(0, i, v, alpha=2), x, places(6, 4), new)
    check(lambda x, i, v: x.index_copy(0, i, v), x, rows, new)
    check(lambda x, i: x.index_fill(0, i, 7.0), x, rows)
    check(lambda x, i, v: x.put(i, v), x, places(54, 10, unique=True) - 54, values(10))
    check(lambda x, i, v: x.put(i, v, accumulate=True), x, places(54, 10), values(10))
    check(lambda x, v: x.diagonal_scatter(v, 2), x, values(6))
    check(lambda x, v: (x + 1).as_strided_scatter(v, (3, 2), (9, 2), 5), x, values(3, 2))


def test_odd_shapes() -> None:
    empty = places(6, 0)
    check(lambda x, i, v: x.index_put((i,), v), values(6, 3), empty, values(0, 3))
    check(
        lambda x, i, v: x.scatter_add(0, i, v),
        torch.tensor(1.0),
        torch.tensor(0),
        torch.tensor(2.0),
    )
    check(lambda x, i, v: x.scatter(0, i, v), values(5), torch.tensor(3), torch.tensor(9.0))
    check(
        lambda x, i, v: x.t().index_put((i,), v.t()),
        values(3, 6),
        places(6, 2, unique=True),
        values(3, 2),
    )
    check(
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        values(5),
        places(5, 999),
        values(999),
    )
    check(
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        values(1).expand(7, 5),
        places(7, 3),
        values(3, 1).expand(3, 5),
    )


def test_what_follows_sees_all_updates() -> None:
    def function(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x * 2).index_put((i,), v.sin(), accumulate=True)
        z = y.index_put((i,), v, accumulate=True)
        return y + 1, z.sum(1), y[i].exp(), (z * y).softmax(-1)

    check(function, values(9, 20), places(9, 30), values(30, 20))


def test_an_update_of_an_input() -> None:
    def function(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        x[i] += v
        x.index_add_(0, i, v)
        return x * 2

    i, v = places(9, 5, unique=True), values(5, 4)
    mine, plain = values(9, 4), values(9, 4)
    got, wanted = fusec.compile(function)(mine, i, v), function(plain, i, v)
    assert not difference(got, wanted)
    assert not difference(mine, plain)


@pytest.mark.parametrize("threads", [1, 2])
def test_wide_rows_are_shared_among_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, rows = values(50, 700), places(50, 400)
        built = check(
            lambda x, i, v: x.index_put((i,), v, accumulate=True), x, rows, values(400, 700)
        )
        assert "parallel for" in built.graphs[0].kernels[-1].source
        index = places(300, 64, 900)
        check(lambda x, i, s: x.scatter_add(1, i, s), values(64, 300), index, values(64, 900))
    finally:
        torch.set_num_threads(before)


def test_out_of_range_raises_and_changes_nothing() -> None:
    x, new = values(5, 3), values(2, 3)
    before = x.clone()
    built = fusec.compile(lambda x, i, v: x.index_put((i,), v))
    for bad in ([0, 5], [-6, 1]):
        with pytest.raises(IndexError):
            built(x, torch.tensor(bad), new)
    assert torch.equal(x, before)
    empty = fusec.compile(lambda x, i, v: x.index_put((i,), v))
    with pytest.raises(IndexError):
        empty(torch.empty(0, 3), torch.tensor([0, 0]), new)
    with pytest.raises((IndexError, RuntimeError)):
        fusec.compile(lambda x, i, v: x.scatter(0, i, v))(x, torch.full((2, 3), -1), new)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_gathers_are_updates(dtype: torch.dtype) -> None:
    def function(
        table: torch.Tensor, x: torch.Tensor, ids: torch.Tensor, index: torch.Tensor
    ) -> torch.Tensor:
        words = F.embedding(ids, table, padding_idx=3)
        return (words.sum() + x.gather(1, index).sin().sum() + x[ids[0]].exp().sum()).float()

    table, x = values(40, 24, dtype=dtype), values(40, 9, dtype=dtype)
    ids, index = places(40, 6, 50), places(9, 40, 30)
    results = []
    torch._dynamo.reset()
    built = fusec.compile(function)
    for call in (function, built):
        given = [t.clone().requires_grad_() for t in (table, x)]
        results.append(torch.autograd.grad(call(*given, ids, index), given))
    wanted, got = results
    exact = [t.double().requires_grad_() for t in (table, x)]
    truth = torch.autograd.grad(function(*exact, ids, index), exact)
    for mine, plain, true in zip(got, wanted, truth, strict=True):
        error, allowed = (mine - true).abs().max(), (plain - true).abs().max()
        rounding = torch.finfo(dtype).eps * true.abs().max()
        assert error <= torch.maximum(allowed, rounding)
    assert not any(graph.externs for graph in built.graphs)


def test_symbolic_sizes() -> None:
    built = fusec.compile(
        lambda x, i, v: x.scatter_add(0, i, v).index_put((i[:, 0],), v, accumulate=True),
        dynamic=True,
    )
    for rows, count in ((5, 8), (30, 70), (7, 3)):
        x, index = values(rows, 6), places(rows, count, 6)
        new = values(count, 6)
        wanted = x.scatter_add(0, index, new).index_put((index[:, 0],), new, accumulate=True)
        assert not difference(built(x, index, new), wanted)
    assert len(built.graphs) == 1


def test_bilinear_upsampling_learns_without_aten() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False).sin().sum()

    x = values(2, 3, 7, 5).requires_grad_()
    built = fusec.compile(function)
    (got,), (wanted,) = (torch.autograd.grad(f(x), x) for f in (built, function))
    assert not difference(got, wanted)
    assert not any(graph.externs for graph in built.graphs)


def test_an_edited_update_is_checked() -> None:
    built = fusec.compile(lambda x, i, v: x.index_put((i,), v, accumulate=True), keep_inputs=True)
    built(values(50, 64), places(50, 200), values(200, 64))
    kernel = built.graphs[0].kernels[-1]
    assert [a.role for a in kernel.signature.arguments] == ["in", "in", "inout"]
    assert kernel.check(kernel.source).ok
    wrong = kernel.check(kernel.source.replace("] += ", "] = "))
    assert not wrong.ok
    assert wrong.stage == "wrong"


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_one_element_of_each_slice_fuses(dim: int) -> None:
    x, index = torch.randn(6, 5, 7), torch.randint(0, 5, (6, 5, 7)).narrow(dim, 0, 1)
    compiled = check(lambda x, i: (x * 2).scatter(dim, i, -1.5).exp(), x, index)
    assert len(compiled.kernels) == 1
    source = torch.randn_like(x)
    check(lambda x, i, s: x.scatter(dim, i, s.narrow(dim, 1, 1)), x, index, source)
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        fusec.compile(lambda x, i: x.scatter(dim, i, 1.0))(x, index + 7)


def test_the_gradient_of_cross_entropy_is_one_kernel() -> None:
    logits = torch.randn(12, 40, requires_grad=True)
    target = torch.randint(0, 40, (12,))
    target[3] = -100
    compiled = fusec.compile(torch.nn.functional.cross_entropy)
    (actual,) = torch.autograd.grad(compiled(logits, target), [logits])
    (wanted,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, target), [logits])
    torch.testing.assert_close(actual, wanted)
    backward = [p for p in compiled.graphs[0].parts if p.kind == "backward"]
    assert [len(p.kernels) for p in backward] == [1]
