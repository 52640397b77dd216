"""Updates for which tracing makes a tensor larger, graph by graph: nothing is compiled."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.exc import SkipFrame
from torch._subclasses.fake_tensor import FakeTensorMode

import fusec
from fusec.graph.refusals import grown
from support.captured import Captured

aten = torch.ops.aten

Build = Callable[[Captured, fx.Node, fx.Node], object]


@pytest.fixture(autouse=True)
def _nobody_asked_before() -> Iterator[None]:
    before = dict(grown._grow)
    grown._grow.clear()
    yield
    grown._grow.clear()
    grown._grow.update(before)


def reason_of(build: Build, size: tuple[int, ...] = (2, 4)) -> str:
    """Return what is said of a graph of a tensor of four elements and one of another size."""
    small, large = torch.rand(4), torch.rand(size)
    mode = FakeTensorMode()
    mode.cache_enabled = False
    with mode:
        c = Captured()
        x, y = c.input(mode.from_tensor(small)), c.input(mode.from_tensor(large))
        build(c, x, y)
        return grown.grown_in_tracing(c.module(), [small, large])


GROW: dict[str, Build] = {
    "a copy": lambda c, x, y: c.call("gt_", c.call("clone", x), y),
    "a result": lambda c, x, y: c.call("gt_", c.call(torch.add, x, 1), y),
    "twice": lambda c, x, y: c.call("gt_", c.call("gt_", c.call("clone", x), y), y),
    "by a function": lambda c, x, y: c.call(aten.gt_.Tensor, c.call("clone", x), y),
}
STAY: dict[str, Build] = {
    "a number": lambda c, x, y: c.call("gt_", c.call("clone", x), 1.0),
    "itself": lambda c, x, y: [c.call("gt_", z, z) for z in [c.call("clone", x)]],
    "a result of its own": lambda c, x, y: c.call("gt", c.call("clone", x), y),
    "a function": lambda c, x, y: c.call(operator.add, c.call("clone", x), y),
}


@pytest.mark.parametrize("name", GROW)
def test_what_was_made_is_asked_once_more(name: str) -> None:
    assert "has a result of another size" in reason_of(GROW[name])


@pytest.mark.parametrize("name", STAY)
def test_nothing_grew(name: str) -> None:
    assert not reason_of(STAY[name])
    assert not reason_of(GROW["a copy"], (4,))


def test_an_input_is_real_as_well() -> None:
    with pytest.raises(SkipFrame, match="another size"):
        reason_of(lambda c, x, y: c.call("gt_", x, y))
    assert not reason_of(lambda c, x, y: c.call("gt_", x, 1))


def test_what_calls_in_a_row_have_updated() -> None:
    """What made a tensor is the last one whose first argument is another tensor."""
    c = Captured()
    x = c.input(torch.rand(4))
    made = c.call("clone", x)
    first = c.call("add_", made, 1)
    last = c.call("mul_", first, 2)
    other = c.call("add", last, 1)
    assert [grown._made_by(node) for node in (x, made, first, last)] == [x, made, made, made]
    assert grown._made_by(other) is other
    assert grown._made_by(c.call("t_", x)) is x
    nothing = c.graph.call_function(torch.rand, (4,))
    nothing.meta["example_value"] = torch.rand(4)
    empty = c.graph.call_function(torch.initial_seed)
    assert [grown._made_by(node) for node in (nothing, empty)] == [nothing, empty]


def test_a_question_that_failed_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.dtype] = []

    def failing(target: Any, small: torch.Tensor, *rest: torch.Tensor) -> None:
        asked.append(small.dtype)
        raise RuntimeError

    def growing(target: Any, small: torch.Tensor, *rest: torch.Tensor) -> None:
        asked.append(small.dtype)
        assert [x.shape for x in rest] == [(3, 2)] * len(rest)
        if small.dtype == torch.int64:
            small.resize_(3, 2)

    monkeypatch.setattr(grown, "_call", failing)
    assert not grown._grows("gt_", 1)
    assert asked == [torch.float32, torch.int64]
    monkeypatch.setattr(grown, "_call", growing)
    assert grown._grows("gt_", 1)
    assert asked[2:] == [torch.float32, torch.int64]
    monkeypatch.setattr(grown, "_call", failing)
    assert grown._grows("gt_", 1), "known"
    assert len(asked) == 4


@pytest.mark.parametrize("names", [("arctan2_", "atan2_"), ("gt_", "greater_", aten.gt_.Tensor)])
def test_another_name_of_the_same_call_is_no_other_answer(names: tuple[Any, ...]) -> None:
    """Torch keeps results of fake tensors, and gives one without what the call did beside."""
    for name in (*names, *reversed(names)):
        grown._grow.clear()
        assert grown._grows(name, 1)


@pytest.mark.parametrize("names", [("arctan2_", "atan2_"), ("gt_", "greater_")])
def test_whoever_was_compiled_before(names: tuple[str, ...]) -> None:
    for size, name in enumerate(names + names[::-1], 3):

        def updated(a: torch.Tensor, b: torch.Tensor, name: str = name) -> torch.Tensor:
            result: torch.Tensor = getattr(a.clone(), name)(b)
            return result

        with pytest.raises(RuntimeError, match="doesn't match"):
            fusec.compile(updated)(torch.rand(size), torch.rand(2, size))
