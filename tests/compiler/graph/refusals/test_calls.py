"""Calls that eager refuses, one by one: which reason, and what of the same kind is none."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

import fusec
from fusec.graph.refusals.calls import left_to_eager, refused_call
from fusec.graph.refusals.shapes import is_torchs, name_of
from support.captured import call_of

aten = torch.ops.aten
I64, F32, F64, HALF = torch.int64, torch.float32, torch.float64, torch.float16
BOOL, C64, C128 = torch.bool, torch.complex64, torch.complex128


def of(*dtypes: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(torch.ones(3, dtype=dtype) for dtype in dtypes)


WIDE, OTHER, NONE = "cannot hold", "cannot take its result", "no kernel"
BOOLS, DIFFERENT, DIVIDES = "only ATen's kernel", "of different types", "divides integers"
ROWS = torch.tensor([0, 1])
SQUARE, NEEDS = torch.ones(3, 3), torch.ones(3, 3, requires_grad=True)
CASES: list[tuple[str, str, Any, tuple[Any, ...], dict[str, Any]]] = [
    ("times a fraction", WIDE, "mul_", (*of(I64), 1.5), {}),
    ("times floats", WIDE, operator.imul, of(I64, F32), {}),
    ("times complex numbers", WIDE, "multiply_", of(F32, C64), {}),
    ("times a complex number", WIDE, "__imul__", (*of(F32), 2j), {}),
    ("times an integer", "", "mul_", (*of(I64), 3), {}),
    ("floats times integers", "", "mul_", of(F32, I64), {}),
    ("halves times floats", "", "mul_", of(HALF, F32), {}),
    ("times nothing", "", "mul_", of(I64), {}),
    ("times a text", "", "mul_", (*of(I64), "1.5"), {}),
    ("a text times", "", "mul_", ("2", *of(I64)), {}),
    ("added, not in place", "", "mul", (*of(I64), 1.5), {}),
    ("a maximum in another type", OTHER, torch.amax, (*of(F32), 0), {"out": of(F64)[0]}),
    ("a minimum in its type", "", torch.amin, (*of(F32), 0), {"out": of(F32)[0]}),
    ("both, one in another type", OTHER, torch.aminmax, of(F32), {"out": of(F32, F64)}),
    ("both in their type", "", torch.aminmax, of(F32), {"out": of(F32, F32)}),
    ("a maximum for the caller", "", torch.amax, (*of(F32), 0), {}),
    ("a maximum of nothing", "", torch.amax, (), {"out": of(F64)[0]}),
    ("complex numbers of doubles", OTHER, torch.complex, of(F64, F64), {"out": of(C64)[0]}),
    ("complex numbers of doubles, as such", "", torch.complex, of(F64, F64), {"out": of(C128)[0]}),
    ("complex numbers of floats", "", torch.polar, of(F32, F32), {"out": of(C64)[0]}),
    ("complex numbers of floats, wide", OTHER, torch.polar, of(F32, F32), {"out": of(C128)[0]}),
    ("over what it reads", OTHER, torch.cross, (SQUARE, SQUARE + 1), {"out": SQUARE}),
    ("over what it reads, as a view", OTHER, torch.cross, (SQUARE, SQUARE + 1),
     {"out": SQUARE.view(9).view(3, 3)}),
    ("beside what it reads", "", torch.cross, (SQUARE, SQUARE + 1), {"out": SQUARE.clone()}),
    ("a sum over what it reads", "", torch.add, (SQUARE, SQUARE), {"out": SQUARE}),
    ("where autograd would see it", OTHER, torch.matmul, (SQUARE, SQUARE), {"out": NEEDS.clone()}),
    ("of what autograd would see", OTHER, torch.matmul, (NEEDS, SQUARE), {"out": SQUARE.clone()}),
    ("a sum in another type", "", torch.add, of(F32, F32), {"out": of(F64)[0]}),
    ("a margin of halves", NONE, F.multi_margin_loss, (*of(HALF), ROWS), {}),
    ("a margin of floats", "", F.multi_margin_loss, (*of(F32), ROWS), {}),
    # some of torch's releases take this loss apart wrongly, whatever its type
    ("margins of halves, by name", "loss is", F.multilabel_margin_loss, (), {"input": of(HALF)[0]}),
    ("classes that are floats", NONE, F.one_hot, (*of(F32), 5), {}),
    ("classes", "", F.one_hot, (torch.tensor([0, 1]), 5), {}),
    ("shrunk integers", NONE, "hardshrink", of(I64), {}),
    ("shrunk halves", "", torch.hardshrink, of(HALF), {}),
    ("shrunk on no processor", "", F.hardshrink, (torch.ones(3, dtype=I64, device="meta"),), {}),
    ("shrunk, of no tensor", "", F.hardshrink, (3,), {}),
    ("logarithms of complex numbers", NONE, "xlogy_", (*of(C64), 0.5), {}),
    ("logarithms of integers", "", torch.special.xlog1py, (*of(I64), 0.5), {}),
    ("bools added, times", BOOLS, "index_add", (*of(BOOL), 0, ROWS, *of(BOOL)), {"alpha": -1}),
    ("bools added, times, by place", BOOLS, torch.index_add, (*of(BOOL), 0, ROWS, *of(BOOL), 1),
     {}),
    ("bools added", "", torch.index_add, (*of(BOOL), 0, ROWS, of(BOOL)[0][:2]), {}),
    ("integers added, times", "", "index_add_", (*of(I64), 0, ROWS, of(I64)[0][:2]),
     {"alpha": -1}),
    ("steps of two types", DIFFERENT, torch.heaviside, of(I64, F32), {}),
    ("steps of two types, by name", DIFFERENT, "heaviside", of(I64), {"values": of(F32)[0]}),
    ("steps of one type", "", "heaviside_", of(F32, F32), {}),
    ("a quotient of integers", DIVIDES, torch.addcdiv, of(F32, I64, I64), {}),
    ("a quotient of bools", DIVIDES, "addcdiv_", of(F32, BOOL, I64), {}),
    ("a quotient of floats", "", "addcdiv", of(F32, F32, F32), {}),
    ("a quotient of a float", "", "addcdiv", of(F32, F32, I64), {}),
    ("a quotient by a float", "", "addcdiv", of(I64, I64, F32), {}),
    ("a quotient of complex numbers", "", "addcdiv", of(C64, C64, I64), {}),
    ("a quotient of one", "", "addcdiv", of(I64, I64), {}),
    ("a quotient by name", DIVIDES, "addcdiv", of(F32), dict(zip(("tensor1", "tensor2"),
     of(I64, I64), strict=True))),
    ("a product of integers", "", "addcmul", of(I64, I64, I64), {}),
    ("a number that is odd", "has a number", torch.sub, of(I64, I64), {"alpha": 0.5}),
    ("a number that is odd and passes", "", "pow", (*of(I64), 0.5), {}),
    ("a write", "share memory", "add_", (torch.ones(3).expand(2, 3), 1), {}),
    ("a write by an overload", "share memory", aten.add_.Tensor, (torch.ones(3).expand(2, 3), 1),
     {}),
    ("rows added of another type, by an overload", NONE, aten.index_add.default,
     (*of(F32), 0, ROWS, of(F64)[0][:2]), {}),
    ("rows that do not fit, by an overload", "do not fit", aten.index_add.default,
     (SQUARE, 0, ROWS, SQUARE), {}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: CASES[n][0])
def test_reasons(number: int) -> None:
    _, reason, target, args, kwargs = CASES[number]
    node = call_of(target, *args, **kwargs)
    module = fx.GraphModule({}, node.graph)
    found = left_to_eager(module) or refused_call(module)
    assert found.startswith(node.name) if reason else not found, found
    assert reason in found


def test_the_first_call_that_is_refused_is_named() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.ones(3, dtype=I64)
    graph.placeholder("index_select")  # called so by the user, and no call
    graph.call_module("layer", (x,))
    graph.call_method("mul_", (x, 2))
    graph.call_method("mul_", (x, 1.5))
    graph.call_method("addcdiv", (x, x, x))
    module = fx.GraphModule({"layer": torch.nn.Identity()}, graph)
    assert refused_call(module) == "mul__1 has a result that its tensor cannot hold"


def test_whose_a_call_is() -> None:
    """A custom operator may be called as one of torch's is, by an overload of it, too."""
    with torch.library._scoped_library("fusec_calls", "FRAGMENT") as library:
        library.define("index_add(Tensor x, Tensor y) -> Tensor")
        own = torch.ops.fusec_calls.index_add
        assert [is_torchs(each) for each in (own, own.default)] == [False, False]
        assert name_of(own) == name_of(own.default) == "index_add"
    for each in (aten.index_add, aten.index_add.default, torch.index_add, "index_add"):
        assert is_torchs(each)
        assert name_of(each) == "index_add"
    assert name_of(3) == ""


@pytest.mark.parametrize("place", range(3))
def test_a_block_of_autocast_may_convert_types(place: int) -> None:
    """What is called in it is not judged; what is called before it and after it is."""
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    x.meta["example_value"], y.meta["example_value"] = of(F32, F64)

    def step(at: int) -> None:
        if at == place:
            graph.call_function(torch.dot, (x, y)).meta["example_value"] = torch.tensor(1.0)

    step(0)
    entered = graph.call_function(_enter_autocast, ("cpu", None, True, None))
    step(1)
    graph.call_function(_exit_autocast, (entered,))
    step(2)
    assert bool(refused_call(fx.GraphModule({}, graph))) == (place != 1)


@pytest.mark.parametrize("within", [False, True])
def test_a_block_that_switches_autocast_off(within: bool) -> None:
    """A product that nobody uses raises there as in eager: tracing leaves it out."""
    weight = torch.ones(4, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=within):
            y = F.linear(x, weight)
            with torch.autocast("cpu", enabled=False):
                F.linear(y.bfloat16(), weight).sum()
            return y * 2

    for called_in in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=called_in):
            for call in (function, fusec.compile(function)):
                with pytest.raises(RuntimeError, match="same dtype"):
                    call(torch.ones(4, 4))


def test_autocast_converts_again_where_a_block_ends() -> None:
    weight = torch.ones(4, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = F.linear(x, weight)
            with torch.autocast("cpu", enabled=False):
                z = y * 2
            return F.linear(z, weight) + F.linear(x, weight)

    compiled = fusec.compile(function)
    torch.testing.assert_close(compiled(torch.ones(4, 4)), function(torch.ones(4, 4)))
    assert not compiled.graphs[0].fallback


def test_types_that_nobody_converts() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    x.meta["example_value"], y.meta["example_value"] = of(F32, F64)
    graph.call_function(torch.dot, (x, y)).meta["example_value"] = torch.tensor(1.0)
    assert NONE in refused_call(fx.GraphModule({}, graph))


def test_blocks_of_python_are_no_calls() -> None:
    graph = fx.Graph()
    x = graph.placeholder("index_add_")
    x.meta["example_value"] = torch.ones(3, dtype=BOOL)
    graph.get_attr("index_add_")
    graph.output(x)
    module = fx.GraphModule({"index_add_": torch.nn.Identity()}, graph)
    assert not left_to_eager(module)
