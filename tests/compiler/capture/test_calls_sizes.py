"""The short path of calls whose sizes vary."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import fusec
from fusec.capture.guards.sizes import UnknownQuestion, size_steps
from support.calls import chain, leaf, native_part, same, slopes, strict_calls, tensors

__all__ = ["native_part", "strict_calls"]  # fixtures of every test here

pytestmark = pytest.mark.timeout(300)


def rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.shape[0] % 4 == 0 and a.shape[0] * a.shape[1] > 100:
        return (a + b).relu()
    return (a - b).sigmoid()


def test_sizes() -> None:
    compiled = fusec.compile(rows, dynamic=True)
    shapes = [(16, 8), (20, 9), (12, 30), (7, 5), (9, 30), (4, 4), (3, 100)]
    for shape in shapes * 2:
        given = tensors(shape, shape)
        same(compiled(*given), rows(*given))
    graphs, served = len(compiled.graphs), compiled.short_calls
    for shape in [*shapes, (28, 11), (8, 64), (5, 3), (4, 25), (4, 26)]:
        given = tensors(shape, shape)
        same(compiled(*given), rows(*given))
    assert len(compiled.graphs) == graphs
    assert compiled.short_calls == served + len(shapes) + 5


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "shapes",
    [
        ((0, 8), (0, 8)),
        ((1, 8), (1, 8)),
        ((1, 1), (1, 1)),
        ((16, 8), (16, 1)),
        ((16, 8), (8,)),
        ((3, 16, 8), (3, 16, 8)),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit(shapes: tuple[tuple[int, ...], ...]) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a + b).relu() * a.shape[0] + a.shape[-1]

    compiled = fusec.compile(function, dynamic=True)
    for shape in ((16, 8), (20, 9), (30, 4)):
        given = tensors(shape, shape)
        same(compiled(*given), function(*given))
    served = compiled.short_calls
    given = tensors(*shapes)
    same(compiled(*given), function(*given))
    assert compiled.short_calls == served
    for each in (given, [torch.randn(9, 20).t(), torch.randn(20, 9)], [torch.randn(20, 9)] * 2):
        same(compiled(*each), function(*each))
    given = tensors((40, 5), (40, 5))
    before = compiled.short_calls
    same(compiled(*given), function(*given))
    assert compiled.short_calls == before + 1


def test_one_argument_twice_and_unequal_sizes() -> None:
    compiled = fusec.compile(lambda a, b: a.sum() * b, dynamic=True)
    for n in (8, 9, 10):
        a, b = tensors((n,), (n,))
        same(compiled(a, b), a.sum() * b)
    a, b = tensors((11,), (12,))  # they were equal, which TorchDynamo took for a rule
    same(compiled(a, b), a.sum() * b)
    same(compiled(a, a), a.sum() * a)


def test_sizes_become_symbolic_by_themselves() -> None:
    compiled = fusec.compile(chain)
    for n in (16, 17, 18, 19, 5):
        given = tensors((n,), (n,))
        same(compiled(*given), chain(*given))
    assert len(compiled.graphs) == 2
    served = compiled.short_calls
    for n in (16, 23, 42, 16):
        given = tensors((n,), (n,))
        same(compiled(*given), chain(*given))
    assert compiled.short_calls == served + 4


def test_recorded_calls_of_varying_size() -> None:
    compiled = fusec.compile(chain, dynamic=True)
    for n in (16, 17, 18, 30):
        a, b = leaf(n), leaf(n)
        same(slopes(compiled, a, b), slopes(chain, a, b))
    assert len(compiled.graphs) == 1


def test_sizes_that_are_returned() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a + b, a.shape[0], a.shape[0] * b.shape[1]

    compiled = fusec.compile(function, dynamic=True)
    for shape in ((4, 6), (5, 7), (9, 3)):
        given = tensors(shape, shape)
        mine = compiled(*given)
        same(mine, function(*given))
        assert type(mine[1]) is int


QUESTIONS = (
    "2 <= L['a'].size()[0]",
    "2 <= L['a'].size()[0] <= 40",
    "L['a'].size()[0] == L['b'].size()[1]  # duck",
    "(L['a'].size()[0] * L['b'].size()[1]) % 4 == 0",
    "L['a'].size()[0] // 3 != 2 * L['b'].size()[0] - 7",
    "L['a'].size()[0] - 9 < (L['b'].size()[0] - 30) // 4",
    "(L['a'].size()[0] - 50) % 7 >= 3",
    "L['a'].size()[0] != 5 or L['b'].size()[1] > 9",
    "not (L['a'].size()[0] == 6 and L['b'].size()[0] < -L['b'].size()[1] + 40)",
)


def evaluate(steps: Any, shapes: list[tuple[int, ...]]) -> bool:
    """Run the program as entry.cpp does, through an entry that checks nothing else."""
    from fusec.call import native

    found = native.types(wait=True)
    assert found is not None

    def function(a: object, b: object) -> None:
        pass

    entry = found.Entry(
        function,
        function.__code__,
        function,
        function,
        ("code", (), ()),
        (),
        ("a", "b"),
        2,
        0,
        0,
        False,
        False,
        None,
        (),
        (),
        None,
        (),
        (),
        (),
        (),
        steps,
        native.exchange(),
    )
    return bool(entry.fits(*(torch.empty(shape) for shape in shapes)))


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_about_sizes(question: str) -> None:
    steps = size_steps([question], ["a", "b"])
    both = size_steps([question, QUESTIONS[0]], ["a", "b"])
    rng = random.Random(question)
    answers = set()
    for _ in range(200):
        shapes = [(rng.randrange(60),), (rng.randrange(60), rng.randrange(60))]
        space = {"L": {"a": torch.empty(shapes[0]), "b": torch.empty(shapes[1])}}
        expected = eval(question, space)
        assert evaluate(steps, shapes) == expected, (question, shapes)
        assert evaluate(both, shapes) == (expected and shapes[0][0] >= 2)
        answers.add(expected)
    assert answers == {False, True}


@pytest.mark.parametrize(
    "question",
    [
        "L['a'].size()[0] / 2 == 3",
        "L['c'].size()[0] == 3",
        "L['a'].stride()[0] == 1",
        "L['self'].x.size()[0] == 3",
        "math.isnan(L['a'])",
        "L['a'].size()[0] == 3.0",
        "L['a'].size()[0] ** 2 == 9",
        "L['a'].size()[i] == 9",
        "L['a'].size()[0] in (3, 4)",
        "L['a'].size()[0]",
        "==",
        "True",
    ],
)
def test_questions_that_are_not_understood(question: str) -> None:
    with pytest.raises(UnknownQuestion):
        size_steps([question], ["a", "b"])


def test_integers_do_not_wrap() -> None:
    text = " * ".join(["L['a'].size()[0]"] * 20)
    steps = size_steps([f"{text} > 0"], ["a", "b"])
    assert evaluate(steps, [(8,), (1, 1)])
    assert not evaluate(steps, [(9,), (1, 1)])  # 9 ** 20 is no 64-bit integer: does not fit
