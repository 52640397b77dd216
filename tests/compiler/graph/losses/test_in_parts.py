"""Losses in graphs made by hand: each condition under which they are computed in parts."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from fusec.graph.facts.notes import said_of_captured
from fusec.graph.losses.in_parts import compute_in_parts
from fusec.graph.losses.linear_cross_entropy import (
    _FACTOR,
    _scaled,
    gradients_of_part,
    linear_cross_entropy,
    losses_of_part,
    pieces_of,
    rows_of_part,
)
from support.captured import Captured

ROWS, WIDTH, COLUMNS = 12, 6, 10
I64, HALF, F32 = torch.int64, torch.float16, torch.float32
Build = Callable[[Captured], fx.Node]
Change = Callable[[Captured, fx.Node], fx.Node]


def tensor(c: Captured, *shape: int, dtype: torch.dtype = F32) -> fx.Node:
    return c.input(torch.randn(shape).to(dtype))


def targets(c: Captured, count: int = ROWS, dtype: torch.dtype = I64) -> fx.Node:
    return c.input((torch.arange(count) * 7 % COLUMNS).to(dtype))


def layer(c: Captured, *shape: int, dtype: torch.dtype = F32) -> fx.Node:
    x = tensor(c, *(shape or (ROWS,)), WIDTH, dtype=dtype)
    return c.call(F.linear, x, tensor(c, COLUMNS, WIDTH, dtype=dtype))


def loss(made: Build = layer, *between: Change, right: Build = targets, **given: Any) -> Build:
    def build(c: Captured) -> fx.Node:
        logits = made(c)
        for each in between:
            logits = each(c, logits)
        return c.call(F.cross_entropy, logits, right(c), **given)

    return build


def step(target: Any, *args: Any, **kwargs: Any) -> Change:
    return lambda c, node: c.call(target, node, *args, **kwargs)


def take(*index: Any) -> Change:
    return step(operator.getitem, index if len(index) > 1 else index[0])


def read_twice(c: Captured, node: fx.Node) -> fx.Node:
    c.call("sum", node)
    return node


def product(target: Any, **kwargs: Any) -> Build:
    return lambda c: c.call(target, tensor(c, ROWS, WIDTH), tensor(c, WIDTH, COLUMNS), **kwargs)


def three(c: Captured) -> fx.Node:
    return layer(c, 3, 4)


def some(count: int) -> Build:
    return lambda c: targets(c, count)


FLAT, ALL = step("view", -1, COLUMNS), slice(None)
IS: dict[str, Build] = {
    "plain": loss(),
    "a bias": loss(lambda c: c.call(
        F.linear, tensor(c, ROWS, WIDTH), tensor(c, COLUMNS, WIDTH), bias=tensor(c, COLUMNS))),
    "a bias by place": loss(lambda c: c.call(
        torch._C._nn.linear, tensor(c, ROWS, WIDTH), tensor(c, COLUMNS, WIDTH), None)),
    "a product": loss(product(operator.matmul)),
    "a product by a function": loss(product(torch.mm)),
    "a product by a method": loss(product("matmul")),
    "summed": loss(reduction="sum"),
    "ignoring": loss(ignore_index=7),
    "smoothed": loss(label_smoothing=0.25),
    "widened": loss(layer, step("float")),
    "widened by a type": loss(layer, step("to", F32)),
    "bfloat16": loss(lambda c: layer(c, dtype=torch.bfloat16), step("float")),
    "bfloat16, narrow": loss(lambda c: layer(c, dtype=torch.bfloat16)),
    "laid flat": loss(three, FLAT),
    "laid flat by a function": loss(three, step(torch.reshape, (-1, COLUMNS))),
    "flattened": loss(three, step("flatten", 0, 1)),
    "some rows": loss(layer, take(slice(2, 9)), right=some(7)),
    "rows, all columns": loss(layer, take(slice(2, 9), ALL), right=some(7)),
    "rows, and the rest": loss(layer, take(slice(2, 9), ...), right=some(7)),
    "the rest": loss(layer, take(..., ALL)),
    "shifted": loss(three, take(ALL, slice(None, -1)), step("contiguous"), FLAT, right=some(9)),
    "shifted, and the rest": loss(three, take(..., slice(None, -1), ALL),
                                   step("reshape", -1, COLUMNS), right=some(9)),
}  # fmt: skip
LAYER, ELSEWHERE = "not a linear layer", "read elsewhere"
IS_NOT: dict[str, tuple[str, Build]] = {
    "for each row": ("a loss for each row", loss(reduction="none")),
    "reduced as of old": ("a loss for each row", loss(reduce=True)),
    "averaged as of old": ("columns have weights", loss(size_average=True)),
    "weights": ("columns have weights", lambda c: c.call(
        F.cross_entropy, layer(c), targets(c), tensor(c, COLUMNS))),
    "a computed number": ("is computed", lambda c: c.call(
        F.cross_entropy, layer(c), targets(c), ignore_index=c.input(3))),
    "shares of all columns": ("one column for each row", loss(
        right=lambda c: tensor(c, ROWS, COLUMNS))),
    "images": ("one column for each row", lambda c: c.call(
        F.cross_entropy, c.call("view", three(c), 3, COLUMNS, 4), c.call(
            "view", targets(c), 3, 4))),
    "one row": ("one column for each row", lambda c: c.call(
        F.cross_entropy, c.call(operator.getitem, layer(c), 0), c.input(torch.tensor(3)))),
    "halves": ("gradients of half precision", loss(lambda c: layer(c, dtype=HALF))),
    "double": ("gradients of half precision", loss(lambda c: layer(c, dtype=torch.float64))),
    "read elsewhere": (ELSEWHERE, loss(layer, read_twice)),
    "widened and read elsewhere": (ELSEWHERE, loss(layer, step("float"), read_twice)),
    "read elsewhere before": (ELSEWHERE, loss(layer, read_twice, step("float"))),
    "no layer": (LAYER, loss(lambda c: tensor(c, ROWS, COLUMNS))),
    "changed": (LAYER, loss(layer, step("add", 1))),
    "converted to double": (LAYER, loss(layer, step("double"))),
    "converted with more": (LAYER, loss(layer, step("to", F32, copy=True))),
    "cut": (LAYER, loss(lambda c: c.call(
        F.linear, tensor(c, ROWS, WIDTH), tensor(c, COLUMNS + 2, WIDTH)), take(ALL, slice(10)))),
    "rows by places": (LAYER, loss(layer, take(list(range(ROWS))))),
    "the columns' rest": (LAYER, loss(layer, take(..., slice(0, COLUMNS)))),
    "one more dimension": (LAYER, loss(three, take(None), FLAT)),
    "laid anew, then taken": ("after they were laid anew",
                              loss(three, FLAT, take(slice(3)), right=some(3))),
    "a product of more": (LAYER, loss(lambda c: c.call(
        torch.matmul, tensor(c, 3, 4, WIDTH), tensor(c, 3, WIDTH, COLUMNS)), FLAT)),
    "a product by name": (LAYER, loss(lambda c: c.call(
        torch.matmul, tensor(c, ROWS, WIDTH), other=tensor(c, WIDTH, COLUMNS)))),
    "an update between": ("updated", loss(layer, lambda c, n: (
        c.call("zero_", n.args[0]), c.call("float", n))[1])),
}  # fmt: skip


def made(build: Build) -> fx.GraphModule:
    torch.manual_seed(0)
    c = Captured()
    return c.module(build(c))


def given(module: fx.GraphModule) -> list[Any]:
    return [n.meta["example_value"] for n in module.graph.nodes if n.op == "placeholder"]


def merged(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.target is linear_cross_entropy]


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", IS)
def test_in_parts(name: str) -> None:
    module = made(IS[name])
    after = compute_in_parts(module, 100)
    assert len(merged(after)) == 1
    assert not any(n.target is F.cross_entropy for n in after.graph.nodes)
    (found,), (wanted,) = after(*given(module)), module(*given(module))
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted)
    (said,) = filter(None, map(said_of_captured, merged(after)))
    assert " rows at a time: " in said


@pytest.mark.parametrize("name", IS_NOT)
def test_whole(name: str) -> None:
    reason, build = IS_NOT[name]
    module = made(build)
    assert compute_in_parts(module, 0) is module
    (said,) = filter(None, map(said_of_captured, module.graph.nodes))
    assert said.startswith("whole, whatever the budget: ")
    assert reason in said


def test_where_the_reason_is_said() -> None:
    """Of the layer, whose call shows it; of the loss where there is no layer."""
    module = made(loss(layer, step("float"), reduction="none"))
    compute_in_parts(module, 0)
    assert [n.target for n in module.graph.nodes if said_of_captured(n)] == [F.linear]
    module = made(loss(layer, step("add", 1)))
    compute_in_parts(module, 0)
    assert [n.target for n in module.graph.nodes if said_of_captured(n)] == [F.cross_entropy]


def test_a_budget_that_is_enough() -> None:
    module = made(loss())
    assert compute_in_parts(module, ROWS * COLUMNS * 4) is module
    (call,) = merged(compute_in_parts(module, ROWS * COLUMNS * 4 - 1))
    assert said_of_captured(call) == (
        "11 of 12 rows at a time: 440 bytes of logits, not 480 bytes; the budget is 479 bytes"
    )
    (call,) = merged(compute_in_parts(made(loss(lambda c: c.call(
        F.linear, tensor(c, 1 << 11, WIDTH), tensor(c, 1 << 9, WIDTH)), right=some(1 << 11))),
        3 << 10))  # fmt: skip
    assert said_of_captured(call) == (
        "1 of 2048 rows at a time: 2 KiB of logits, not 4 MiB; the budget is 3 KiB"
    )


def test_updates_are_no_dead_code() -> None:
    c = Captured()
    x, w, right = tensor(c, ROWS, WIDTH), tensor(c, COLUMNS, WIDTH), targets(c)
    c.call("mul_", x, 2)
    first = c.call(F.cross_entropy, c.call(F.linear, x, w), right)
    c.call("zero_", x)
    module = c.module(first)
    after = compute_in_parts(module, 100)
    assert merged(after)
    ours, theirs = ([each.clone() for each in given(module)] for _ in range(2))
    torch.testing.assert_close(after(*ours), module(*theirs))
    torch.testing.assert_close(ours, theirs)
    assert not ours[0].any()


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
def test_what_becomes_of_a_part(smoothing: float) -> None:
    torch.manual_seed(0)
    logits, right = torch.randn(5, 7, dtype=torch.float64).float(), torch.tensor([0, 6, 3, 3, 1])
    kept = torch.tensor([True, True, False, True, True])
    exact = logits.double().requires_grad_()
    wanted = F.cross_entropy(exact, right, reduction="none", label_smoothing=smoothing)
    wanted = torch.where(kept, wanted, 0.0)
    wanted.sum().backward()
    picked = logits.gather(1, right[:, None])[:, 0]
    padded = F.pad(logits, (0, 3))  # columns that there are not
    columns = logits.shape[1]
    found, total = losses_of_part(padded, picked, kept, smoothing, columns)
    torch.testing.assert_close(found.double(), wanted.detach(), rtol=1e-5, atol=1e-6)
    gradients_of_part(padded, total, right, kept, smoothing, torch.tensor(0.5), columns)
    assert exact.grad is not None
    torch.testing.assert_close(padded[:, :columns].double(), 0.5 * exact.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "columns", "budget", "step"),
    [
        (10, 10, 400, 10),  # all of it
        (10, 10, 399, 9),
        (10, 10, 40, 1),
        (10, 10, 39, 1),
        (0, 10, 400, 1),
        (10, 0, 4, 4),
        (1000, 1, 4 * 127, 127),
        (1000, 1, 4 * 128, 128),
        (1000, 1, 4 * 129, 128),
        (1000, 1, 4 * 255, 128),
        (1000, 1, 4 * 256, 256),
        (1000, 1, 4 * 999, 512),  # two of one size
        (1024, 1, 4 * 1023, 512),
        (1100, 1, 4 * 1099, 640),
        (130, 1, 4 * 129, 128),
        (200, 1, 4 * 100, 100),
    ],
)
def test_rows_of_a_part(rows: int, columns: int, budget: int, step: int) -> None:
    assert rows_of_part(rows, columns, 4, budget) == step


@pytest.mark.parametrize("columns", [0, 1, 63, 64, 65, 128, 50257])
def test_pieces_are_whole_lines_and_the_rest(columns: int) -> None:
    pieces = pieces_of(columns)
    assert [c for each in pieces for c in range(columns)[each]] == list(range(columns))
    assert all((each.stop - each.start) % 64 == 0 for each in pieces[:-1])
    assert len(pieces) == 1 + (columns > 64 and columns % 64 != 0)


@pytest.mark.parametrize(
    ("before", "wanted", "factor"),
    [(None, 6.0, 6.0), (2.0, 6.0, 3.0), (2.0, 2.0, 1.0), (0.0, 0.0, 1.0), (4.0, 0.0, 0.0)],
)
def test_what_a_gradient_was_multiplied_by_already(
    before: float | None, wanted: float, factor: float
) -> None:
    kept = torch.randn(3, 5)
    if before is not None:
        setattr(kept, _FACTOR, torch.tensor([before]))
    found = _scaled(kept, torch.tensor(wanted))
    assert torch.equal(found, kept * factor)
