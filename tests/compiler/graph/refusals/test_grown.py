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
from support.captured import Captured, call_of

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


def fake_tensors_grow() -> bool:
    """Whether torch lets them: from 2.14 on it raises eager's error, and no such graph is made."""
    with FakeTensorMode():
        try:
            return tuple(torch.empty(4).gt_(torch.empty(2, 4)).shape) != (4,)
        except RuntimeError:
            return False


grows = pytest.mark.skipif(not fake_tensors_grow(), reason="torch refuses such updates itself")


@grows
@pytest.mark.parametrize("name", GROW)
def test_what_was_made_is_asked_once_more(name: str) -> None:
    assert "has a result of another size" in reason_of(GROW[name])


@pytest.mark.parametrize("name", STAY)
def test_nothing_grew(name: str) -> None:
    assert not reason_of(STAY[name])
    assert not reason_of(GROW["a copy"], (4,))


@grows
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


def test_what_is_made_again_to_compare_its_size() -> None:
    """Calls of functions and methods; a submodule may have the name of a tensor's method."""
    c = Captured()
    with FakeTensorMode() as mode:
        x = c.input(mode.from_tensor(torch.rand(4)))
        last = c.call("exp", x), c.call(torch.exp, x)
        submodule = c.graph.create_node("call_module", "exp", (x,))
        attribute = c.graph.create_node("get_attr", "weight")
        submodule.meta["example_value"] = attribute.meta["example_value"] = torch.rand(4)
        nothing = c.call(torch.initial_seed)
    for node in last:
        (made,) = grown._made_again(node)
        assert made.shape == (4,)
    for node in (x, submodule, attribute, nothing):
        assert list(grown._made_again(node)) == []


def asks(target: Any, *rest: Any, dtype: torch.dtype = torch.float32, **more: Any) -> bool:
    node = call_of(target, torch.ones(2, dtype=dtype), *rest, **more)
    return grown._grows(target, node.args[0], (node.args[1:], node.kwargs), set())


def test_a_question_that_failed_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def failing(target: Any, small: torch.Tensor, *rest: Any, **more: Any) -> None:
        asked.append((small.shape, small.dtype, *rest, more))
        raise RuntimeError

    def growing(target: Any, small: torch.Tensor, *rest: Any, **more: Any) -> None:
        asked.append(rest)
        small.resize_(3, 2)

    one, number = torch.ones(4, dtype=torch.half), torch.tensor(1.0)
    monkeypatch.setattr(grown, "_call", failing)
    for _ in range(2):
        assert not asks("gt_", one, number, 3, dtype=torch.int64, mode="floor")
    assert len(asked) == 2
    size, dtype, other, alone, three, more = asked[0]
    assert (size, dtype, three, more) == ((2,), torch.int64, 3, {"mode": "floor"})
    assert (other.shape, other.dtype, alone.shape) == ((3, 2), torch.half, ())
    monkeypatch.setattr(grown, "_call", growing)
    assert asks("gt_", one)
    assert len(asked) == 3
    monkeypatch.setattr(grown, "_call", failing)
    assert asks("gt_", one), "known"
    assert len(asked) == 3
    assert not asks("gt_", number)
    assert not asks("gt_", one, dtype=torch.float64)
    assert not asks("gt_", one, 3)
    assert len(asked) == 6, "other questions"


@grows
@pytest.mark.parametrize("names", [("arctan2_", "atan2_"), ("gt_", "greater_", aten.gt_.Tensor)])
def test_another_name_of_the_same_call_is_no_other_answer(names: tuple[Any, ...]) -> None:
    """Torch keeps results of fake tensors, and gives one without what the call did beside."""
    for name in (*names, *reversed(names)):
        grown._grow.clear()
        assert asks(name, torch.ones(3, 2))


UPDATES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "a rounded quotient": lambda a, b: a.clone().divide_(b, rounding_mode="floor"),
    "a power in double": lambda a, b: a.double().float_power_(b),
    "a product of vectors": lambda a, b: torch.zeros(1, 4).addr_(b[:, 0], a),
    "drawn": lambda a, b: a.clone().bernoulli_(b),
    "scattered": lambda a, b: a.clone().masked_scatter_(b > 0, b),
    "scattered into an input": lambda a, b: a.masked_scatter_(b > 0, b),
    "scattered into a view": lambda a, b: a.clone()[:].masked_scatter_(b > 0, b),
}
for _name in "maximum minimum clamp_max clamp_min pow add mul div sub".split():

    def _each(a: torch.Tensor, b: torch.Tensor, name: str = _name) -> object:
        update, same, small = getattr(torch, f"_foreach_{name}_"), b.clone(), a.clone()
        update([same, small], [b, b])
        return same, small

    UPDATES[f"each {_name}"] = _each
UPDATES["each of the inputs"] = lambda a, b: (torch._foreach_maximum_([a], [b]), a)[1]


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", UPDATES)
def test_updates_with_a_larger_operand_raise(name: str) -> None:
    compiled = fusec.compile(UPDATES[name])
    with pytest.raises(RuntimeError):
        UPDATES[name](torch.rand(4), torch.rand(2, 4))
    for size in (4, 5):  # the second time with sizes that may change
        with pytest.raises(RuntimeError):
            compiled(torch.rand(size), torch.rand(2, size))


def test_lists_that_fit_are_compiled() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        made = [x + 1, y.clone(), x * 2]
        torch._foreach_maximum_(made, [y[:1], y, x])
        torch._foreach_addcdiv_(made, [y, y, y], [x, x, x.exp()], value=0.5)
        torch._foreach_mul_(made, 2.0)
        torch._foreach_addcmul_(made, made, [x, x, x], scalars=[1.0, 2.0, 3.0])
        x.addr_(y[:, 0], y[0]).masked_scatter_(x[0] > 0, y)
        return made

    compiled = fusec.compile(f)
    x, y = torch.rand(3, 3) + 1, torch.rand(3, 3) + 1
    mine, eager = (x.clone(), y), (x.clone(), y)
    torch.testing.assert_close(compiled(*mine), f(*eager))
    torch.testing.assert_close(mine, eager)
    assert compiled.graphs
    assert not compiled.fallbacks


@pytest.mark.parametrize("names", [("arctan2_", "atan2_"), ("gt_", "greater_")])
def test_whoever_was_compiled_before(names: tuple[str, ...]) -> None:
    for size, name in enumerate(names + names[::-1], 3):

        def updated(a: torch.Tensor, b: torch.Tensor, name: str = name) -> torch.Tensor:
            result: torch.Tensor = getattr(a.clone(), name)(b)
            return result

        with pytest.raises(RuntimeError, match="doesn't match"):
            fusec.compile(updated)(torch.rand(size), torch.rand(2, size))


def test_a_question_that_failed_is_asked_once_for_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer's step has the same update for each of its parameters."""
    asked: list[object] = []

    def failing(target: Any, *rest: Any, **more: Any) -> None:
        asked.append(target)
        raise RuntimeError

    def step(xs: list[torch.Tensor], y: torch.Tensor) -> None:
        for x in xs:
            x.sub_(y, alpha=3)

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        for _ in range(2):  # two graphs
            assert not grown.grown_in_tracing(module, inputs)
        return module.forward

    monkeypatch.setattr(grown, "_call", failing)
    compiled = torch.compile(step, backend=backend)
    compiled([torch.zeros(3) for _ in range(4)], torch.ones(3))
    assert len(asked) == 2
