"""Checks of edits whose inputs and results have 8 bits: torch has little arithmetic for them."""

from __future__ import annotations

import pytest
import torch

import fusec


@pytest.mark.parametrize(
    ("target", "dtype", "comment"),
    [
        ("triton", torch.float8_e4m3fn, "#"),
        ("cpp", torch.float8_e5m2, "//"),
        ("plain", torch.float8_e4m3fn, "//"),
    ],
    ids=str,
)
def test_an_edit_is_judged(target: str, dtype: torch.dtype, comment: str) -> None:
    x = (torch.randn(9, 200) * 8).to(dtype)
    compiled = fusec.compile(
        lambda x: (x.float() * 3).to(dtype), target=target, tuned=False, keep_inputs=True
    )
    compiled(x)
    (graph,) = compiled.graphs
    (kernel,) = graph.kernels
    same, wrong = kernel.source + f"\n{comment} the same\n", kernel.source.replace("3", "4")
    assert graph.check(kernel, same, timed=False).ok
    assert not graph.check(kernel, wrong, timed=False).ok
