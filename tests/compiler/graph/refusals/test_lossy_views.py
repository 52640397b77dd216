"""Updates through windows, and of parts of what shares elements, change what they do in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusec
from support.compare import difference

Update = Callable[[torch.Tensor], object]


def _windows(x: torch.Tensor) -> object:
    view = x.unfold(0, 2, 2)
    view[:, 0] = 0
    return view


UPDATES: dict[str, Update] = {
    "windows with gaps": lambda x: x.unfold(0, 2, 3).zero_(),
    "windows and a rest": _windows,
    "one of windows that overlap": lambda x: x.unfold(0, 3, 1)[1].mul_(2),
    "the first of each": lambda x: x.unfold(0, 3, 1).select(1, 0).add_(1),
    "into windows": lambda x: torch.add(torch.ones(2), 1, out=x.unfold(0, 2, 3)[0]),
    "rows that overlap": lambda x: x.as_strided((3, 3), (1, 1))[0].add_(1),
    "a row of an expanded one": lambda x: x.expand(3, *x.shape)[1].add_(1),
    "rows apart": lambda x: x.as_strided((2, 2), (3, 1)).mul_(2),
}


@pytest.mark.parametrize("within", [False, True], ids=["an input", "what is made within"])
@pytest.mark.parametrize("name", UPDATES)
def test_an_update(name: str, within: bool) -> None:
    update = UPDATES[name]

    def function(x: torch.Tensor) -> tuple[object, torch.Tensor]:
        y = x * 1 if within else x
        return update(y), y + 1

    compiled = fusec.compile(function)
    for size in (7, 8):
        x = torch.randn(size)
        mine, theirs = x.clone(), x.clone()
        assert not difference(compiled(mine), function(theirs))
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("steps", [(0, 1), (1, 1)], ids=["expanded", "windows"])
def test_a_part_of_an_input_that_shares_elements(steps: tuple[int, int]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x[0].add_(1)
        return x * 2

    compiled = fusec.compile(function)
    for _ in range(2):
        memory = torch.randn(6)
        mine, theirs = (memory.clone().as_strided((3, 3), steps) for _ in range(2))
        assert not difference(compiled(mine), function(theirs))
        assert torch.equal(mine, theirs)


SHIFTS = ("down", "up", "turned", "itself", "apart")


@pytest.mark.parametrize("name", SHIFTS)
def test_assigning_what_lies_there_at_other_indices(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if name == "down":
            x[:-1] = x[1:]
        elif name == "up":
            x[1:] = x[:-1]
        elif name == "turned":
            x[...] = x.T
        elif name == "itself":
            x[:2] = x[:2]
        else:
            x[0] = x[1]
        return x

    compiled = fusec.compile(function)
    for _ in range(2):
        x = torch.randn(4, 4)
        try:
            theirs = function(x.clone())
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(x.clone())
        else:
            assert torch.equal(compiled(x.clone()), theirs)
