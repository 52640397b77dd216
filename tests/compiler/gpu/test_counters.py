"""What a GPU counts while a kernel runs."""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.timing.counters import count_kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


def test_what_cupti_records_and_nsight_counts():
    x = torch.randn(2048, 2048, device="cuda")
    compiled = fusec.compile(lambda x: x.softmax(-1), keep_inputs=True)
    compiled(x)
    (found,) = count_kernels(compiled.graphs[0])
    assert found.events["starts"] == 1
    assert 8 <= found.events["registers a thread"] <= 255
    print(found)
    if not found.missing:  # where Nsight Compute is, and may count
        moved = x.numel() * x.element_size()
        assert 0.9 * moved <= found.events["bytes read from memory"] <= 1.5 * moved
        assert found.events["instructions of warps"] > 0
