"""Masks in graphs made by hand: whose value is known, and what it means."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fusec.graph.simplify.attention_masks import kind_of, known_value, simplify_attention_masks
from support.captured import Captured

BOOL, INF = torch.bool, torch.inf
Build = Callable[[Captured], fx.Node]


def ones(c: Captured) -> fx.Node:
    return c.call(torch.ones, 4, 4)


def changed(*names: Any) -> Build:
    """Return what makes a mask that something is done to, which returns it or a part of it."""

    def build(c: Captured) -> fx.Node:
        mask = ones(c)
        for name, *args in names:
            c.call(name, mask, *args)
        return mask

    return build


def of_an_input(c: Captured) -> fx.Node:
    return c.call("new_ones", c.input(torch.ones(2)), (4, 4))


def written_to_a_view(c: Captured) -> fx.Node:
    mask = ones(c)
    c.call("zero_", c.call(operator.getitem, c.call("view", mask, 2, 8), 0))
    return mask


def written_by_out(c: Captured) -> fx.Node:
    mask, added = ones(c), c.input(torch.ones(4, 4))
    c.call(torch.nn.functional.threshold, added, 1.0, 2.0)
    c.call(torch.sigmoid, added, out=mask)
    return mask


def read_by_an_update(c: Captured) -> fx.Node:
    mask, other = ones(c), c.input(torch.ones(4, 4))
    c.call("mul_", other, mask)
    return mask


def listed(c: Captured) -> fx.Node:
    mask, other = ones(c), c.input(torch.ones(4, 4))
    c.call(torch._foreach_zero_, [other, mask])
    return mask


KNOWN: dict[str, Build] = {
    "ones": ones,
    "steps": lambda c: c.call(
        "to", c.call(operator.ge, c.call(torch.arange, 4), c.call(torch.full, (4, 1), 2)), BOOL
    ),
    "read": changed(("sum",), (torch.sigmoid,)),
    "read by an operator": changed((torch.ops.aten.sin.default,)),
    "read by an update": read_by_an_update,
    "some rows": lambda c: c.call(operator.getitem, ones(c), slice(0, 2)),
}
UNKNOWN: dict[str, Build] = {
    "an input": lambda c: c.input(torch.ones(4, 4)),
    "of an input": of_an_input,
    "random": lambda c: c.call(torch.rand, 4, 4),
    "random, by a method": lambda c: c.call("uniform_", ones(c)),
    "into something": lambda c: c.call(torch.add, ones(c), 1, out=ones(c)),
    "changed": changed(("fill_", 2)),
    "changed by an operator of Python": changed((operator.imul, 2)),
    "assigned": changed((operator.setitem, 0, 0.0)),
    "changed by a function": changed((torch.clamp_, 0, 1)),
    "changed by an operator": changed((torch.ops.aten.mul_.Tensor, 2)),
    "changed by operators": changed((torch.ops.aten.mul_, 2)),
    "changed in a view": written_to_a_view,
    "changed as a result": written_by_out,
    "changed in a list": listed,
    "large": lambda c: c.call("expand", c.call(torch.ones, 1, 1), 2**14, 2**13 + 1),
}


@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_what_is_known(name: str) -> None:
    c = Captured()
    mask = KNOWN[name](c) if name in KNOWN else UNKNOWN[name](c)
    c.graph.output(mask)
    found = known_value(mask)
    assert (found is not None) is (name in KNOWN)
    if found is not None:
        assert torch.equal(found, mask.meta["example_value"])


def test_a_mask_of_many_paths_is_walked_once() -> None:
    c = Captured()
    mask = ones(c)
    for _ in range(60):
        mask = c.call("mul", mask, mask)
    c.call("add_", c.input(torch.ones(4, 4)), 1)  # is no part of it
    assert torch.equal(known_value(mask), torch.ones(4, 4))  # type: ignore[arg-type]


def test_of_what_nothing_is_known() -> None:
    c = Captured()
    made = ones(c)
    rest: tuple[object, ...] = (4, torch.ones(4), torch.ones(()), torch.ones(4, 0), None)
    for shown in rest:
        made.meta["example_value"] = shown
        assert known_value(made) is None
    made.meta["example_value"] = torch.ones(4, 4)
    assert known_value(made) is not None


def test_the_largest_that_is_made() -> None:
    c = Captured()
    mask = c.call("expand", c.call(torch.ones, 1, 1), 2**14, 2**13)
    assert known_value(mask) is not None


def test_sizes_that_are_symbols_are_not_known() -> None:
    c = Captured()
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        shapes = mode.shape_env
        assert shapes is not None
        mask = c.graph.call_function(torch.ones, (4, 4))
        mask.meta["example_value"] = torch.empty(shapes.create_unbacked_symint(), 4)
        assert known_value(mask) is None
        later = c.graph.call_method("bool", (mask,))
        later.meta["example_value"] = torch.empty(4, 4)
        assert known_value(later) is None
    mask.meta["example_value"] = torch.empty(4, 4)
    assert known_value(later) is not None


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (torch.ones(3, 3) > 0, "all"),
        (torch.ones(3, 3).tril() > 0, "causal"),
        (torch.ones(2, 3, 3).tril() > 0, "causal"),
        (torch.ones(3, 3).triu() > 0, None),
        (torch.ones(3, 4).tril() > 0, None),
        (torch.ones(4, 3).tril() > 0, None),
        (torch.ones(3, 4) > 0, "all"),
        (torch.zeros(3, 3) > 0, None),
        (torch.zeros(3, 3), "all"),
        (torch.full((3, 3), -INF).triu(1), "causal"),
        (torch.full((3, 3), INF).triu(1), None),
        (torch.full((3, 3), -1e30).triu(1), None),
        (torch.full((3, 3), -INF).triu(1) - 1, None),
        (torch.stack([torch.ones(3, 3), torch.ones(3, 3).tril()]) > 0, None),
    ],
)
def test_meanings(mask: torch.Tensor, kind: str | None) -> None:
    assert kind_of(mask) == kind


def attending(mask: Build, **given: Any) -> fx.GraphModule:
    c = Captured()
    x = c.input(torch.randn(1, 1, 4, 8))
    masks = {"attn_mask": mask(c)} if mask is not None else {}
    return c.module(c.call(F.scaled_dot_product_attention, x, x, x, **masks, **given))


def causal(c: Captured) -> fx.Node:
    return c.call("bool", c.call("tril", ones(c)))


def everything(c: Captured) -> fx.Node:
    return c.call("bool", ones(c))


@pytest.mark.parametrize(("mask", "is_causal"), [(causal, True), (everything, False)])
def test_calls_say_it(mask: Build, is_causal: bool) -> None:
    before = attending(mask, scale=0.5)
    text = before.code
    after = simplify_attention_masks(before)
    assert before.code == text
    (x,) = after.graph.find_nodes(op="placeholder")
    (call,) = (n for n in after.graph.nodes if n.op == "call_function")  # what made it is gone
    given = {"query": x, "key": x, "value": x, "attn_mask": None, "is_causal": is_causal}
    assert dict(call.kwargs) == {**given, "scale": 0.5}
    assert not call.args
    value = torch.randn(1, 1, 4, 8)
    torch.testing.assert_close(after(value), before(value))


def test_two_calls_of_which_one_has_a_mask_that_stays() -> None:
    c = Captured()
    x, shared, other = c.input(torch.randn(1, 1, 4, 8)), causal(c), c.input(torch.ones(4, 4) > 0)
    c.call("sum", shared)
    first = c.call(F.scaled_dot_product_attention, x, x, x, shared)
    second = c.call(F.scaled_dot_product_attention, x, x, first, other)
    third = c.call(F.scaled_dot_product_attention, x, x, second, shared)
    before = c.module(third)
    after = simplify_attention_masks(before)
    kept = [n for n in after.graph.nodes if n.target is F.scaled_dot_product_attention]
    assert [n.kwargs.get("is_causal", n.args[3:]) for n in kept][::2] == [True, True]
    assert kept[1].args[3].op == "placeholder"
    assert after.graph.find_nodes(op="call_method", target="tril")  # somebody reads it
    given = torch.randn(1, 1, 4, 8), torch.ones(4, 4) > 0
    torch.testing.assert_close(after(*given), before(*given))


def test_calls_that_are_left_alone() -> None:
    for module in (
        attending(lambda c: c.input(torch.ones(4, 4) > 0)),
        attending(lambda c: None, is_causal=True),  # type: ignore[arg-type,return-value]
        attending(lambda c: c.call("bool", c.call("triu", ones(c)))),
    ):
        assert simplify_attention_masks(module) is module
    c = Captured()
    x = c.input(torch.randn(1, 1, 4, 8))
    node = c.graph.call_function(
        F.scaled_dot_product_attention, (x, x, x, everything(c)), {"is_causal": True}
    )
    module = c.module(node)  # eager refuses the two together
    assert simplify_attention_masks(module) is module
