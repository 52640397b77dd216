"""Rules of our own for single operators, and who joins with whom: nothing is compiled."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from fusec.errors import ValueRefused
from fusec.graph import decompositions
from fusec.graph.facts.rounded import is_half
from fusec.graph.products import grouped, products_of_halves
from fusec.graph.simplify.gaps import _has_gaps, _layout
from fusec.graph.training.embedding_gradients import _is_zero, _may_join
from fusec.graph.training.norm_formula import has_statistics
from fusec.graph.training.norm_inputs import _is_alone

aten = torch.ops.aten
HALF, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
SPECIAL = torch.tensor([-3.5, -3.0, -2.5, -0.5, -0.0, 0.0, 0.75, 2.5, 3.0, 3.5, 1e4])


# -- operators --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, F64, HALF, BF16])
def test_values_are_eagers(dtype: torch.dtype) -> None:
    x = SPECIAL.to(dtype)
    grad = torch.linspace(-2, 2, len(x)).to(dtype)
    same = {"rtol": 0.0, "atol": 0.0} if dtype in (F32, F64) else {}
    found = decompositions._frac(x)
    torch.testing.assert_close(found, x.frac(), rtol=0, atol=0)
    assert torch.equal(torch.signbit(found), torch.signbit(x.frac()))
    found = decompositions._hardsigmoid_backward(grad, x)
    torch.testing.assert_close(found, aten.hardsigmoid_backward(grad, x), **same)
    found = decompositions._silu_backward(grad, x)
    torch.testing.assert_close(found, aten.silu_backward(grad, x))


@pytest.mark.parametrize("dtype", [F32, HALF])
def test_slopes_of_evaluation(dtype: torch.dtype) -> None:
    for x in (SPECIAL.to(dtype), torch.randn(3, 4).to(dtype).t(), torch.randn(4, 9)[:, ::2]):
        noise = torch.empty_like(x)
        found: Any = decompositions._rrelu(x, noise, 0.1, 0.4, False)
        wanted = aten.rrelu_with_noise(x, noise.clone(), 0.1, 0.4, False)
        torch.testing.assert_close(found[0], wanted)
        assert found[0].stride() == wanted.stride()
        assert found[1] is noise
        plain: Any = decompositions._rrelu(x, noise)
        torch.testing.assert_close(plain[0], aten.rrelu_with_noise(x, noise.clone()))
        assert decompositions._rrelu(x, noise, 0.1, 0.4, True) is NotImplemented


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16])
def test_gradients_of_random_slopes(dtype: torch.dtype, training: bool) -> None:
    for x in (SPECIAL.to(dtype), torch.randn(3, 4).to(dtype).t(), torch.randn(4, 9)[:, ::2]):
        grad, rest = torch.randn(x.shape).to(x.dtype), (0.1, 0.4, training, False)
        noise = torch.where(x <= 0, 0.25, 1.0).to(x.dtype)
        found: Any = decompositions._rrelu_backward(grad, x, noise, *rest)
        wanted = aten.rrelu_with_noise_backward(grad, x, noise, *rest)
        torch.testing.assert_close(found, wanted, equal_nan=True)
        assert found.stride() == wanted.stride()


@pytest.mark.parametrize("number", [0.5, 3, 1e39, -1e39, 0.0, float("inf")])
@pytest.mark.parametrize("dtype", [F32, F64, HALF, torch.int64])
def test_logarithms_beside_numbers(number: float, dtype: torch.dtype) -> None:
    """Numbers that the tensor's type makes an infinity of are one in eager, too."""
    x = torch.tensor([0, 1, 2, 5]).to(dtype)
    for target, given in (
        (aten.xlogy.Scalar_Other, (x, number)),
        (aten.xlogy.Scalar_Self, (number, x)),
        (aten.special_xlog1py.other_scalar, (x, number)),
        (aten.special_xlog1py.self_scalar, (number, x)),
    ):
        found: Any = decompositions._logarithm_with_number(target)(*given)
        wanted = target(*given)
        torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("out_int32", [False, True])
@pytest.mark.parametrize("boundaries", [[], [0.0, 2.5]])
def test_buckets(boundaries: list[float], out_int32: bool, right: bool) -> None:
    more: dict[str, Any] = {"out_int32": out_int32, "right": right}
    limits = torch.tensor(boundaries)
    wanted = torch.bucketize(SPECIAL, limits, **more)
    found = decompositions._bucketize(SPECIAL, limits, **more)
    assert torch.equal(found, wanted)
    assert found.dtype == wanted.dtype


STATISTICS = torch.zeros(3), torch.ones(3)
IMAGES, SCALES = torch.rand(2, 3, 4, 5), (torch.rand(3), torch.rand(3))
TAKEN_APART: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.addmv.default, (torch.rand(3), torch.rand(3, 4), torch.rand(4))),
    (aten.permute_copy.default, (torch.rand(3, 4), [1, 0])),
    (aten.unbind_copy.int, (torch.rand(3, 4), 1)),
    (aten.as_strided_copy.default, (torch.rand(12), [2, 3], [1, 4], 1)),
    (aten.narrow_copy.default, (torch.rand(3, 4), 1, 1, 2)),
    (aten.dist.default, (torch.rand(3, 4), torch.rand(4), 3.0)),
    (aten.grid_sampler_2d.default, (IMAGES, torch.rand(2, 3, 3, 2) * 2 - 1, 0, 0, False)),
    (aten.tril_indices.default, (3, 4, 1)),
    (aten.triu_indices.default, (3, 4, 1)),
    (aten.native_batch_norm.default, (IMAGES, *SCALES, *STATISTICS, False, 0.1, 1e-5)),
    (aten._native_batch_norm_legit.no_stats, (IMAGES, *SCALES, True, 0.1, 1e-5)),
    (
        aten._native_batch_norm_legit_no_training.default,
        (IMAGES, *SCALES, *STATISTICS, 0.1, 1e-5),
    ),
    (aten.native_layer_norm_backward.default, (
        torch.rand(2, 3), torch.rand(2, 3), [3], torch.rand(2, 1), torch.rand(2, 1), *SCALES,
        [True, True, True],
    )),
    (aten._foreach_add.List, ([torch.ones(2), torch.ones(3)], [torch.rand(2), torch.rand(1)])),
    (aten.frac.default, (torch.tensor([-1.5, 2.25]),)),
    (aten.index_add.default, (torch.rand(3, 2), 0, torch.tensor([2, 2]), torch.rand(2, 2))),
]  # fmt: skip


@pytest.fixture(scope="module")
def table() -> dict[Any, Callable[..., Any]]:
    return decompositions.decomposition_table.__wrapped__()


@pytest.mark.parametrize(("op", "given"), TAKEN_APART, ids=[str(op) for op, _ in TAKEN_APART])
def test_what_is_taken_apart(op: Any, given: tuple[Any, ...], table: dict[Any, Any]) -> None:
    """Here the table is made anew: a process makes it for its first graph."""
    found, wanted = table[op](*given), op(*given)
    torch.testing.assert_close(found, wanted)


def test_rules_of_our_own_are_taken_before_torchs(table: dict[Any, Any]) -> None:
    none = torch.empty(0)
    assert table[aten.bucketize.Tensor](SPECIAL, none, out_int32=True).dtype == torch.int32
    with pytest.raises(ValueRefused):
        table[aten.binary_cross_entropy.default](torch.tensor([2.0]), torch.ones(1))


def test_what_is_kept_whole(table: dict[Any, Any]) -> None:
    for op in (aten.var.correction, aten.silu.default, aten.tril.default, aten.baddbmm.default):
        assert op not in table


def test_what_is_left_to_the_operator() -> None:
    x = torch.tensor([float("nan"), float("inf"), 1.0])
    found: Any = decompositions._nan_to_num(x, 0.0, 9.0, -9.0)
    assert torch.equal(found, x.nan_to_num(0.0, 9.0, -9.0))
    assert decompositions._nan_to_num(x.to(torch.complex64)) is NotImplemented
    indices = torch.tensor([1, 1, 0])
    for dtype, frequency, left in (
        (HALF, False, True),
        (BF16, False, True),
        (F32, False, False),
        (F32, True, False),
        (HALF, True, False),
    ):
        grad = torch.ones(3, 2, dtype=dtype)
        made: Any = decompositions._embedding_dense_backward(grad, indices, 3, -1, frequency)
        assert (made is NotImplemented) is left
        if not left:
            wanted = aten.embedding_dense_backward(grad, indices, 3, -1, frequency)
            torch.testing.assert_close(made, wanted)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4, 5),
        lambda: torch.randn(5, 4, 3).permute(2, 0, 1),
        lambda: torch.randn(3, 8, 5)[:, ::2],
        lambda: torch.randn(4).expand(3, 4),
        lambda: torch.tensor(2.0),
    ],
)
@pytest.mark.parametrize("dim", [0, -1])
def test_filled_places(make: Callable[[], torch.Tensor], dim: int) -> None:
    rule = decompositions._index_fill(aten.index_fill.int_Scalar)
    x, index = make(), torch.tensor([0])
    before = x.clone()
    found, wanted = rule(x, dim, index, 7.0), x.index_fill(dim, index, 7.0)
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, wanted)
    assert torch.equal(x, before)
    if x.is_contiguous() or x.stride() == (1, 15, 3):
        assert found.stride() == wanted.stride()


@pytest.mark.parametrize(
    ("shifts", "dims"),
    [
        ([1, 2], [0, 3]),
        ([1], [0]),
        ([4], [-2]),  # all the way round: a slice that eager concatenates has no elements
        ([-8], [2]),
        ([0], [1]),
        ([1, 5], [1, 3]),
        ([1], []),
    ],
)
def test_what_is_rolled_lies_as_in_eager(shifts: list[int], dims: list[int]) -> None:
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for x in (images, images.contiguous(), images.transpose(0, 3), images[:0]):
        found: Any = decompositions._roll(x, shifts, dims)
        assert torch.equal(found, torch.roll(x, shifts, dims))
        assert found.stride() == torch.roll(x, shifts, dims).stride()


def test_what_a_gpu_rolls_lies_in_order() -> None:
    given = (2, 3, 4, 5)
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(given, device="cuda").to(memory_format=torch.channels_last)
        found: Any = decompositions._roll(x, [1], [0])
    assert found.is_contiguous()


# -- memory with gaps -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "stride", "gaps"),
    [
        ((4, 6), (6, 1), False),
        ((4, 6), (1, 4), False),
        ((4, 6), (8, 1), True),
        ((4, 6), (12, 2), True),
        ((4, 6), (1, 1), True),  # elements that lie on each other
        ((4, 6), (0, 1), False),  # nobody can write into it
        ((5,), (2,), True),
        ((1,), (2,), False),
        ((), (), False),
    ],
)
def test_memory_with_gaps(size: tuple[int, ...], stride: tuple[int, ...], gaps: bool) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    value = torch.empty_strided(size, stride)
    made = [
        graph.call_function(torch.empty_strided, (size, stride)),
        graph.call_function(aten.empty_strided.default, (size,), {"stride": stride}),
        graph.call_method("new_empty_strided", (x, size, stride)),
    ]
    for node in made:
        node.meta["example_value"] = value
        assert _has_gaps(node) is gaps
        assert _layout(node) == (size, stride)
        node.kwargs = {**node.kwargs, "requires_grad": True}
        assert not _has_gaps(node), "a leaf"
    others = [
        graph.call_method("empty_strided", (x, size, stride)),
        graph.call_function(torch.empty, (size,)),
        graph.call_function(torch.empty_strided, (size, stride)),
    ]
    for node, shown in zip(others, (value, value, None), strict=True):
        node.meta["example_value"] = shown
        assert not _has_gaps(node)


# -- gradients of tables ----------------------------------------------------------------------


def joined(
    dtype: torch.dtype = F32,
    device: str = "cpu",
    filled: Any = 0,
    adds: Any = (True,),
    readers: int = 1,
    other: torch.Tensor | None = None,
    target: Any = aten.index_put.default,
) -> bool:
    graph = fx.Graph()
    value = torch.empty(6, 4, dtype=dtype, device=device)
    whole, rows, values = (graph.placeholder(name) for name in ("whole", "rows", "values"))
    zeros = graph.call_function(aten.full.default, ([6, 4], filled))
    put = graph.call_function(target, (zeros, [rows], values, *adds))
    total = graph.call_function(aten.add.Tensor, (whole, put))
    for _ in range(readers - 1):
        graph.call_function(aten.neg.default, (put,))
    for node in (whole, put, total):
        node.meta["val"] = value
    if other is not None:
        whole.meta["val"] = other
    return _may_join(total, whole, put)


def test_who_takes_rows_in() -> None:
    assert joined()
    assert joined(dtype=F64)
    assert joined(filled=0.0)
    assert joined(filled=False)
    assert joined(target=aten._unsafe_index_put.default)
    assert not joined(dtype=HALF)
    assert not joined(device="meta")
    assert not joined(filled=1)
    assert not joined(adds=(False,))
    assert not joined(adds=())
    assert not joined(readers=2)
    assert not joined(target=aten.index_add.default)
    x = torch.empty(6, 4)
    for other in (x[:1], x.t().contiguous().t(), x.double(), 3):
        assert not joined(other=other)  # type: ignore[arg-type]


def test_what_is_zero() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for target, args, zero in (
        (aten.zeros.default, ([6],), True),
        (aten.zeros_like.default, (x,), True),
        (aten.new_zeros.default, (x, [6]), True),
        (aten.full_like.default, (x, 0), True),
        (aten.new_full.default, (x, [6], 0.0), True),
        (aten.full_like.default, (x, 1), False),
        (aten.ones_like.default, (x,), False),
        (aten.neg.default, (x,), False),
    ):
        assert _is_zero(graph.call_function(target, args)) is zero
    assert not _is_zero(x)
    assert not _is_zero(0)


# -- products of what was half precision ------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "dtype", "device", "fits"),
    [
        ((256, 256, 256), F32, "cuda", True),
        ((256, 256, 256), F32, "cpu", False),
        ((256, 256, 256), F64, "cuda", False),
        ((256, 256, 256), HALF, "cuda", False),
        ((0, 256, 256), F32, "cuda", False),
        ((4, 4, 4), F32, "cuda", False),
    ],
)
def test_which_products_are_left_to_blas(
    sizes: tuple[int, int, int], dtype: torch.dtype, device: str, fits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    rows, inner, columns = sizes
    graph = fx.Graph()
    with FakeTensorMode():
        given = [graph.placeholder(name) for name in ("left", "right")]
        node = graph.call_function(aten.mm.default, tuple(given))
        shapes = ((rows, inner), (inner, columns), (rows, columns))
        for each, shape in zip((*given, node), shapes, strict=True):
            each.meta["val"] = torch.empty(shape, dtype=dtype, device=device)
        assert products_of_halves._fits(node) is fits
        monkeypatch.setattr(torch.version, "hip", "6.0")
        assert not products_of_halves._fits(node)


def test_what_was_half_precision() -> None:
    graph = fx.Graph()
    with FakeTensorMode():
        half = torch.empty(6, 4, dtype=HALF)
        source = graph.placeholder("half")
        source.meta["val"] = half

        def of(target: Any, node: fx.Node, *args: Any, value: torch.Tensor | None = None) -> Any:
            made = graph.call_function(target, (node, *args))
            made.meta["val"] = node.meta["val"] if value is None else value
            return made

        wide = of(aten._to_copy.default, source, value=half.float())
        turned = of(aten.t.default, wide, value=half.float().t())
        scaled = of(aten.mul.Tensor, turned, 3.0)
        twice = of(aten.mul.Scalar, scaled, 2)
        found = products_of_halves._widened(twice)
        assert found is not None
        assert (found.source, found.moves, found.scale) == (source, (turned,), 6.0)
        plain = products_of_halves._widened(wide)
        assert plain is not None
        assert (plain.source, plain.moves, plain.scale) == (source, (), 1.0)
        single = graph.placeholder("single")
        single.meta["val"] = half.float()
        no = [
            3,
            single,
            of(aten.neg.default, wide),
            of(aten.mul.Tensor, wide, float("inf")),
            of(aten.mul.Tensor, wide, single),
            of(aten._to_copy.default, single, value=half.float()),
        ]
        assert [products_of_halves._widened(each) for each in no] == [None] * len(no)


# -- products of groups of rows ---------------------------------------------------------------


def test_gradients_of_products_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, gradient = torch.randn(9, 4), torch.randn(3, 4, 5), torch.randn(9, 5)
    ends = torch.tensor([2, 2, 9])
    groups = [slice(0, 2), slice(2, 2), slice(2, 9)]

    def rows(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[each] @ matrix for each, matrix in zip(groups, weight, strict=True)])

    def matrices(
        x: torch.Tensor, gradient: torch.Tensor, ends: torch.Tensor, like: torch.Tensor
    ) -> torch.Tensor:
        return torch.stack([x[each].t() @ gradient[each] for each in groups]).to(like.dtype)

    kernels = SimpleNamespace(grouped_rows=rows, grouped_matrices=matrices)
    monkeypatch.setattr(grouped, "_groups", lambda: kernels)
    x.requires_grad_()
    weight.requires_grad_()
    made = grouped._product(x, weight, ends)
    made.backward(gradient)
    of_x, of_weight = grouped._product_backward(x.detach(), weight.detach(), ends, gradient)
    torch.testing.assert_close(of_x, x.grad)
    torch.testing.assert_close(of_weight, weight.grad)
    fake = grouped._product_fake(x, weight, ends)
    assert (fake.shape, fake.dtype) == (made.shape, made.dtype)
    for found, wanted in zip(
        grouped._product_backward_fake(x, weight, ends, gradient), (x, weight), strict=True
    ):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert grouped._reach(weight) == 3 * 5 + 4
    assert grouped._reach(torch.empty(3, 5, 4).transpose(1, 2)) == 3 + 4 * 4


# -- norms ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statistics", "shape", "target", "has"),
    [
        ((F32, F32), (4, 6), aten.native_layer_norm.default, True),
        ((F64, F64), (4, 6), aten.native_group_norm.default, True),
        ((F32,), (4, 6), aten.native_layer_norm.default, False),
        ((HALF, HALF), (4, 6), aten.native_layer_norm.default, False),
        ((HALF, F32), (4, 6), aten.native_layer_norm.default, False),
        ((F32, HALF), (4, 6), aten.native_layer_norm.default, False),
        ((F32, F32), (0, 6), aten.native_layer_norm.default, False),
        ((F32, F32), (4, 6), aten.native_batch_norm.default, False),
    ],
)
def test_norms_with_exact_statistics(
    statistics: tuple[torch.dtype, ...], shape: tuple[int, ...], target: Any, has: bool
) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(shape)
    node = graph.call_function(target, (x, [6]))
    for number, dtype in enumerate((HALF, *statistics)):
        picked = graph.call_function(operator.getitem, (node, number))
        picked.meta["val"] = torch.empty(shape[0], dtype=dtype)
    assert has_statistics(node) is has


def test_norms_of_single_elements() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")

    def alone(given: Any, value: Any) -> bool:
        x.meta["val"] = given
        node = graph.call_function(aten.native_layer_norm.default, (x, [1]))
        node.meta["val"] = value
        return _is_alone(node)

    one, row = torch.empty(4, 1), torch.empty(4, 6)
    assert alone(one, (one, one, one))
    assert alone(one, [one, one, one])
    assert not alone(row, (row, one, one))
    assert not alone(one, (one,))
    assert not alone(one, one)
    assert not alone(None, (one, one))
    assert not alone(one, (one, None))
    x.meta["val"] = row.half()
    assert is_half(x)
    x.meta["val"] = [row.bfloat16(), row]
    assert is_half(x)
    x.meta["val"] = [row, row.half()]
    assert not is_half(x)
    x.meta["val"] = ()
    assert not is_half(x)
