"""Attention masks made of positions alone: what they mean is seen, anything else is left alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import fusec
from fusec.graph.simplify.attention_masks import simplify_attention_masks

LENGTH = 6


def positions() -> tuple[torch.Tensor, torch.Tensor]:
    line = torch.arange(LENGTH)
    return line[None, None, :, None], line[None, None, None, :]


def everything(x):
    rows, _ = positions()
    return (rows >= 0).expand(x.shape[0], -1, LENGTH, LENGTH)


def causal(x):
    rows, columns = positions()
    return rows.new_ones((), dtype=torch.bool) & (columns <= rows).expand(x.shape[0], -1, -1, -1)


def added_causal(x):
    allowed = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return torch.zeros(LENGTH, LENGTH).masked_fill(~allowed, -torch.inf)


def nothing_added(x):
    return torch.zeros(LENGTH, LENGTH)


def window(x):
    rows, columns = positions()
    return (columns <= rows) & (columns > rows - 3)


def shifted(x):
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(1)


def one_position_apart(x):
    rows, columns = positions()
    return torch.cat([(columns <= rows), (columns <= rows + 1)], 1)


def finite(x):
    return torch.zeros(LENGTH, LENGTH).masked_fill(~torch.eye(LENGTH, dtype=torch.bool), -1e9)


def changed_later(x):
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    mask[:, 2] = False
    return mask


def changed_through_a_view(x):
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    mask.view(-1).logical_and_(torch.arange(LENGTH * LENGTH) % 5 != 0)
    return mask


def of_an_input(x):
    return (x[:, :, :, 0] > -10)[:, :1, None, :] & causal(x)


def drawn(x):
    return torch.rand(LENGTH, LENGTH) >= 0


def attend(make):
    def function(x):
        return F.scaled_dot_product_attention(x, x * 2, x + 1, attn_mask=make(x))

    return function


def captured(function, x) -> fx.GraphModule:
    """Return what TorchDynamo captures."""
    graphs: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, _: object) -> object:
        graphs.append(module)
        return module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=keep)(x)
    (graph,) = graphs
    return graph


def call_of(module: fx.GraphModule) -> fx.Node:
    (node,) = [n for n in module.graph.nodes if n.target is F.scaled_dot_product_attention]
    return node


@pytest.mark.parametrize(
    ("make", "is_causal"),
    [(everything, False), (causal, True), (added_causal, True), (nothing_added, False)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mask_that_says_nothing_goes(make, is_causal) -> None:
    x = torch.randn(2, 3, LENGTH, 8)
    before = captured(attend(make), x)
    text = before.code
    after = simplify_attention_masks(before)
    call = call_of(after)
    assert call.kwargs["attn_mask"] is None
    assert call.kwargs["is_causal"] is is_causal
    assert len(after.graph.nodes) < len(before.graph.nodes)  # what made it is gone as well
    after.graph.lint()
    assert before.code == text
    for module in (before, after):
        torch.testing.assert_close(module(x)[0], attend(make)(x))
    torch.testing.assert_close(fusec.compile(attend(make))(x), attend(make)(x))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "make",
    [
        window,
        shifted,
        one_position_apart,
        finite,
        changed_later,
        changed_through_a_view,
        of_an_input,
        drawn,
    ],
    ids=lambda make: make.__name__,
)
def test_any_other_mask_stays(make) -> None:
    x = torch.randn(2, 2, LENGTH, 8)
    module = captured(attend(make), x)
    assert simplify_attention_masks(module) is module
    torch.testing.assert_close(fusec.compile(attend(make))(x), attend(make)(x))


def test_gradients_are_as_in_eager() -> None:
    x = torch.randn(2, 2, LENGTH, 8, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    attend(causal)(x).square().sum().backward()
    compiled = fusec.compile(attend(causal))
    compiled(y).square().sum().backward()
    torch.testing.assert_close(y.grad, x.grad)


def test_sizes_that_are_symbols_are_left_alone() -> None:
    def function(x):
        line = torch.arange(x.shape[2])
        return F.scaled_dot_product_attention(x, x, x, attn_mask=line[None] <= line[:, None])

    compiled = fusec.compile(function, dynamic=True)
    for length in (5, 7, 9):
        x = torch.randn(2, 2, length, 8)
        torch.testing.assert_close(compiled(x), function(x))
    assert len(compiled.graphs) == 1


def test_a_call_that_is_causal_already_and_one_without_a_mask_are_left_alone() -> None:
    x = torch.randn(2, 2, LENGTH, 8)
    for given in ({"is_causal": True}, {}):
        module = captured(
            lambda x, given=given: F.scaled_dot_product_attention(x, x, x, **given), x
        )
        assert simplify_attention_masks(module) is module
