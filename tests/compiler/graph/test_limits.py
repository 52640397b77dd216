"""Rules over graphs where conditions meet: each is asked by itself, and nothing is compiled."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from fusec.graph.convolutions import depthwise
from fusec.graph.facts.storages import makers_of_shared_results
from fusec.graph.losses import linear_cross_entropy as losses
from fusec.graph.products import grouped
from fusec.graph.refusals import asked
from fusec.graph.refusals.shapes import _index_put, _masks_fit
from fusec.graph.refusals.sizes import keep_promised_sizes
from fusec.graph.simplify.attention_masks import _is_repeatable

aten = torch.ops.aten
F16, F32, I64 = torch.float16, torch.float32, torch.int64


def test_who_makes_memory_that_several_results_are() -> None:
    graph = fx.Graph()
    values = [torch.ones(4) for _ in range(4)]
    alone, twice, whole, other = (graph.placeholder(f"x{n}") for n in range(4))
    for node, value in zip((alone, twice, whole, other), values, strict=True):
        node.meta["val"] = value
    view = graph.call_function(aten.view.default, (whole, [2, 2]))
    view.meta["val"] = values[2].view(2, 2)
    graph.call_function(aten.view.default, (other, [2, 2])).meta["val"] = values[3].view(2, 2)
    graph.output((alone, [twice, twice], view, other, None))
    assert makers_of_shared_results(graph) == {twice, whole}


@pytest.mark.parametrize(
    ("promised", "bound", "kept"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_promised_sizes_of_what_nobody_reads(promised: bool, bound: bool, kept: bool) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    found = graph.call_method("nonzero", (x,))
    found.meta["example_value"] = torch.zeros(3, 1)
    if bound:
        found.meta["unbacked_bindings"] = {1: ()}
    if promised:
        graph.call_function(aten._assert_scalar.default, (True, "three"))
    graph.output((x,))
    module = fx.GraphModule({}, graph)
    changed = keep_promised_sizes(module)
    asks = [n for n in changed.graph.nodes if n.target is aten._assert_tensor_metadata.default]
    assert (changed is not module, len(asks)) == (kept, int(kept))
    assert ("metadata" in changed.code) is kept


def test_of_several_results_each_that_is_sized_by_data_is_kept() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    both = graph.call_function(torch.unique, (x,), {"return_counts": True})
    both.meta["unbacked_bindings"] = {1: ()}
    for place in range(2):
        part = graph.call_function(operator.getitem, (both, place))
        part.meta["example_value"] = torch.zeros(3)
    graph.call_function(operator.getitem, ([x], 0)).meta["example_value"] = torch.zeros(3)
    graph.call_function(aten._assert_scalar.default, (True, "three"))
    graph.output((x,))
    changed = keep_promised_sizes(fx.GraphModule({}, graph)).graph
    asks = changed.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default)
    assert len(asks) == 2


@pytest.mark.parametrize(
    ("op", "target", "shown", "kwargs", "repeatable"),
    [
        ("call_function", torch.ones, torch.ones(2), {}, True),
        ("call_function", torch.ones, None, {}, True),
        ("call_function", torch.ones, torch.ones(2), {"out": None}, False),
        ("call_function", torch.rand, torch.ones(2), {}, False),
        ("call_method", "triu", torch.ones(2), {}, True),
        ("call_method", "triu_", torch.ones(2), {}, False),
        ("placeholder", "ones", torch.ones(2), {}, False),
    ],
)
def test_what_makes_a_mask_again(
    op: str, target: Any, shown: Any, kwargs: dict[str, Any], repeatable: bool
) -> None:
    node = fx.Graph().create_node(op, target, (), kwargs, "made")
    node.meta["example_value"] = shown
    assert _is_repeatable(node) is repeatable


def test_what_is_asked_of_eager() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.ones(3, dtype=torch.bool)
    raises = graph.call_function(torch.neg, (x,))
    method = graph.call_method("neg", (x,))
    of_a_number = graph.call_method("missing", (3,))
    fine = graph.call_function(torch.logical_not, (x,))
    for node, wanted in ((raises, True), (method, True), (of_a_number, False), (fine, False)):
        content = asked._CONTENTS[0]
        assert asked._raises(node, (node.args, node.kwargs), content) is wanted
        assert not asked._raises(node, (node.args, node.kwargs), content, asked._float) or wanted
    kinds = {torch.bool: torch.bool, torch.complex64: torch.complex64, F16: F32, torch.int8: I64}
    assert {dtype: asked._usual_of_kind(dtype) for dtype in kinds} == kinds
    assert asked._float(torch.int8) == F32


@pytest.mark.parametrize(
    ("target", "computes"),
    [
        (torch.neg, True),
        (torch.nn.functional.relu, True),
        (operator.add, True),
        (operator.__iadd__, True),
        (aten.neg.default, True),
        (aten.neg, True),
        (torch.ops.prims.neg.default, False),
        (torch._assert, False),
        (print, False),
        (len, False),
    ],
)
def test_what_does_nothing_but_compute(target: Any, computes: bool) -> None:
    graph = fx.Graph()
    assert asked._computes(graph.call_function(target, ())) is computes
    assert asked._computes(graph.call_method("anything", ()))


def mask(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bool)


X = torch.zeros(2, 3, 4)
ROW, ONE = torch.tensor([0, 1]), torch.ones(())


@pytest.mark.parametrize(
    ("indices", "values", "fits"),
    [
        ((mask(2),), ONE, True),
        ((mask(3),), ONE, False),
        ((mask(2, 3),), ONE, True),
        ((mask(2, 4),), ONE, False),
        ((mask(2, 3, 4),), ONE, True),
        ((None, mask(3)), ONE, True),
        ((None, mask(4)), ONE, False),
        ((None, mask(3, 4)), ONE, True),
        ((None, mask(3, 3)), ONE, False),
        ((mask(2), mask(3)), ONE, True),
        ((mask(2, 3), mask(4)), ONE, True),
        ((mask(2, 3), mask(3)), ONE, False),
        ((ROW, mask(3)), ONE, True),
        ((ROW, mask(2)), ONE, False),
        ((mask(2), ROW), torch.ones(9, 9), True),  # nobody knows how many
        ((ROW,), torch.ones(2, 3, 4), True),
        ((ROW,), torch.ones(3, 4), True),
        ((ROW,), torch.ones(3, 3, 4), False),
        ((None, ROW), torch.ones(2, 2, 4), True),
        ((None, ROW), torch.ones(3, 4), False),
        ((ROW, ROW), torch.ones(2, 4), True),
        ((ROW, ROW), torch.ones(2, 3), False),
    ],
)
def test_values_for_places(indices: tuple[Any, ...], values: torch.Tensor, fits: bool) -> None:
    assert _index_put(X, indices, values) is fits
    if all(each is None or each.dtype == torch.bool for each in indices):
        given = tuple(slice(None) if each is None else each for each in indices)
        assert _masks_fit(X, given) is fits
        assert _masks_fit(X[None], (None, 0, *given)) is fits
        assert _masks_fit(X[..., None], (*given, ..., 0)) is fits


@pytest.mark.parametrize(("rows", "kept"), [(5, 5), (0, 0), (100, 17)])
def test_room_for_no_more_logits_than_a_part_has(
    rows: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Noted(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is torch.Tensor.new_empty:
                made.append(args[1:])
            return function(*args, **(kwargs or {}))

    monkeypatch.setattr(losses, "rows_of_part", lambda *sizes: 17)
    monkeypatch.setattr(losses, "_compiled", {f: f for f in losses._compiled})
    x, weight = torch.randn(rows, 8), torch.randn(10, 8)
    target = torch.randint(0, 10, (rows,))
    with Noted():
        loss, *_ = losses._in_parts(x, weight, None, target, -100, 0.0, False, 1 << 20, 0)
    wanted = torch.nn.functional.cross_entropy(x @ weight.t(), target, reduction="sum")
    torch.testing.assert_close(loss, wanted)
    wide = -(-10 // losses.LINE) * losses.LINE
    assert (kept, wide) in made


def gradient(**given: Any) -> tuple[fx.Node, bool]:
    usual: dict[str, Any] = {
        "shape": (4, 64, 28, 28), "dtype": F16, "device": "cuda", "weight": (64, 1, 3, 3),
        "steps": [1, 1], "wanted": [True, True, False], "interpreted": False, "last": True,
    }  # fmt: skip
    of = SimpleNamespace(**(usual | given))
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{n}") for n in range(3)]
    with FakeTensorMode():
        _, channels, rows, columns = of.shape
        steps = (channels * rows * columns, rows * columns, columns, 1)
        if of.last:
            steps = (channels * rows * columns, 1, columns * channels, channels)
        image = torch.empty_strided(of.shape, steps, dtype=of.dtype, device=of.device)
        weight = torch.empty(of.weight, dtype=of.dtype, device=of.device)
    for node, value in zip(nodes, (image, image, weight), strict=True):
        node.meta["val"] = value
    args = (*nodes, None, [1, 1], [1, 1], of.steps, False, [0, 0], 64, of.wanted)
    return graph.call_function(aten.convolution_backward.default, args), of.interpreted


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({}, True),
        ({"steps": [1, 2]}, False),
        ({"wanted": [False, True, True]}, False),
        ({"wanted": [True, False, True]}, True),
        ({"wanted": [True, False, False]}, False),
        ({"device": "cpu"}, False),
        ({"device": "cpu", "interpreted": True}, True),
        ({"last": False}, False),
        ({"weight": (64, 2, 3, 3)}, False),
        ({"weight": (128, 1, 3, 3)}, False),
        ({"weight": (64, 1, 1, 1)}, None),
        ({"weight": (64, 1, 9, 9)}, None),
        ({"dtype": F32}, None),
    ],
)
def test_which_gradients_are_divided(given: dict[str, Any], fits: bool | None) -> None:
    node, interpreted = gradient(**given)
    if fits is None:  # as windows of one's own pay for gradients
        weight = node.args[2].meta["val"]  # type: ignore[union-attr]
        fits = depthwise.own_windows_pay(weight.dtype, weight.shape[2:], gradient=True)
    assert depthwise._fits(node, interpreted) is fits


def like(
    x: torch.Tensor, dtype: torch.dtype = F16, device: str = "cuda:0", shape: Any = None
) -> torch.Tensor:
    return torch.empty(shape or x.shape, dtype=dtype, device=device)


@pytest.mark.parametrize(
    ("change", "may"),
    [
        (lambda x, w, e: (x, w, e), True),
        (lambda x, w, e: (x, w, e, like(x, shape=(8, 5))), True),
        (lambda x, w, e: (x, w, e, like(x, F32, shape=(8, 5))), False),
        (lambda x, w, e: (like(x, F32), w, e), False),
        (lambda x, w, e: (like(x, device="cpu"), w, e), False),
        (lambda x, w, e: (like(x, device="cuda:1"), w, e), False),
        (lambda x, w, e: (x, w, like(e, I64)), True),
        (lambda x, w, e: (x, w, like(e, torch.int16)), False),
        (lambda x, w, e: (like(x, shape=(16,)), w, e), False),
        (lambda x, w, e: (x, like(w, shape=(16, 5)), e), False),
        (lambda x, w, e: (x, w, like(e, I64, shape=(1, 3))), False),
        (lambda x, w, e: (like(x, torch.float64), like(w, torch.float64), e), False),
        (lambda x, w, e: (x, None, e), False),
    ],
)
def test_which_products_of_groups_are_taken(
    change: Callable[..., tuple[Any, ...]], may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouped, "_has_kernels", lambda: True)
    graph = fx.Graph()
    with FakeTensorMode():
        x, w = (torch.empty(s, dtype=F16, device="cuda:0") for s in ((8, 16), (3, 16, 5)))
        values = change(x, w, torch.empty(3, dtype=torch.int32, device="cuda:0"))
    args = []
    for n, value in enumerate(values):
        args.append(None if value is None else graph.placeholder(f"x{n}"))
        if value is not None:
            args[-1].meta["val"] = value
    node = graph.call_function(torch.relu, tuple(args))
    assert grouped._may_take(node) is may
    if may:
        monkeypatch.setattr(grouped, "MOST", grouped._reach(values[1]))
        assert grouped._may_take(node) is False
        monkeypatch.setattr(grouped, "MOST", grouped._reach(values[1]) + 1)
        assert grouped._may_take(node) is True
        # a size or a stride that nobody knows
        for shape, stride in (((3, None, 5), (80, 5, 1)), ((3, 16, 5), (None, 5, 1))):
            known = SimpleNamespace(shape=shape, stride=lambda stride=stride: stride)
            monkeypatch.setattr(grouped, "Tensor", object)
            odd = {"dtype": F16, "device": values[1].device, "dim": lambda: 3}
            args[1].meta["val"] = SimpleNamespace(**vars(known), **odd)
            assert grouped._may_take(node) is False
