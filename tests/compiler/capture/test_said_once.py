"""Messages behind a cache (``logger.warning_once``): given as in eager, and no break of a graph."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusec
from fusec.capture.dynamo.said_once import is_said_once


class Heard(logging.Handler):
    """What was said, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.lines.append(record.getMessage())


@functools.lru_cache(None)
def _once(self: logging.Logger, *args: Any, **kwargs: Any) -> None:
    self.warning(*args, **kwargs)


@functools.lru_cache(maxsize=1)
def _forgets(self: logging.Logger, *args: Any) -> None:
    self.warning(*args)


@functools.lru_cache(None)
def _counts(self: logging.Logger, text: str) -> int:
    self.warning(text)
    return len(text)


LOGGER = logging.getLogger("fusec.tests.said_once")


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the logger says, whose class has the methods above; nothing was said before."""
    for name, method in (("said_once", _once), ("forgets", _forgets), ("counts", _counts)):
        monkeypatch.setattr(logging.Logger, name, method, raising=False)
        method.cache_clear()
    handler = Heard()
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
    torch.compiler.reset()
    yield handler.lines
    LOGGER.removeHandler(handler)


def _say(name: str, *args: Any, **kwargs: Any) -> None:
    getattr(LOGGER, name)(*args, **kwargs)


def _twice(f: Callable[[Tensor], Tensor], *inputs: Tensor) -> list[Tensor]:
    return [f(x) for x in (*inputs, *inputs)]


def test_a_message_given_once_is_given_at_the_first_call_and_breaks_nothing(
    heard: list[str],
) -> None:
    """Deep within functions, each of which would have been captured again."""

    def inner(x: Tensor, name: str) -> Tensor:
        y = x.exp()
        _say("said_once", f"no such loss: {name}")
        return y + 1

    def f(x: Tensor) -> Tensor:
        return inner(x * 2, "some") * 3

    compiled = fusec.compile(f)
    x = torch.randn(5)
    for found in _twice(compiled, x):
        torch.testing.assert_close(found, (x * 2).exp() * 3 + 3)
    assert heard == ["no such loss: some"]
    assert len(compiled.graphs) == 1
    assert not compiled.breaks


def test_what_eager_said_is_not_said_again_and_what_was_said_not_in_eager(
    heard: list[str],
) -> None:
    """One cache serves both, whoever comes first."""

    def f(x: Tensor) -> Tensor:
        _say("said_once", "both")
        return x + 1

    f(torch.ones(2))
    compiled = fusec.compile(f)
    _twice(compiled, torch.ones(2), torch.ones(3))  # the second one is captured anew
    f(torch.ones(2))
    assert heard == ["both"]


def test_another_text_is_captured_and_given(heard: list[str]) -> None:
    """What a text follows from is guarded."""
    model = nn.Linear(2, 2)
    model.kind = "a"  # type: ignore[assignment]

    def f(x: Tensor) -> Tensor:
        _say("said_once", "kind %s", model.kind)
        return model(x)  # type: ignore[no-any-return]

    compiled = fusec.compile(f)
    x = torch.randn(3, 2)
    for kind in "abab":
        model.kind = kind  # type: ignore[assignment]
        torch.testing.assert_close(compiled(x), model(x))
    assert heard == ["kind a", "kind b"]


def test_in_order_with_what_is_said_every_time(heard: list[str]) -> None:
    """A plain message breaks the graph as before, and the order is eager's."""

    def f(x: Tensor) -> Tensor:
        _say("said_once", "first")
        y = x.sin()
        LOGGER.warning("then")
        _say("said_once", "last")
        return y.cos()

    compiled = fusec.compile(f)
    x = torch.randn(4)
    for found in _twice(compiled, x):
        torch.testing.assert_close(found, x.sin().cos())
    assert heard == ["first", "then", "last", "then"]


@pytest.mark.parametrize("name", ["forgets", "counts"])
def test_what_may_be_given_again_or_returns_something_is_left_to_torchdynamo(
    heard: list[str], name: str
) -> None:
    """A cache that forgets gives a message again; a result would have to be guarded."""
    assert is_said_once(LOGGER, "said_once")
    assert is_said_once(LOGGER, name) == (name == "counts")

    def f(x: Tensor) -> Tensor:
        got = getattr(LOGGER, name)("four")
        return x + (got or 1)

    x = torch.ones(2)
    for found in _twice(fusec.compile(f), x):
        torch.testing.assert_close(found, x + (4 if name == "counts" else 1))
    assert "four" in heard


def test_a_method_of_the_logger_itself_is_left_to_torchdynamo(
    heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called with other arguments than the class's."""
    said: list[str] = []
    monkeypatch.setattr(LOGGER, "said_once", said.append, raising=False)
    assert not is_said_once(LOGGER, "said_once")

    def f(x: Tensor) -> Tensor:
        LOGGER.said_once("each time")  # type: ignore[attr-defined]
        return x + 1

    _twice(fusec.compile(f), torch.ones(2))
    assert said[-2:] == ["each time"] * 2
    assert not heard


def test_what_raises_raises_as_in_eager(heard: list[str]) -> None:
    """The cache takes no list."""

    def f(x: Tensor) -> Tensor:
        _say("said_once", "%s", [1])
        return x + 1

    with pytest.raises(TypeError):
        f(torch.ones(2))
    with pytest.raises(TypeError):
        fusec.compile(f)(torch.ones(2))
    assert not heard


def test_a_tensor_in_a_message_is_what_it_is_at_the_call(heard: list[str]) -> None:
    """It is no constant: the graph is cut before it."""

    def f(x: Tensor) -> Tensor:
        y = x + 1
        _say("said_once", "%s", y.sum().item())
        return y * 2

    compiled = fusec.compile(f)
    for number in (1.0, 2.0):
        x = torch.full((2,), number)
        torch.testing.assert_close(compiled(x), (x + 1) * 2)
    assert heard[0] == "4.0"
    assert heard[-1] == "6.0"


def test_a_branch_that_does_not_run_says_nothing(heard: list[str]) -> None:
    """Both of ``torch.cond`` are captured."""

    def yes(x: Tensor) -> Tensor:
        return x.sin()

    def no(x: Tensor) -> Tensor:
        _say("said_once", "not this one")
        return x.cos()

    def f(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, yes, no, (x,))

    # torch refuses a break within a branch
    with contextlib.suppress(torch._dynamo.exc.UncapturedHigherOrderOpError):
        fusec.compile(f)(torch.ones(3))
    assert not heard


def test_gradients_and_torch_compile(heard: list[str]) -> None:
    """A training step is one graph, through ``torch.compile`` as well."""

    def f(x: Tensor) -> Tensor:
        y = x.sin()
        _say("said_once", "training")
        return (y * y).sum()

    x = torch.randn(6, requires_grad=True)
    want = torch.autograd.grad(f(x), x)[0]
    _once.cache_clear()
    heard.clear()
    for compiled in (fusec.compile(f), torch.compile(f, backend="fusec", fullgraph=True)):
        torch.testing.assert_close(torch.autograd.grad(compiled(x), x)[0], want)
    assert heard == ["training"]
