"""Which rows of symbolic lengths get a guard, asked of graphs made by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from fusec.graph.simplify.short_rows import LONGEST_ROW, bound_rows

aten = torch.ops.aten
Change = Any


def guards(
    target: Any,
    *args: Any,
    shape: tuple[int, ...] = (3, 40),
    dynamic: tuple[int, ...] = (1,),
    change: Change = lambda x: x,
    interpreted: bool = True,
    frozen: bool = False,
    **kwargs: Any,
) -> int:
    """Return how many guards a call of an operator gets."""
    shapes, plain = ShapeEnv(), torch.empty(shape)
    with FakeTensorMode(shape_env=shapes) as mode:
        kinds = DimDynamic.STATIC, DimDynamic.DYNAMIC
        dims = [kinds[d in dynamic] for d in range(len(shape))]
        context = StatelessSymbolicContext(dims, None)
        x = mode.from_tensor(plain, symbolic_context=context, source=ConstantSource("x"))
        graph = fx.Graph()
        given = graph.placeholder("x")
        given.meta["val"] = change(x)
        graph.output(graph.call_function(target, (given, *args), kwargs))
        if frozen:
            shapes.freeze()
        return bound_rows(fx.GraphModule({}, graph), interpreted=interpreted)


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "count"),
    [
        (aten._softmax.default, (1, False), {}, 1),
        (aten._softmax.default, (-1, False), {}, 1),
        (aten._softmax.default, (0, False), {}, 0),  # a column
        (aten._log_softmax.default, (1, False), {}, 1),
        (aten._softmax_backward_data.default, (None, 1, torch.float32), {}, 1),
        (aten._softmax_backward_data.default, (None, 0, torch.float32), {}, 0),
        (aten._log_softmax_backward_data.default, (None, 1, torch.float32), {}, 1),
        (aten._log_softmax_backward_data.default, (None, 0, torch.float32), {}, 0),
        (aten._log_softmax.default, (0, False), {}, 0),
        (aten.var.correction, ([0],), {}, 0),
        (aten.var_mean.correction, ([1],), {}, 1),
        (aten.var_mean.correction, ([0],), {}, 0),
        (aten.std.correction, ([1],), {}, 1),
        (aten.std.correction, ([0],), {}, 0),
        (aten.std_mean.correction, ([1],), {}, 1),
        (aten.mean.dim, ([0], True), {}, 0),
        (aten.amax.default, ([0], True), {}, 0),
        (aten.amin.default, ([1], True), {}, 1),
        (aten.logsumexp.default, ([0], True), {}, 0),
        (aten.native_layer_norm.default, ([3, 40], None, None, 1e-5), {}, 1),
        (aten.var.correction, ([1],), {}, 1),
        (aten.var.correction, (), {}, 1),  # all of it
        (aten.std_mean.correction, ([0],), {}, 0),
        (aten.sum.dim_IntList, ([1], True), {}, 1),
        (aten.sum.dim_IntList, ([1],), {"keepdim": True}, 1),
        (aten.sum.dim_IntList, ([1], False), {}, 0),  # nothing comes after
        (aten.sum.dim_IntList, ([1],), {}, 0),
        (aten.mean.dim, ([-1], True), {}, 1),
        (aten.amax.default, ([-1], True), {}, 1),
        (aten.amin.default, ([0], True), {}, 0),
        (aten.logsumexp.default, ([1], True), {}, 1),
        (aten.native_layer_norm.default, ([40], None, None, 1e-5), {}, 1),
        (aten.argmax.default, (1, True), {}, 0),
        (aten.sin.default, (), {}, 0),
    ],
)
def test_operators(target: Any, args: Any, kwargs: Any, count: int) -> None:
    assert guards(target, *args, **kwargs) == count


SOFTMAX = aten._softmax.default


def test_where_there_is_nothing_to_guard() -> None:
    assert guards(SOFTMAX, 1, False, interpreted=False) == 0  # on a processor
    assert guards(SOFTMAX, 1, False, dynamic=()) == 0
    assert guards(SOFTMAX, 1, False, frozen=True) == 0  # nothing may be guarded any more


@pytest.mark.parametrize(
    ("length", "count"), [(2, 1), (LONGEST_ROW, 1), (LONGEST_ROW + 1, 0), (40_000, 0)]
)
def test_lengths(length: int, count: int) -> None:
    assert guards(SOFTMAX, 1, False, shape=(3, length)) == count


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (lambda x: x[:, : x.shape[1] // 2], 1),
        (lambda x: x[:, x.shape[1] // 2 :], 0),  # of no simple size
        (lambda x: x[:, : x.shape[1] - 3], 0),
        (lambda x: x[:, :7], 0),
        (lambda x: x.t(), 0),
        (lambda x: x.expand(5, 3, x.shape[1])[0], 1),
    ],
)
def test_parts_of_rows(change: Change, count: int) -> None:
    assert guards(SOFTMAX, 1, False, change=change) == count


def test_products_of_sizes() -> None:
    assert guards(aten.var.correction, [0, 1], shape=(3, 40), dynamic=(0, 1)) == 0
    assert guards(aten.var.correction, [0, 1], shape=(3, 40), dynamic=(0,)) == 1
    assert guards(aten.var.correction, [0, 1], shape=(300, 55), dynamic=(0,)) == 0  # too long
    assert guards(aten.var.correction, [0, 1], shape=(297, 55), dynamic=(0,)) == 1
    assert guards(SOFTMAX, 0, False, shape=(), dynamic=()) == 0
