"""Positions that are symbolic, out of range, or in memory that begins anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec

_ALL = torch.arange(40.0)
_GIVEN = (_ALL[:12].clone(), _ALL[10:22], _ALL[:5].clone(), _ALL[10:15])
_CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "an element": lambda x: x[x.shape[0] - 8] + 1,
    "from one on": lambda x: x[x.shape[0] - 8 :] + 1,
    "the last ones": lambda x: x[-8:] + 1,
    "replaced": lambda x: x.select_scatter(torch.tensor(1.0), 0, x.shape[0] - 8),
    "replaced from one on": lambda x: x.slice_scatter(x[x.shape[0] - 8 :] * 2, 0, x.shape[0] - 8),
    "beyond the end": lambda x: x.select(0, 7) + 1,
    "replaced beyond the end": lambda x: x.select_scatter(torch.tensor(1.0), 0, 7),
    "of the memory": lambda x: x.as_strided((2,), (1,), 6) + 1,
    "of the memory of a part": lambda x: x[1:].as_strided((2,), (1,), 3) + 1,
    "replaced in memory": lambda x: x.as_strided_scatter(torch.zeros(2), (2,), (1,), 2),
}


def _result(function: Callable[..., Any], *given: Any) -> Any:
    try:
        return function(*given)
    except RuntimeError:
        return RuntimeError
    except IndexError:
        return IndexError


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", _CASES)
def test_as_eager(name: str) -> None:
    compiled = fusec.compile(_CASES[name], dynamic=True)
    for x in _GIVEN:
        want, got = _result(_CASES[name], x), _result(compiled, x)
        if not isinstance(want, torch.Tensor):
            assert got in (IndexError, RuntimeError)  # TorchDynamo's own class, on torch 2.11
        else:
            torch.testing.assert_close(got, want)


def test_a_part_of_what_is_laid_out_like_a_part() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x[1:3] = 9.0
        return x[1:]

    compiled = fusec.compile(function)
    for first, last in ((0, 6), (20, 25), (1, 20)):
        ours, theirs = (_ALL.clone()[first:last] for _ in range(2))
        got, want = compiled(ours), function(theirs)
        torch.testing.assert_close((got, ours), (want, theirs))
        assert got.storage_offset() == want.storage_offset()


def test_an_index_that_is_an_argument() -> None:
    def function(x: torch.Tensor, at: int) -> torch.Tensor:
        return (x * x)[at].exp() + x[at:].sum()

    compiled = fusec.compile(function, dynamic=True)
    for size, at in ((9, 3), (5, -3), (7, 2), (9, -9)):
        x, mine = (torch.linspace(0, 1, size, requires_grad=True) for _ in range(2))
        function(x, at).backward()
        result = compiled(mine, at)
        result.backward()
        torch.testing.assert_close(result, function(x, at))
        torch.testing.assert_close(mine.grad, x.grad)
    assert not compiled.fallbacks
