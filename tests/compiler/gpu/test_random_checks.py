"""On a GPU: what draws random numbers is checked with the same ones, and leaves the generators."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.random import Generators

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
DRAWN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(F.gelu(x), 0.1) + x,
    "numbers": lambda x: (x * torch.rand_like(x)).softmax(-1) + torch.randn_like(x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", DRAWN)
def test_the_check_draws_the_same_numbers(name: str, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    compiled = fusec.compile(DRAWN[name], keep_inputs=True)
    compiled(torch.randn(64, 256, device="cuda", dtype=dtype))
    (graph,) = compiled.graphs
    before = Generators()
    verdict = graph.verify(timed=False)
    assert verdict.ok, verdict.reason
    assert Generators() == before
    assert verdict.outputs[0].eager_against_float64 is not None
