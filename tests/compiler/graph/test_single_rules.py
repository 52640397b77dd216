"""Single rules of the graph's passes, asked of nodes made by hand: nothing is compiled."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fusec.graph.decompositions import _vector_norm
from fusec.graph.facts import half_speed
from fusec.graph.facts.storages import storages
from fusec.graph.losses.in_parts import _leaves_rows
from fusec.graph.products import grouped, onednn
from fusec.graph.products.widened_halves import _multiplications
from fusec.graph.refusals import asked
from fusec.graph.refusals.operand_types import refuses_operands
from fusec.graph.regions import inline_regions
from fusec.graph.simplify.attention_blocks import UNBLOCKED, drop_block_lists
from fusec.graph.simplify.written_attention import _fit
from fusec.graph.training.rematerialize import _known_shape, _large_inputs
from fusec.graph.training.unasked import _is_computed, _rest_of_sum
from fusec.graph.verifier import _has_tensors
from support.captured import Captured, call_of

aten = torch.ops.aten
BF16 = torch.bfloat16


def values(graph: fx.Graph, *given: Any) -> list[fx.Node]:
    """Return inputs that say so of their values."""
    nodes = []
    for number, value in enumerate(given):
        node = graph.placeholder(f"given_{number}")
        node.meta["val"] = value
        nodes.append(node)
    return nodes


def call(graph: fx.Graph, target: Any, *args: Any, value: Any = None, **kwargs: Any) -> fx.Node:
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = value
    return node


def test_some_results_may_be_none() -> None:
    x = torch.ones(2)
    assert _has_tensors(x)
    assert _has_tensors((None, x))
    assert _has_tensors([x, 3])
    assert not _has_tensors((None, 3))
    assert not _has_tensors(None)


def test_sparse_tensors_have_no_storage() -> None:
    x = torch.ones(3, 4)
    graph = fx.Graph()
    dense, sparse, both, none = values(graph, x, x.to_sparse(), [x, x.to_sparse(), x.t()], 3)
    assert storages(sparse) == storages(none) == []
    assert len(storages(dense)) == 1
    assert storages(both) == storages(dense) * 2


# -- products ---------------------------------------------------------------------------------


def test_how_much_is_multiplied() -> None:
    graph = fx.Graph()
    x, w, b = torch.empty(6, 5), torch.empty(5, 7), torch.empty(7)
    given = values(graph, x, w, b, torch.empty(3, 6, 5), torch.empty(3, 5, 7))
    made = torch.empty(6, 7)
    assert _multiplications(call(graph, aten.mm.default, *given[:2], value=made)) == 6 * 5 * 7
    addmm = call(graph, aten.addmm.default, given[2], *given[:2], value=made)
    assert _multiplications(addmm) == 6 * 5 * 7
    bmm = call(graph, aten.bmm.default, *given[3:], value=torch.empty(3, 6, 7))
    assert _multiplications(bmm) == 3 * 6 * 5 * 7


@pytest.mark.parametrize(
    ("wanted", "times"),
    [((True, True, True), 2), ((True, False, True), 1), ((False, True, False), 1),
     ((False, False, True), 0)],
)  # fmt: skip
def test_how_much_windows_multiply(wanted: tuple[bool, ...], times: int) -> None:
    graph = fx.Graph()
    x, w, y = torch.empty(2, 4, 9, 9), torch.empty(8, 4, 3, 3), torch.empty(2, 8, 7, 7)
    image, weight, above = values(graph, x, w, y)
    rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    forward = call(graph, aten.convolution.default, image, weight, None, *rest, value=y)
    each = 2 * 8 * 7 * 7 * 4 * 3 * 3
    assert _multiplications(forward) == each
    backward = call(
        graph, aten.convolution_backward.default, above, image, weight, [8], *rest, list(wanted)
    )
    assert _multiplications(backward) == times * each


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_least_time_of_each(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    taken = iter([9.0, 9.0, *([5.0, 2.0, 4.0, 3.0, 6.0, 1.0][: 2 * rounds])])

    def work() -> None:
        now[0] += next(taken)

    monkeypatch.setattr(half_speed, "_ROUNDS", rounds)
    monkeypatch.setattr(half_speed.time, "perf_counter", lambda: now[0])
    assert half_speed._least(work, work) == [[5.0, 2.0], [], [4.0, 1.0]][rounds - 1]


# -- losses in parts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "leaves"),
    [
        (slice(1, None), True),
        (Ellipsis, True),
        ((slice(None), slice(None, -1)), True),
        ((Ellipsis, slice(None)), True),
        ((slice(1, 3), Ellipsis), True),
        ((slice(None), slice(2), slice(None)), True),
        (0, False),
        ((0, slice(None)), False),
        ((slice(None), 0), False),
        ((slice(None), None), False),
        ((slice(None), slice(None), slice(0, 8)), False),
        ((Ellipsis, slice(0, 8)), False),
        ((0, Ellipsis), False),
    ],
    ids=str,
)
def test_which_parts_have_whole_rows(index: Any, leaves: bool) -> None:
    captured = Captured()
    x = captured.input(torch.empty(4, 6, 8))
    assert _leaves_rows(captured.call(operator.getitem, x, index)) is leaves


@pytest.mark.parametrize(
    ("method", "args", "leaves"),
    [
        ("view", (24, 8), True),
        ("reshape", (-1, 8), True),
        ("view", (12, 16), False),
        ("contiguous", (), True),
        ("float", (), True),
        ("to", (torch.float32,), True),
        ("to", (torch.float64,), False),
        ("double", (), False),
        ("t", (), False),
        ("relu", (), False),
    ],
)
def test_which_methods_leave_rows(method: str, args: tuple[Any, ...], leaves: bool) -> None:
    captured = Captured()
    shape = (8, 8) if method == "t" else (4, 6, 8)
    assert _leaves_rows(captured.call(method, captured.input(torch.empty(shape)), *args)) is leaves


# -- what backward computes again -------------------------------------------------------------


def test_what_a_cheap_operation_is_of() -> None:
    size = ShapeEnv().create_unbacked_symint()
    graph, x = fx.Graph(), torch.empty(4, 5)
    one, other, elsewhere, number = values(graph, x, x, torch.empty(4, 5, device="meta"), size)
    for args, wanted in (
        ((one, other), [one, other]),
        ((one, 2), [one]),
        ((one, number), None),  # it follows from sizes
        ((one, elsewhere), None),
    ):
        assert _large_inputs(call(graph, aten.mul.Tensor, *args, value=x)) == wanted
    assert _large_inputs(call(graph, aten.mm.default, one, other, value=x)) is None


# -- attention and regions --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "lists", "dropped"),
    [
        ((UNBLOCKED, UNBLOCKED), True, 1),
        ((UNBLOCKED, UNBLOCKED), False, 0),
        ((UNBLOCKED, 128), True, 0),
        ((128, UNBLOCKED), True, 0),
        ((UNBLOCKED - 1, UNBLOCKED - 1), True, 0),
    ],
)
def test_lists_of_one_block(sizes: tuple[int, int], lists: bool, dropped: int) -> None:
    graph = fx.Graph()
    q, k, v, count = values(graph, *[torch.empty(1, 1, 8, 8)] * 3, torch.empty(1))
    made = call(graph, aten.ones.default, [1]) if lists else None
    mask = (8, 8, *([made] * 8), *sizes, None)
    attention = call(
        graph, torch.ops.higher_order.flex_attention, q, k, v, None, mask, 0.1, {}, (), ()
    )
    more = call(graph, aten.add.Tensor, q, count)
    graph.output((attention, more))
    module = fx.GraphModule({}, graph)
    assert drop_block_lists(module) == dropped
    kept = [part for part in attention.args[4][2:-3] if part is not None]  # type: ignore[index]
    assert bool(kept) is (lists and not dropped)
    left = {node.target for node in module.graph.nodes}
    assert (aten.ones.default in left) is bool(kept)
    assert ("ones" in module.code) is bool(kept)


def test_the_code_of_a_region_is_its_callers() -> None:
    with FakeTensorMode():
        region = make_fx(lambda x: (x.sin(),))(torch.empty(3))
        value = torch.empty(3)
    graph = fx.Graph()
    (x,) = values(graph, value)
    place = graph.get_attr("region")
    called = call(graph, torch.ops.higher_order.invoke_subgraph, place, "region", x)
    first = call(graph, operator.getitem, called, 0, value=value)
    graph.output((first,))
    module = fx.GraphModule({"region": region}, graph)
    assert inline_regions(module) == 1
    assert "invoke_subgraph" not in module.code
    given = torch.randn(3)
    torch.testing.assert_close(module(given)[0], given.sin())


# -- who may be computed otherwise ----------------------------------------------------------------


def test_which_products_are_left_to_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "_is_there", lambda: True)
    monkeypatch.setattr(onednn, "onednn_multiplies_faster", lambda *sizes: True)

    def fits(dtype: torch.dtype = torch.float32, device: str = "cpu", **more: Any) -> bool:
        graph = fx.Graph()
        sizes = ((7, 5), (5, 3))
        left, right = values(graph, *(torch.empty(s, device=device, dtype=dtype) for s in sizes))
        bias = values(graph, torch.empty(more["bias"], device=device)) if "bias" in more else []
        target = aten.addmm.default if bias else aten.mm.default
        value = torch.empty(7, 3, device=device, dtype=dtype)
        options = {"beta": 2} if "beta" in more else {}
        return onednn._fits(call(graph, target, *bias, left, right, value=value, **options))

    assert fits()
    assert not fits(torch.float64)
    assert not fits(device="meta")
    assert fits(bias=(3,))
    assert not fits(bias=(1,))
    assert not fits(bias=(7, 3))
    assert not fits(bias=(3,), beta=2)
    monkeypatch.setattr(onednn, "_is_there", lambda: False)
    assert not fits()


def test_sizes_that_onednn_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, ...]] = []
    monkeypatch.setattr(onednn, "_is_there", lambda: True)
    monkeypatch.setattr(onednn, "onednn_multiplies_faster", lambda *s: bool(told.append(s)))
    for left in (torch.empty(7, 5), torch.empty(5, 7).t()):
        graph = fx.Graph()
        given = values(graph, left, torch.empty(5, 3))
        onednn._fits(call(graph, aten.mm.default, *given, value=torch.empty(7, 3)))
    assert told == [(7, 5, 3, 0), (7, 5, 3, 35)]


def test_what_does_nothing_but_compute() -> None:
    graph = fx.Graph()
    (x,) = values(graph, torch.empty(3))
    assert _is_computed(call(graph, aten.sin.default, x))
    assert _is_computed(call(graph, operator.getitem, x, 0))
    assert not _is_computed(x)
    assert not _is_computed(call(graph, aten.sin_.default, x))
    assert not _is_computed(call(graph, aten._assert_async.msg, x, ""))


def test_one_content_that_eager_refuses_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    node = call_of(torch.sin, torch.ones(3))
    plain: asked.Given = ((), {})
    for contents in ({}, {"zeros"}, set(asked._CONTENTS)):

        def raises(_: fx.Node, given: object, content: str) -> bool:
            return content in contents and given is not plain  # noqa: B023

        monkeypatch.setattr(asked, "_raises", raises)
        assert asked.raises_for(node, plain) is bool(contents)
    monkeypatch.setattr(asked, "_raises", lambda *given: True)
    assert not asked.raises_for(node, plain), "it does so of what is not doubted, too"


@pytest.mark.parametrize("more", [(), (True,)])
def test_types_of_what_is_put_somewhere(more: tuple[bool, ...]) -> None:
    x, half = torch.zeros(4), torch.zeros(2, dtype=torch.half)
    places, source = torch.tensor([0, 1]), torch.zeros(2)
    for refused, index, put in (
        (False, places, source),
        (True, places.int(), source),
        (True, places, half),
    ):
        assert refuses_operands(call_of("put", x, index, put, *more), converts=False) is refused
    for refused, put in ((False, source), (True, half)):
        node = call_of("index_put", x, (places,), put, *more)
        assert refuses_operands(node, converts=False) is refused


def test_norms_of_vectors_and_of_numbers() -> None:
    x, number = torch.tensor([[3.0, 4.0]]), torch.tensor(-2.0)
    given: tuple[tuple[tuple[Any, ...], torch.Tensor], ...] = (
        ((x,), torch.tensor(5.0)),
        ((x, 2, [-1]), torch.tensor([5.0])),
        ((x, 2, [0]), torch.tensor([3.0, 4.0])),
        ((number,), torch.tensor(2.0)),
        ((number, 2, [0]), torch.tensor(2.0)),
        ((number, 2, [-1]), torch.tensor(2.0)),
    )
    for arguments, expected in given:
        assert torch.equal(_vector_norm(*arguments), expected)  # type: ignore[arg-type]


def test_tensors_whose_attention_is_atens() -> None:
    def fit(query: Any, key: Any = None, value: Any = None, dtype: Any = BF16, **more: Any) -> bool:
        sizes = (query, key or query, value or key or query)
        tensors = [torch.empty(size, dtype=dtype, device="meta") for size in sizes]
        return _fit(tensors, more.get("results", tensors[:1]), interpreted=True)

    assert fit((2, 3, 5, 64))
    assert fit((3, 5, 64))
    assert not fit((5, 64))
    assert not fit((2, 2, 3, 5, 64))
    assert fit((2, 3, 5, 64), (2, 3, 9, 64))
    assert not fit((2, 3, 5, 64), (2, 3, 5, 64), (2, 3, 5, 32))
    assert not fit((2, 3, 5, 64), (2, 3, 5, 32), (2, 3, 5, 64))
    assert not fit((2, 3, 5, 32), (2, 3, 5, 64))
    assert not fit((2, 3, 5, 64), (2, 1, 5, 64))
    assert not fit((2, 3, 5, 64), (2, 3, 5, 64), (1, 3, 5, 64))
    assert not fit((2, 3, 5, 0))
    assert fit((2, 3, 5, 256))
    assert not fit((2, 3, 5, 257))
    assert not fit((3, 5, 64), dtype=torch.float64)
    assert not fit((3, 5, 64), results=[torch.empty(3, dtype=torch.half, device="meta")])


def test_answers_are_kept_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_of: list[fx.Node] = []

    def answer(node: fx.Node) -> bool:
        asked_of.append(node)
        return True

    monkeypatch.setattr(asked, "_answers", {})
    monkeypatch.setattr(asked, "_MOST_ANSWERS", 2)
    monkeypatch.setattr(asked, "_computes", lambda node: True)
    monkeypatch.setattr(asked, "_refuses_types", answer)
    calls = [call_of(torch.sin, torch.ones(n, dtype=torch.int8)) for n in (2, 3, 4)]
    for node in (calls[0], calls[1], calls[0], calls[1], calls[2], calls[0]):
        assert asked.refuses_types(node)
        assert len(asked._answers) <= 2
    assert asked_of == [*calls, calls[0]]
    assert not asked.refuses_types(call_of(torch.sin, torch.ones(2))), "of usual types"


def test_what_is_left_of_a_sum() -> None:
    def rest(term: torch.Tensor, **more: Any) -> bool:
        graph = fx.Graph()
        lacking, there = values(graph, torch.empty(4, 3), term)
        target = more.get("target", aten.add.Tensor)
        options = {"alpha": 2} if "alpha" in more else {}
        node = call(graph, target, lacking, there, value=torch.empty(4, 3), **options)
        found = _rest_of_sum(node, [lacking])
        assert found in (there, None)
        return found is there

    assert rest(torch.empty(4, 3))
    assert not rest(torch.empty(3))
    assert not rest(torch.empty(4, 3, dtype=torch.half))
    assert not rest(torch.empty(3, 4).t())
    assert not rest(torch.empty(4, 3), alpha=2)
    assert not rest(torch.empty(4, 3), target=aten.sub.Tensor)


def test_sizes_that_are_all_known() -> None:
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        shapes = mode.shape_env
        assert shapes is not None
        some = torch.empty(shapes.create_unbacked_symint(), 4)
    graph = fx.Graph()
    known, partly, number = values(graph, torch.empty(2, 4), some, 3)
    assert _known_shape(known) == (2, 4)
    assert _known_shape(partly) is None
    assert _known_shape(number) is None


def test_products_that_kernels_know(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named:
        def groups(self) -> object:
            return found

    found: object = None
    monkeypatch.setattr(grouped, "PythonTarget", Named)
    monkeypatch.setattr(grouped, "default_target", lambda device: Named())
    assert not grouped._has_kernels()
    found = ()
    assert grouped._has_kernels()
    monkeypatch.setattr(grouped, "PythonTarget", int)
    assert not grouped._has_kernels(), "a target of another kind"
