"""Views of a value's bits under another type, between half precision and others of its size."""

from __future__ import annotations

import itertools

import torch

import fusec

TYPES = (torch.float16, torch.bfloat16, torch.int16)


def test_bits_of_halves_under_another_type() -> None:
    def fn(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pairs = itertools.product(tensors, TYPES)
        return tuple((x * 2).view(asked) + 1 for x, asked in pairs if x.dtype != asked)

    given = [torch.linspace(-100, 100, 100).to(dtype) for dtype in TYPES]
    compiled = fusec.compile(fn)
    torch.testing.assert_close(compiled(*given), fn(*given), rtol=0, atol=0, equal_nan=True)
    (graph,) = compiled.graphs
    assert graph.kernels
    assert not graph.notes
