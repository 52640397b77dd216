"""Calls with operands of random types and sizes; ``make operands`` runs any number of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from operands.__main__ import main
from operands.draw import Case, drawn
from operands.examine import Outcome, differs, examine, lies_otherwise, outcome
from operands.tables import CALLS, TABLES, Call

BLOCK = 6


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", range(len(CALLS) // BLOCK))
def test_operands(number: int) -> None:
    """Every so many-th call, so that each block has some of each table."""
    found = [examine(drawn(call, 0)) for call in CALLS[number :: len(CALLS) // BLOCK]]
    wrong = [words for verdict, words in found if verdict == "wrong"]
    assert not wrong, "\n".join(wrong)


def case(text: str, function: Callable[..., Any] | None = None, **given: torch.Tensor) -> Case:
    made = eval(f"lambda {', '.join(given)}: {text}", {"torch": torch})
    return Case(Call(text, "fitting"), 0, function or made, given, dynamic=False, learns=True)


def compared(wanted: Case, other: Callable[..., Any]) -> tuple[str, bool]:
    """Return what is found where another function is called in place of a case's own."""
    eager = outcome(wanted, lambda function: function)
    mine = outcome(wanted, lambda function: other)
    return differs(eager, mine), lies_otherwise(eager, mine)


def raises(*_: Any, **__: Any) -> Any:
    raise IndexError("made up")


def updates(a: torch.Tensor) -> torch.Tensor:
    found = a * 2
    with torch.no_grad():
        a.zero_()
    return found


@pytest.mark.parametrize(
    ("text", "other", "words"),
    [
        ("a * 2", lambda a: a * 2, ""),
        ("a * 2", lambda a: a * 2.01, "elements"),
        ("a * 2", lambda a: (a * 2).double(), "float64"),
        ("a * 2", lambda a: a.detach() * 2, "gradients"),
        ("a * 2", updates, "operands afterwards"),
        ("a * 2", raises, "eager does not raise"),
        ("a @ a", lambda a: a, "no error"),
        ("a @ a", raises, "another class"),
        ("a @ a", lambda a: torch.mm(a, a), ""),
    ],
)
def test_what_is_wrong_is_found(text: str, other: Callable[..., Any], words: str) -> None:
    found, otherwise = compared(case(text, a=torch.rand(2, 3)), other)
    assert words in found if words else not found
    assert not otherwise


def test_other_strides_are_found() -> None:
    wanted = case("a * 2", a=torch.rand(2, 3))
    assert compared(wanted, lambda a: (a * 2).t().contiguous().t()) == ("", True)


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ((1, 2, 2), "torch"),  # what TorchDynamo alone does in the same way
        ((1, 2, 1, 2), "eager"),  # far from its own result in float64
        ((1, 2, 1, 1), "wrong"),
        ((1, 2, 1, 3), "wrong"),
    ],
)
def test_whose_it_is_is_told_apart(
    results: tuple[int, ...], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of eager, compiled, TorchDynamo alone, and eager in float64."""
    import operands.examine as module

    runs = iter([Outcome(((each,), [], [])) for each in results])
    monkeypatch.setattr(module, "outcome", lambda *_: next(runs))
    assert examine(case("a * 2", a=torch.rand(2, 3)))[0] == verdict


def test_a_case_is_made_again() -> None:
    assert {call.table for call in CALLS} == set(TABLES)
    assert len({call.text for call in CALLS}) > 300
    for call in CALLS:
        one, two = drawn(call, 5), drawn(call, 5)
        assert str(one) == str(two)
        assert str(one) != str(drawn(call, 6)) or not call.shapes


def test_a_run_is_reported(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "operands.jsonl"
    assert main(["--only", "torch.exp2(a)", "--seeds", "1:2", "--report", str(path)]) == 0
    assert "1 calls: 1 " in capsys.readouterr().out
    assert path.read_text() == ""
