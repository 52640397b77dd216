"""Slices of short rows that are updated in place: the rest of a row stays as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusec

Tensor = torch.Tensor
# Rows in which all but one to four elements are a part of their own, at either end.
WIDTHS = (8, 16, 31, 32, 64, 128)


def zero(x: Tensor, _: Tensor, edge: int) -> None:
    x[..., : x.shape[-1] - edge].zero_()


def filled(x: Tensor, _: Tensor, edge: int) -> None:
    x[..., edge:] = 2


def copied(x: Tensor, y: Tensor, edge: int) -> None:
    x[..., edge:].copy_(y[..., edge:])


def both_ends(x: Tensor, y: Tensor, edge: int) -> None:
    x[..., edge:-1] = y[..., edge:-1] + 1


def joined(x: Tensor, y: Tensor, edge: int) -> None:
    x.copy_(torch.cat([x[..., :edge], y[..., edge:]], -1))


def chosen(x: Tensor, y: Tensor, edge: int) -> None:
    x.copy_(torch.where(torch.arange(x.shape[-1]) < edge, x, y))


@pytest.mark.sample(3)
@pytest.mark.parametrize("update", [zero, filled, copied, both_ends, joined, chosen])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_the_rest_of_a_row(
    update: Callable[[Tensor, Tensor, int], None],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")

    def fn(xs: list[Tensor], ys: list[Tensor]) -> list[Tensor]:
        for place, (x, y) in enumerate(zip(xs, ys, strict=True)):
            update(x, y, 1 + place % 4)
        return [x + 1 for x in xs]

    def inputs(*, rows: bool) -> list[Tensor]:
        sizes = [(3, width) if rows else (width,) for width in WIDTHS]
        return [torch.randint(3, 99, size).to(dtype) for size in sizes]

    compiled = fusec.compile(fn)
    for rows in (False, True):
        xs, ys = inputs(rows=rows), inputs(rows=rows)
        wanted = [x.clone() for x in xs]
        torch.testing.assert_close(compiled(xs, ys), fn(wanted, ys))
        torch.testing.assert_close(xs, wanted)
