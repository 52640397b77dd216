"""Which maxima leave NaN out, and that no result shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

import fusec
from fusec.codegen.common.carried_nan import _carries, _is_hidden, extremes_of_numbers
from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.node import Node, cast, op, recording
from support.triton_bodies import F32, at, axes, f32

HALF, I32 = torch.float16, torch.int32
Function = Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]


def _weights(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x - x.amax(-1, keepdim=True))


def _share(x: torch.Tensor) -> torch.Tensor:
    weights = _weights(x)
    return weights / weights.sum(-1, keepdim=True)


HIDDEN: dict[str, Function] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log softmax": lambda x: torch.log_softmax(x, -1),
    "down columns": lambda x: torch.softmax(x, 0),
    "written out, masked": lambda x: torch.where(x > 0, _share(x), 0.0),
}
SHOWN: dict[str, Function] = {
    "the maximum, too": lambda x: (torch.softmax(x, -1), x.amax(-1)),
    "the weights, too": lambda x: (_weights(x), _share(x)),
    "where the sum is not": lambda x: torch.where(x > 0, _share(x), x.amax(-1, keepdim=True)),
}


def _tensors(result: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", [*HIDDEN, *SHOWN])
def test_nan_is_where_eager_has_it(name: str) -> None:
    function = (HIDDEN | SHOWN)[name]
    compiled = fusec.compile(function)
    for value in (torch.nan, torch.inf, -torch.inf, 0.0):
        for place in (0, 40, 76):  # the first of a row, within it, in its last vector
            x = torch.randn(5, 77)
            x[1, place] = value
            x[2] = value
            for ours, eager in zip(_tensors(compiled(x)), _tensors(function(x)), strict=True):
                torch.testing.assert_close(ours, eager, equal_nan=True)
    text = "".join(kernel.source for kernel in compiled.graphs[0].kernels)
    assert ("number_max(" in text) == (name in HIDDEN)


def test_what_is_nan_where_something_else_is() -> None:
    with recording():
        (i,), (r,) = axes(4), axes(8, prefix="r")
        x, y = ops.load("x", at(i, r), F32), ops.load("y", at(i, r), F32)

        def carries(node: Node, *nan: Node) -> bool:
            return _carries(node, {each: each in nan for each in (x, y)})

        for name in "add sub mul truediv".split():
            both = ops.binary(name, x, y)
            assert [carries(both, x), carries(both, y), carries(both)] == [True, True, False]
        for name in "neg abs exp log sqrt rsqrt tanh".split():
            one = ops.unary(name, x)
            assert (carries(one, x), carries(one, y)) == (True, False)
        for other in (ops.binary("maximum", x, y), ops.where(op("lt", (x, y), torch.bool), x, y)):
            assert not _carries(other, dict.fromkeys(other.args, True))
        assert carries(ops.cast(x, HALF), x)
        assert not carries(ops.cast(x, HALF), y)
        assert not carries(ops.cast(x, I32), x), "an integer is a number"
        assert not carries(cast(x, F32, bitcast=True), x)
        assert carries(ops.reduce("sum", x, (r,), F32), x)
        assert not carries(ops.reduce("sum", x, (r,), F32), y)
        assert not carries(ops.reduce("max", x, (r,), F32), x)
        assert not carries(x), "what is loaded"


@pytest.mark.parametrize("kept", ["half", "number", "sum alone", "itself", "a choice"])
def test_a_maximum_whose_value_shows_minds_nan(kept: str) -> None:
    with recording():
        (i,), (r,) = axes(4), axes(8, prefix="r")
        x = ops.load("x", at(i, r), F32)
        largest = ops.reduce("max", x, (r,), F32)
        weight = ops.unary("exp", ops.binary("sub", x, largest))
        total = ops.reduce("sum", weight, (r,), F32)
        share = ops.binary("truediv", weight, total)
        value = {
            "half": ops.cast(share, HALF),
            "number": ops.cast(share, I32),
            "sum alone": total,
            "itself": ops.binary("add", largest, f32(1.0)),
            "a choice": ops.where(op("lt", (total, f32(2.0)), torch.bool), share, weight),
        }[kept]
        index = at(i) if kept in ("sum alone", "itself") else at(i, r)
        body = Body((i,), (r,), (Store("y", index, value),))
        hidden = kept in ("half", "number", "sum alone")  # NaN as a number is always the same
        assert extremes_of_numbers(body) == ({largest} if hidden else set())
        assert _is_hidden(body, largest, {total}) is hidden
