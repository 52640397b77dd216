"""A deque with a greatest length drops elements, one that was there before as well."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec

Frames = deque[torch.Tensor]


def append(frames: Frames, x: torch.Tensor) -> torch.Tensor:
    frames.append(x * 2)
    return torch.stack(list(frames))


def append_left(frames: Frames, x: torch.Tensor) -> torch.Tensor:
    frames.appendleft(x * 2)
    return torch.stack(list(frames))


def extend(frames: Frames, x: torch.Tensor) -> torch.Tensor:
    frames.extend([x, x + 1])
    frames.extendleft([x + 2])
    return torch.stack(list(frames))


def first_and_last(frames: Frames, x: torch.Tensor) -> torch.Tensor:
    frames.append(x + 1)
    return frames[0] + frames[-1] * len(frames) + x * (frames.maxlen or 0.5)


def replaced(frames: Frames, x: torch.Tensor) -> torch.Tensor:
    frames.append(x + 1)
    frames[0] = x * 3
    return sum(frames)  # type: ignore[return-value]


def what_is_left(
    form: Callable[[Frames, torch.Tensor], torch.Tensor],
    compiler: Callable[[Any], Any],
    limits: tuple[int | None, ...],
) -> list[Any]:
    torch._dynamo.reset()
    called, found = compiler(form), []
    kept: dict[int | None, Frames] = {limit: deque(maxlen=limit) for limit in limits}
    for number in range(5):
        for limit, frames in kept.items():
            x = torch.arange(3.0) + number
            found += [called(frames, x), [each.clone() for each in frames], limit, frames.maxlen]
    return found


@pytest.mark.parametrize("form", [append, append_left, extend, first_and_last, replaced])
def test_elements_are_dropped_as_in_eager(form: Callable[..., Any]) -> None:
    want = what_is_left(form, lambda f: f, (2,))
    torch.testing.assert_close(what_is_left(form, fusec.compile, (2,)), want)


def test_one_limit_is_not_taken_for_another() -> None:
    want = what_is_left(append, lambda f: f, (2, 3, None))
    found = what_is_left(append, fusec.compile, (2, 3, None))
    torch.testing.assert_close(found, want)
