"""Attention in graphs made by hand: each condition under which it becomes one call."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from fusec.graph.facts.notes import said_of_captured
from fusec.graph.simplify.written_attention import attend_at_once
from support.captured import Captured

F32, F64, HALF, BOOL = torch.float32, torch.float64, torch.float16, torch.bool
Build = Callable[..., fx.Node]
LOW = -math.inf


def same(_: Captured, node: fx.Node) -> fx.Node:
    return node


def along_rows(c: Captured, scores: fx.Node) -> fx.Node:
    return c.call("softmax", scores, -1)


def turned(c: Captured, key: fx.Node) -> fx.Node:
    return c.call("transpose", key, -2, -1)


def written(
    scores: Build = same,
    softmax: Build = along_rows,
    weights: Build = same,
    query: Build = same,
    key: Build = turned,
    result: Build | None = None,
    product: Any = operator.matmul,
) -> Build:
    """Return what writes attention into a graph, changed in some places."""

    def build(c: Captured, q: fx.Node, k: fx.Node, v: fx.Node) -> fx.Node:
        multiplied = c.call(product, query(c, q), key(c, k))
        shares = weights(c, softmax(c, scores(c, multiplied)))
        return result(c, shares, v) if result else c.call(product, shares, v)

    return build


def step(target: Any, *args: Any, **kwargs: Any) -> Build:
    """Return what calls a function of a node and more."""
    return lambda c, node: c.call(target, node, *args, **kwargs)


def steps(*each: Build) -> Build:
    def build(c: Captured, node: fx.Node) -> fx.Node:
        for one in each:
            node = one(c, node)
        return node

    return build


def read_twice(build: Build) -> Build:
    """Let somebody else read the same."""

    def changed(c: Captured, node: fx.Node) -> fx.Node:
        found = build(c, node)
        c.call("sum", found)
        return found

    return changed


def later(c: Captured, rows: int = 4, dtype: torch.dtype = BOOL, columns: int = 4) -> fx.Node:
    """True where a key is after the query."""
    mask = c.call("triu", c.call(torch.ones, rows, columns), 1)
    return c.call("to", mask, dtype)


def seen(c: Captured) -> fx.Node:
    return c.call(operator.invert, later(c))


def filled(low: Any = LOW, **mask: Any) -> Build:
    return lambda c, s: c.call("masked_fill", s, later(c, **mask), low)


def chosen(c: Captured, s: fx.Node) -> fx.Node:
    return c.call(torch.where, seen(c), s, LOW)


def chosen_otherwise(c: Captured, s: fx.Node) -> fx.Node:
    return c.call(torch.where, later(c), LOW, s)


def added(c: Captured, s: fx.Node) -> fx.Node:
    zeros = c.call(torch.zeros, 4, 4)
    return c.call(operator.add, s, c.call("masked_fill", zeros, later(c), LOW))


def softmax_of(*args: Any, target: Any = F.softmax, **kwargs: Any) -> Build:
    return step(target, *args, **kwargs)


def double_query(c: Captured, q: fx.Node) -> fx.Node:
    return c.call(operator.mul, q, 2)


IS: dict[str, tuple[Build, float, bool]] = {
    "plain": (written(), 1, False),
    "torch.bmm and torch.softmax": (
        written(product=torch.matmul, softmax=softmax_of(-1, target=torch.softmax)),
        1,
        False,
    ),
    "methods": (written(product="matmul"), 1, False),
    "divided": (written(step(operator.truediv, 4)), 0.25, False),
    "divided by a function": (written(step(torch.div, 4)), 0.25, False),
    "times a number": (written(step("mul", 0.5)), 0.5, False),
    "a number times": (written(lambda c, s: c.call(operator.mul, 0.5, s)), 0.5, False),
    "times two numbers": (written(steps(step("mul", 0.5), step("div", 4.0))), 0.125, False),
    "the query twice": (written(query=double_query), 2, False),
    "the query twice, scores thrice": (written(step("mul", 3), query=double_query), 6, False),
    "the query twice, which others read": (written(query=read_twice(double_query)), 1, False),
    "a query that was added to": (written(query=step("add", 1)), 1, False),
    "a query that was negated": (written(query=step("neg")), 1, False),
    "a key's mT": (written(key=lambda c, k: c.call(getattr, k, "mT")), 1, False),
    "a key turned by axes": (written(key=step(torch.swapaxes, 3, 2)), 1, False),
    "over the last dimension": (written(softmax=softmax_of(3)), 1, False),
    "over a dimension by name": (written(softmax=softmax_of(dim=-1)), 1, False),
    "in float32": (written(softmax=softmax_of(dim=-1, dtype=F32)), 1, False),
    "no type": (written(softmax=softmax_of(dim=-1, dtype=None)), 1, False),
    "converted": (written(weights=step("to", F32)), 1, False),
    "dropout at rest": (written(weights=step(F.dropout, 0.3, False)), 1, False),
    "dropout at rest, by name": (written(weights=step(F.dropout, training=False)), 1, False),
    "dropout of nothing": (written(weights=step(F.dropout, p=0.0)), 1, False),
    "dropout and conversion": (
        written(weights=steps(step("to", F32), step(F.dropout, 0.3, False))),
        1,
        False,
    ),
    "filled": (written(filled()), 1, True),
    "filled by a function": (
        written(lambda c, s: c.call(torch.masked_fill, s, later(c), LOW)),
        1,
        True,
    ),
    "filled with a low number": (written(filled(-1e30)), 1, True),
    "filled nowhere": (
        written(lambda c, s: c.call("masked_fill", s, c.call(torch.zeros, 4, 4, dtype=BOOL), LOW)),
        1,
        False,
    ),
    "filled and scaled": (written(steps(step("mul", 0.5), filled())), 0.5, True),
    "chosen": (written(chosen), 1, True),
    "chosen otherwise": (written(chosen_otherwise), 1, True),
    "added": (written(added), 1, True),
}  # fmt: skip


def bad_mask(c: Captured, s: fx.Node) -> fx.Node:
    return c.call("masked_fill", s, c.call("to", c.call("triu", c.call(torch.ones, 4, 4), 2), BOOL),
                  LOW)  # fmt: skip


IS_NOT: dict[str, Build] = {
    "no softmax": written(softmax=step("sigmoid")),
    "no product": written(result=lambda c, w, v: c.call(operator.add, c.call("sum", w), v)),
    "a product by name": written(result=lambda c, w, v: c.call(torch.matmul, w, other=v)),
    "weights that others read": written(weights=read_twice(same)),
    "converted weights that others read": written(weights=read_twice(step("to", F32))),
    "scores that others read": written(scores=read_twice(same)),
    "scaled scores that others read": written(scores=read_twice(step("mul", 2))),
    "over columns": written(softmax=softmax_of(-2)),
    "over heads": written(softmax=softmax_of(1)),
    "over rows in double": written(softmax=softmax_of(dim=-1, dtype=F64),
                                   weights=step("to", F32)),
    "over rows, and more by place": written(softmax=softmax_of(-1, 3)),
    "dropout": written(weights=step(F.dropout, 0.3, True)),
    "dropout as it is called": written(weights=step(F.dropout)),
    "dropout with one half": written(weights=step(F.dropout, 0.5)),
    "weights to somewhere": written(weights=step("to", "cpu")),
    "weights to somewhere in a type": written(weights=step("to", "cpu", F32)),
    "weights with more": written(weights=step("add", 1)),
    "weights times nothing": written(weights=step("mul", 0)),
    "a bias": written(scores=step("add", 1.0)),
    "scores times a tensor": written(scores=lambda c, s: c.call("mul", s, c.input(torch.ones(4)))),
    "scores times True": written(scores=step("mul", True)),
    "scores times nothing": written(scores=step("mul", 0.0)),
    "scores times a million": written(scores=step("mul", 1e6)),
    "scores times a millionth": written(scores=step("mul", 1e-6)),
    "scores divided and rounded": written(
        lambda c, s: c.call(torch.div, s, 4, rounding_mode="floor")),
    "a query by name": written(scores=lambda c, s: c.call(
        torch.matmul, s.args[0], other=s.args[1])),
    "a product into a tensor": written(result=lambda c, w, v: c.call(
        torch.matmul, w, v, out=c.call(torch.empty, 2, 3, 4, 8))),
    "a softmax into a tensor": written(softmax=lambda c, s: c.call(
        torch.softmax, s, -1, out=c.call(torch.empty, 2, 3, 4, 4))),
    "a softmax by name": written(softmax=lambda c, s: c.call(torch.softmax, input=s, dim=-1)),
    "weights of whole numbers": written(weights=steps(step("to", torch.int64), step("to", F32))),
    "weights in double": written(weights=steps(step("to", F64), step("to", F32))),
    "the power of scores": written(scores=step(operator.pow, 2)),
    "no turned key": written(key=step("reshape", 2, 3, 8, 4)),
    "a key turned otherwise": written(key=steps(turned, step("transpose", 0, 0))),
    "a key's T of heads": written(key=steps(step("transpose", -1, -2), step("contiguous"))),
    "a key's H": written(key=lambda c, k: c.call(getattr, k, "mH")),
    "filled with zeros": written(filled(0.0)),
    "filled with a number not so low": written(filled(-9e29)),
    "filled with a tensor": written(
        lambda c, s: c.call("masked_fill", s, later(c), c.input(torch.tensor(LOW)))),
    "filled, which others read": written(read_twice(filled())),
    "filled by a mask of one row": written(filled(rows=1)),
    "filled by a window": written(bad_mask),
    "filled by an input": written(
        lambda c, s: c.call("masked_fill", s, c.input(torch.ones(4, 4).triu(1) > 0), LOW)),
    "filled by name": written(lambda c, s: c.call("masked_fill", s, mask=later(c), value=LOW)),
    "chosen of numbers": written(
        lambda c, s: c.call(torch.where, later(c, dtype=torch.uint8), s, LOW)),
    "chosen of two tensors": written(lambda c, s: c.call(torch.where, seen(c), s, s)),
    "added a number": written(lambda c, s: c.call(operator.add, s, LOW)),
    "added a mask of bools": written(lambda c, s: c.call(operator.add, s, seen(c))),
    "added the wrong way round": written(
        lambda c, s: c.call(operator.add, s, c.call("to", later(c), F32))),
    "added by a factor": written(
        lambda c, s: c.call(torch.add, s, c.call(torch.zeros, 4, 4), alpha=2)),
    "subtracted": written(lambda c, s: c.call(operator.sub, s, c.call(torch.zeros, 4, 4))),
}  # fmt: skip


def made(build: Build, *shapes: tuple[int, ...], dtype: torch.dtype = F32) -> fx.GraphModule:
    torch.manual_seed(0)
    c = Captured()
    given = shapes or ((2, 3, 4, 8),) * 3
    inputs = [c.input(torch.randn(shape).to(dtype)) for shape in given]
    return c.module(build(c, *inputs))


def calls(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.target is F.scaled_dot_product_attention]


def run(module: fx.GraphModule) -> Any:
    given = [n.meta["example_value"] for n in module.graph.nodes if n.op == "placeholder"]
    return module(*given)[0]


@pytest.mark.parametrize("name", IS)
def test_is_attention(name: str) -> None:
    build, scale, causal = IS[name]
    before = made(build)
    after = attend_at_once(before, interpreted=True)
    (call,) = calls(after)
    assert call.kwargs == {"scale": scale, "is_causal": causal}
    assert not calls(before)
    torch.testing.assert_close(run(after), run(before))
    assert run(after).is_contiguous()


@pytest.mark.parametrize("name", IS_NOT)
def test_is_none(name: str) -> None:
    module = made(IS_NOT[name])
    assert attend_at_once(module, interpreted=True) is module


@pytest.mark.parametrize(
    ("shapes", "dtype", "found"),
    [
        (((2, 3, 4, 8),) * 3, HALF, True),
        (((2, 3, 4, 8),) * 3, torch.bfloat16, True),
        (((2, 3, 4, 8),) * 3, F64, False),
        (((3, 4, 8),) * 3, F32, True),
        (((4, 8),) * 3, F32, False),
        (((2, 2, 3, 4, 8),) * 3, F32, False),
        (((2, 3, 4, 256),) * 3, F32, True),
        (((2, 3, 4, 257),) * 3, F32, False),
        (((2, 3, 4, 0),) * 3, F32, False),
        (((2, 3, 4, 1),) * 3, F32, True),
        (((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 8)), F32, True),
        (((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 7)), F32, False),  # ATen's fast kernels refuse
        (((2, 3, 4, 8), (2, 1, 4, 8), (2, 3, 4, 8)), F32, False),
        (((2, 3, 4, 8), (2, 3, 4, 8), (2, 1, 4, 8)), F32, False),
        (((2, 3, 4, 8), (3, 4, 8), (2, 3, 4, 8)), F32, False),
    ],
    ids=str,
)
def test_sizes_and_types(shapes: Any, dtype: torch.dtype, found: bool) -> None:
    build = written(softmax=softmax_of(dim=-1))
    module = made(build, *shapes, dtype=dtype)
    after = attend_at_once(module, interpreted=True)
    assert bool(calls(after)) is found
    if found:
        (call,) = calls(after)
        flat = len(shapes[0]) == 3  # ATen's fast attentions are of four dimensions
        assert (getattr(call.args[0], "target", None) == "unsqueeze") is flat
        assert len(list(after.graph.find_nodes(op="call_method", target="squeeze"))) == flat
        torch.testing.assert_close(run(after), run(module), rtol=2e-2, atol=2e-2)
    assert attend_at_once(module, interpreted=False) is module  # on a processor


def test_results_of_another_type_stay() -> None:
    wide = written(softmax=softmax_of(dim=-1, dtype=F32), result=lambda c, w, v: c.call(
        operator.matmul, w, c.call("float", v)))  # fmt: skip
    module = made(wide, dtype=HALF)
    assert attend_at_once(module, interpreted=True) is module


def test_one_may_read_another() -> None:
    def twice(c: Captured, q: fx.Node, k: fx.Node, v: fx.Node) -> fx.Node:
        return written()(c, written(filled())(c, q, k, v), k, v)

    module = made(twice)
    after = attend_at_once(module, interpreted=True)
    assert [call.kwargs["is_causal"] for call in calls(after)] == [True, False]
    torch.testing.assert_close(run(after), run(module))


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (written(scores=step("add", 1.0)), "add"),
        (written(scores=steps(step("mul", 2), step(torch.tanh), step("mul", 2))), "tanh"),
        (written(scores=steps(step("tanh"), step("exp"))), ""),  # what it changes are no scores
        (written(softmax=softmax_of(-2), scores=step("add", 1.0)), ""),
        (written(weights=read_twice(same)), ""),
        (written(softmax=step("sigmoid"), scores=step("add", 1.0)), ""),
        (written(key=step("reshape", 2, 3, 8, 4)), ""),  # the product itself
        (written(), ""),
    ],
)
def test_what_changes_scores_is_said(build: Build, name: str) -> None:
    for interpreted in (True, False):
        module = made(build)
        attend_at_once(module, interpreted=interpreted)
        said = [text for n in module.graph.nodes if (text := said_of_captured(n))]
        wanted = [f"left as written: {name} changes scores before their softmax"]
        assert said == (wanted if name and interpreted else [])


UPDATES: dict[str, Callable[[Captured, fx.Node], object]] = {
    "a method": lambda c, q: c.call("add_", q, 1),
    "an operator": lambda c, q: c.call(operator.imul, q, 2),
    "an assignment": lambda c, q: c.call(operator.setitem, q, 0, 3.0),
    "a function": lambda c, q: c.call(torch.relu_, q),
    "out=": lambda c, q: c.call(torch.add, q, 1, out=q),
}


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("where", ["before", "of the query", "between", "after"])
def test_updates_happen_when_they_did(name: str, where: str) -> None:
    """That nobody reads their results makes them no dead code."""
    c = Captured()
    q, k, v = (c.input(torch.randn(2, 3, 4, 8)) for _ in range(3))
    if where == "before":
        UPDATES[name](c, q)
    scaled = c.call(operator.mul, c.call(operator.mul, q, 2), 0.3)
    if where == "of the query":
        UPDATES[name](c, q)
    shares = c.call("softmax", c.call(operator.matmul, scaled, turned(c, k)), -1)
    if where == "between":
        UPDATES[name](c, q)
    result = c.call(operator.matmul, shares, v)
    if where == "after":
        UPDATES[name](c, q)
    module = c.module(result)
    after = attend_at_once(module, interpreted=True)
    assert (after is module) is (where in ("of the query", "between"))
    given = [torch.randn(2, 3, 4, 8) for _ in range(3)]
    ours, theirs = ([each.clone() for each in given] for _ in range(2))
    torch.testing.assert_close(after(*ours), module(*theirs))
    torch.testing.assert_close(ours, theirs)


def test_what_is_recorded_for_gradients_stays() -> None:
    c = Captured()
    q, k, v = (c.input(torch.randn(2, 3, 4, 8)) for _ in range(3))
    c.graph.call_function(torch._C._set_grad_enabled, (False,))
    shares = c.call("softmax", c.call(operator.matmul, q, turned(c, k)), -1)
    c.graph.call_function(torch._C._set_grad_enabled, (True,))
    module = c.module(c.call(operator.matmul, shares, v))
    assert attend_at_once(module, interpreted=True) is module
