"""Which maxima leave NaN out, and that no result shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

import fusec

Function = Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]


def _weights(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x - x.amax(-1, keepdim=True))


def _share(x: torch.Tensor) -> torch.Tensor:
    weights = _weights(x)
    return weights / weights.sum(-1, keepdim=True)


HIDDEN: dict[str, Function] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log softmax": lambda x: torch.log_softmax(x, -1),
    "down columns": lambda x: torch.softmax(x, 0),
    "written out, masked": lambda x: torch.where(x > 0, _share(x), 0.0),
}
SHOWN: dict[str, Function] = {
    "the maximum, too": lambda x: (torch.softmax(x, -1), x.amax(-1)),
    "the weights, too": lambda x: (_weights(x), _share(x)),
    "where the sum is not": lambda x: torch.where(x > 0, _share(x), x.amax(-1, keepdim=True)),
}


def _tensors(result: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


@pytest.mark.parametrize("name", [*HIDDEN, *SHOWN])
def test_nan_is_where_eager_has_it(name: str) -> None:
    function = (HIDDEN | SHOWN)[name]
    compiled = fusec.compile(function)
    for value in (torch.nan, torch.inf, -torch.inf, 0.0):
        for place in (0, 40, 76):  # the first of a row, within it, in its last vector
            x = torch.randn(5, 77)
            x[1, place] = value
            x[2] = value
            for ours, eager in zip(_tensors(compiled(x)), _tensors(function(x)), strict=True):
                torch.testing.assert_close(ours, eager, equal_nan=True)
    text = "".join(kernel.source for kernel in compiled.graphs[0].kernels)
    assert ("number_max(" in text) == (name in HIDDEN)
