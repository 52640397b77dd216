"""Conditions of the graph's passes at both sides of each bound: nothing is compiled."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fusec.errors import ValueRefused
from fusec.graph.losses.in_parts import _leaves_rows
from fusec.graph.losses.linear_cross_entropy import _BIAS, _ROWS, _WEIGHT, _room
from fusec.graph.products import alignment
from fusec.graph.products.widened_halves import (
    _elements,
    _is_autocast,
    _number,
    _same_but_dtype,
)
from fusec.graph.refusals.values import value_checking_rules, within
from fusec.graph.simplify.foreach import foreach_decompositions
from fusec.graph.simplify.written_attention import (
    DEEPEST,
    _fit,
    _is_idle,
    _is_over_rows,
    _scaled,
    _turned,
)

aten = torch.ops.aten
HALF, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def given(graph: fx.Graph, value: Any, key: str = "val") -> fx.Node:
    node = graph.placeholder("given")
    node.meta[key] = value
    return node


def called(graph: fx.Graph, target: Any, *args: Any, value: Any = None, **kwargs: Any) -> fx.Node:
    """A captured call, of a function or, by name, of a method."""
    make = graph.call_method if isinstance(target, str) else graph.call_function
    node: fx.Node = make(target, args, kwargs)
    node.meta["example_value"] = value
    return node


# -- products padded to lines of memory -------------------------------------------------------


def product(
    left: torch.Tensor, right: torch.Tensor, result: torch.Tensor, bias: bool = False
) -> fx.Node:
    graph = fx.Graph()
    operands = [given(graph, left), given(graph, right)]
    target: Any = aten.mm.default if left.dim() == 2 else aten.bmm.default
    if bias:
        operands, target = [given(graph, result), *operands], aten.addmm.default
    node = graph.call_function(target, tuple(operands))
    node.meta["val"] = result
    return node


def halves(*shape: int, dtype: torch.dtype = HALF, device: str = "cuda") -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def every_other(rows: int, columns: int) -> torch.Tensor:
    return torch.empty_strided((rows, columns), (2 * columns, 2), dtype=HALF, device="cuda")


@pytest.mark.parametrize(
    ("made", "gains"),
    [
        (lambda: (halves(16, 24), halves(24, 37), halves(16, 37)), True),
        (lambda: (halves(16, 24), halves(24, 40), halves(16, 40)), False),
        (lambda: (halves(16, 25), halves(25, 40), halves(16, 40)), True),
        (lambda: (halves(16, 24), halves(37, 24).t(), halves(16, 37)), True),
        (lambda: (halves(24, 17).t(), halves(24, 40), halves(17, 40)), True),
        (lambda: (halves(3, 16, 24), halves(3, 24, 37), halves(3, 16, 37)), True),
        (lambda: tuple(halves(*s, dtype=BF16) for s in ((16, 24), (24, 37), (16, 37))), True),
        (lambda: tuple(halves(*s, dtype=F32) for s in ((16, 24), (24, 37), (16, 37))), False),
        (lambda: tuple(halves(*s, device="cpu") for s in ((16, 24), (24, 37), (16, 37))), False),
        (lambda: (halves(1, 24), halves(24, 37), halves(1, 37)), False),
        (lambda: (halves(2, 24), halves(24, 37), halves(2, 37)), True),
        (lambda: (halves(16, 1), halves(1, 37), halves(16, 37)), False),
        (lambda: (halves(16, 24), halves(24, 1), halves(16, 1)), False),
        (lambda: (every_other(16, 24), halves(24, 37), halves(16, 37)), False),
    ],
)
def test_which_products_may_gain_by_padding(
    made: Callable[[], tuple[torch.Tensor, ...]], gains: bool
) -> None:
    with FakeTensorMode():
        left, right, result = made()
        assert alignment._may_gain(product(left, right, result)) is gains
        if left.dim() == 2:
            assert alignment._may_gain(product(left, right, result, bias=True)) is gains
        node = product(left, right, result)
        node.args = (node.args[0], 3)
        assert not alignment._may_gain(node), "two operands"


@pytest.mark.parametrize(
    ("left", "right", "sizes"),
    [
        ((16, 24), (24, 37), (16, 24, 40)),
        ((16, 24), (24, 40), (16, 24, 40)),
        ((16, 25), (25, 40), (16, 32, 40)),
        ((16, 25), (25, 37), (16, 32, 40)),
        ((17, 24), (24, 40), (17, 24, 40)),
    ],
)
def test_sizes_of_padded_products(
    left: tuple[int, int], right: tuple[int, int], sizes: tuple[int, int, int]
) -> None:
    x, w = torch.empty(left), torch.empty(right)
    rows, _, columns = sizes
    assert alignment._padded_sizes(x.half(), w.half()) == sizes
    turned = alignment._padded_sizes(x.half().t().contiguous().t(), w.half())
    assert turned == (-(-left[0] // 8) * 8, left[1], columns)
    turned = alignment._padded_sizes(x.half(), w.half().t().contiguous().t())
    assert turned == (rows, -(-left[1] // 8) * 8, columns)


def test_a_part_of_wider_rows_is_padded_no_further() -> None:
    """Its rows begin where those of the whole do."""
    left, right = torch.empty(16, 64).half()[:, :25], torch.empty(25, 40).half()
    assert alignment._padded_sizes(left, right) == (16, 25, 40)
    turned = torch.empty(25, 64).half()[:, :17].t()
    assert alignment._padded_sizes(turned, right) == (17, 25, 40)


def test_what_padding_moves() -> None:
    """What a kernel writes anyway, it writes padded."""
    graph = fx.Graph()
    x = given(graph, torch.empty(6, 5))

    def of(target: Any, *more: Any) -> int:
        node = graph.call_function(target, (x, *more))
        node.meta["val"] = x.meta["val"].t() if target is aten.t.default else x.meta["val"]
        turned = graph.call_function(aten.t.default, (node,))
        turned.meta["val"] = node.meta["val"].t()
        assert alignment._bytes_to_pad(turned) == alignment._bytes_to_pad(node)
        return alignment._bytes_to_pad(node)

    assert alignment._bytes_to_pad(x) == of(aten.t.default) == 2 * 4 * 30
    assert of(aten.cumsum.default, 0) == 2 * 4 * 30
    assert of(aten.relu.default) == of(aten._to_copy.default) == 0
    assert of(torch.ops.prims.convert_element_type.default, HALF) == 0


def test_what_a_graph_returns() -> None:
    graph = fx.Graph()
    x = given(graph, torch.empty(6, 5))
    alone, seen, used, both = (graph.call_function(aten.relu.default, (x,)) for _ in range(4))
    view = graph.call_function(aten.t.default, (seen,))
    inner = graph.call_function(aten.neg.default, (used,))
    other = graph.call_function(aten.neg.default, (both,))
    unused = graph.call_function(aten.relu.default, (x,))
    graph.output((alone, view, inner, both, other))
    nodes = (alone, seen, used, both, unused)
    assert [alignment._is_returned(n) for n in nodes] == [True, True, False, True, False]
    assert [alignment._is_only_returned(n) for n in nodes] == [True, True, False, False, False]


# -- products of halves that run in float32 ---------------------------------------------------


@pytest.mark.parametrize(
    ("stack", "autocast"),
    [
        ([("to_1", "to")], False),
        ([("half", "half")], False),
        ([("float_2", torch.Tensor.float)], False),
        ([("to", F.linear)], True),
        ([("linear", F.linear)], True),
        ([("block", "to"), ("linear", F.linear)], True),
        ([("block", F.linear), ("to", "to")], False),
        ([], False),
        (None, False),
    ],
)
def test_whose_cast_it_is(stack: Any, autocast: bool) -> None:
    graph = fx.Graph()
    for key in ("source_fn_stack", "fwd_source_fn_stack"):
        node = given(graph, None)
        assert not _is_autocast(node)
        node.meta[key] = stack
        assert _is_autocast(node) is autocast


def test_how_many_elements_lie_in_memory() -> None:
    x = torch.empty(6, 5)
    assert _elements(x) == 30
    assert _elements(x[:, :1].expand(6, 7)) == 6
    assert _elements(torch.empty(())) == 1
    symbolic = [SimpleNamespace(node=SimpleNamespace(hint=hint)) for hint in (None, 7)]
    assert [_number(each) for each in (5, *symbolic)] == [5, 1024, 7]


def test_the_same_but_for_its_type() -> None:
    graph = fx.Graph()
    x = torch.empty(6, 5)
    source = given(graph, x)
    others = (x.half(), x, x.half().t(), x.half().to("meta"), 3, None)
    found = [_same_but_dtype(given(graph, each), source) for each in others]
    assert found == [True, False, False, False, False, False]
    assert not _same_but_dtype(source, given(graph, None))


# -- losses in parts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "leaves"),
    [((6, 5), (6, 5), True), ((6, 5), (30,), False), ((5,), (1, 5), True), ((), (1,), False),
     ((1,), (), False), ((), (), False), (None, (5,), False), ((5,), None, False)],
)  # fmt: skip
def test_what_keeps_whole_rows(before: Any, after: Any, leaves: bool) -> None:
    graph = fx.Graph()
    x = given(graph, None if before is None else torch.empty(before), "example_value")
    value = None if after is None else torch.empty(after)
    assert _leaves_rows(called(graph, "view", x, -1, value=value)) is leaves
    assert not _leaves_rows(called(graph, torch.relu, x, value=value))


@pytest.mark.parametrize("wanted", range(8))
def test_room_for_the_gradients_that_are_wanted(wanted: int) -> None:
    x, w = torch.empty(6, 5, dtype=BF16), torch.empty(7, 5)
    assert sorted((_ROWS, _WEIGHT, _BIAS)) == [1, 2, 4]
    of_x, of_weight, of_bias = _room(x, w, wanted)
    assert of_x.shape == ((6, 5) if wanted & _ROWS else (0,))
    assert of_weight.shape == ((7, 5) if wanted & _WEIGHT else (0,))
    assert of_bias.shape == ((7,) if wanted & _BIAS else (0,))
    assert [t.dtype for t in (of_x, of_weight, of_bias)] == [BF16, F32, F32]
    assert not of_bias.any()


def test_a_gradient_times_a_number() -> None:
    """In memory of its own, where it is not known that nobody else has it."""
    scaled = torch.ops.fusec.scaled_gradient.default
    kept = torch.randn(6, 5)
    before = kept.clone()
    assert torch.equal(scaled(kept, torch.tensor(3.0)), before * 3)
    assert torch.equal(kept, before)
    with FakeTensorMode() as mode:
        found = scaled(mode.from_tensor(kept), mode.from_tensor(torch.tensor(3.0)))
        assert (found.shape, found.dtype, found.stride()) == (kept.shape, kept.dtype, (5, 1))
    for name in ("scaled_gradient", "linear_cross_entropy"):
        for key in ("Meta", "CompositeExplicitAutograd"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"fusec::{name}", key)


# -- values that eager refuses ----------------------------------------------------------------


def test_values_within() -> None:
    x = torch.tensor([0, 3, 7])
    assert torch.equal(within(x, 0, 7, "no"), x)
    for low, high in ((1, 7), (0, 6)):
        with pytest.raises(ValueRefused, match="far off"):
            within(x, low, high, "far off")
    meta = x.to("meta")
    assert within(meta, 0, 0, "no") is meta, "on another device it is eager's own assertion"


@pytest.mark.parametrize("name", ["index_add", "index_copy"])
@pytest.mark.parametrize("dims", [0, 1, 2])
def test_places_of_updates(name: str, dims: int) -> None:
    rule = value_checking_rules()[getattr(aten, name).default]
    x = torch.zeros((4, 3)[:dims])
    size = x.shape[0] if dims else 1
    source = torch.ones((1, 3)[:dims])
    eager = getattr(torch, name)
    for place in (0, size - 1):
        index = torch.tensor([place])
        torch.testing.assert_close(rule(x, 0, index, source), eager(x, 0, index, source))
    for place in (-1, size):
        with pytest.raises(ValueRefused, match="index out of range"):
            rule(x, 0, torch.tensor([place]), source)
    if dims == 2:  # along the other one
        index, source = torch.tensor([2]), torch.ones(4, 1)
        torch.testing.assert_close(rule(x, 1, index, source), eager(x, 1, index, source))
        with pytest.raises(ValueRefused):
            rule(x, 1, torch.tensor([3]), source)


@pytest.mark.parametrize("dims", [2, 3])
def test_places_of_what_is_unpooled(dims: int) -> None:
    packet = aten.max_unpool2d if dims == 2 else aten.max_unpool3d
    rule = value_checking_rules()[packet.default]
    size = [3, 4, 2][:dims]
    count = torch.Size(size).numel()
    x = torch.ones(1, 1, *(1,) * dims)
    more = ([1] * dims, [0] * dims) if dims == 3 else ()
    for place in (0, count - 1):
        made = rule(x, torch.full(x.shape, place), size, *more)
        assert made.flatten().nonzero().tolist() == [[place]]
    for place in (-1, count):
        with pytest.raises(ValueRefused, match="invalid max index"):
            rule(x, torch.full(x.shape, place), size, *more)


def test_probabilities_are_within_one() -> None:
    rule = value_checking_rules()[aten.binary_cross_entropy.default]
    half = torch.tensor([0.5, 0.25])
    for x in ((0.0, 1.0), (0.5, 0.5)):
        wanted = F.binary_cross_entropy(torch.tensor(x), half)
        torch.testing.assert_close(rule(torch.tensor(x), half), wanted)
    for x in ((0.5, 1.5), (-0.5, 0.5)):
        with pytest.raises(ValueRefused, match="elements of input"):
            rule(torch.tensor(x), half)


# -- operators on lists -----------------------------------------------------------------------


def test_operators_on_lists_that_write_are_not_taken_apart() -> None:
    table = foreach_decompositions()
    assert all(str(each).startswith("aten._foreach_") for each in table)
    assert aten._foreach_add.List in table
    assert aten._foreach_addcmul.Scalar in table
    for packet in (aten._foreach_add_, aten._foreach_sqrt_, aten._foreach_zero_):
        assert not any(getattr(packet, name) in table for name in packet.overloads())
    assert aten._foreach_add.List_out not in table
    assert not any("powsum" in str(each) for each in table), "torch has none of a single tensor"
    assert aten._foreach_sqrt.out not in table


# -- attention as formulas have it ------------------------------------------------------------


def heads(*shape: int, dtype: torch.dtype = HALF, device: str = "cuda") -> torch.Tensor:
    return torch.empty(shape or (2, 8, 16), dtype=dtype, device=device)


@pytest.mark.parametrize(
    ("tensors", "interpreted", "fits"),
    [
        (lambda: [heads(), heads(), heads()], False, True),
        (lambda: [heads(2, 8, 16), heads(2, 5, 16), heads(2, 5, 16)], False, True),
        (lambda: [heads(3, 2, 8, 16)] * 3, False, True),
        (lambda: [heads(8, 16)] * 3, False, False),
        (lambda: [heads(2, 3, 2, 8, 16)] * 3, False, False),
        (lambda: [heads(device="cpu")] * 3, False, False),
        (lambda: [heads(device="cpu")] * 3, True, True),
        (lambda: [heads(), heads(device="cpu"), heads()], False, False),
        (lambda: [heads(), heads(), heads(device="cpu")], False, False),
        (lambda: [heads(), heads(dtype=BF16), heads()], False, False),
        (lambda: [heads(dtype=F32)] * 3, False, True),
        (lambda: [heads(dtype=torch.float64)] * 3, False, False),
        (lambda: [heads(), heads(1, 2, 8, 16), heads()], False, False),
        (lambda: [heads(), heads(), heads(1, 2, 8, 16)], False, False),
        (lambda: [heads(), heads(1, 8, 16), heads()], False, False),
        (lambda: [heads(), heads(), heads(1, 8, 16)], False, False),
        (lambda: [heads(), heads(), heads(2, 8, 24)], False, False),
        (lambda: [heads(2, 8, DEEPEST)] * 3, False, True),
        (lambda: [heads(2, 8, DEEPEST + 8)] * 3, False, False),
        (lambda: [heads(2, 8, 0)] * 3, False, False),
    ],
)
def test_what_fits_attention(
    tensors: Callable[[], list[torch.Tensor]], interpreted: bool, fits: bool
) -> None:
    with FakeTensorMode():
        made = tensors()
        assert _fit(made, [made[0]], interpreted) is fits
        assert not _fit(made, [made[0].to(torch.float64)], interpreted), "another type between"


@pytest.mark.parametrize("which", range(3))
def test_attention_of_a_depth_that_may_change_is_left(which: int) -> None:
    """Who compares it would bind it to the number that it is now."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    (depth,) = mode.from_tensor(torch.empty(16), static_shapes=False).shape
    with mode:
        made = [torch.empty(2, 8, depth if n == which else 16, dtype=HALF) for n in range(3)]
    assert _fit([made[which - 1]] * 3, [], True)
    assert not _fit(made, [], True)


@pytest.mark.parametrize(
    ("target", "args", "turned"),
    [
        ("transpose", (-1, -2), True),
        ("transpose", (1, 2), True),
        (torch.transpose, (2, -2), True),
        ("swapaxes", (-2, -1), True),
        ("transpose", (0, 1), False),
        ("transpose", (0, 2), False),
        ("transpose", (1, 1), False),
        ("transpose", (1,), False),
        ("permute", (1, 2), False),
        (torch.add, (1, 2), False),
        (getattr, ("mT",), True),
        (getattr, ("T",), False),
    ],
)
def test_last_dimensions_exchanged(target: Any, args: tuple[Any, ...], turned: bool) -> None:
    graph = fx.Graph()
    x = given(graph, torch.empty(4, 6, 5), "example_value")
    node = called(graph, target, x, *args, value=torch.empty(4, 5, 6))
    assert _turned(node) is (x if turned else None)
    assert _turned(called(graph, target, x, *args)) is None, "nothing is known of it"
    assert _turned(x) is None
    assert _turned(3) is None


@pytest.mark.parametrize(
    ("steps", "scale"),
    [
        ([(operator.truediv, 8.0)], 0.125),
        ([(operator.mul, 2)], 2.0),
        ([("mul", 0.5), (torch.div, 4)], 0.125),
        ([(operator.mul, True)], None),
        ([(operator.mul, 1e-6)], None),
        ([(operator.mul, 2e-6)], 2e-6),
        ([(operator.mul, 1e6)], None),
        ([(operator.add, 2.0)], None),
        ([(operator.mul, -2.0)], -2.0),
    ],
)
def test_a_scale_is_a_number(steps: list[tuple[Any, Any]], scale: float | None) -> None:
    graph = fx.Graph()
    x = given(graph, torch.empty(4, 6), "example_value")
    for inner in (False, True):
        node = x
        for target, number in steps:
            node = called(graph, target, node, number)
        called(graph, torch.relu, node)  # its one reader
        found, what = _scaled(node, inner)
        if scale is None:
            assert (found, what) == (1.0, None if inner else node)
        else:
            assert found == pytest.approx(scale)
            assert what is x
    product = called(graph, operator.mul, 3.0, x)
    called(graph, torch.relu, product)
    assert _scaled(product) == (3.0, x)
    called(graph, torch.relu, product)
    assert _scaled(product) == (1.0, product), "something else reads it"
    rounded = called(graph, torch.div, x, 3.0, rounding_mode="floor")
    called(graph, torch.relu, rounded)
    assert _scaled(rounded) == (1.0, rounded)


def test_dropout_that_drops_nothing() -> None:
    graph = fx.Graph()
    x = given(graph, torch.empty(4), "example_value")
    for args, kwargs, idle in (
        ((0.5, False), {}, True),
        ((0.5, True), {}, False),
        ((0.5,), {}, False),
        ((0.0,), {}, True),
        ((0,), {"training": True}, True),
        ((), {"p": 0.0}, True),
        ((), {"training": False}, True),
        ((), {}, False),
    ):
        assert _is_idle(called(graph, F.dropout, x, *args, **kwargs)) is idle, (args, kwargs)
    assert not _is_idle(called(graph, F.relu, x, 0.5, False))


def test_a_softmax_over_rows() -> None:
    graph = fx.Graph()
    shown = torch.empty(4, 6, 5)
    x = given(graph, shown, "example_value")
    for args, kwargs, rows in (
        ((-1,), {}, True),
        ((2,), {}, True),
        ((), {"dim": -1}, True),
        ((), {"dim": 2, "dtype": F32}, True),
        ((1,), {}, False),
        ((-2,), {}, False),
        ((), {}, False),
        ((-1,), {"dtype": torch.float64}, False),
        ((-1,), {"out": x}, False),
        ((-1, F32), {}, False),
    ):
        node = called(graph, "softmax", x, *args, value=shown, **kwargs)
        assert _is_over_rows(node) is rows, (args, kwargs)
    assert not _is_over_rows(called(graph, "softmax", x, -1))
