"""What a GPU counts while a kernel runs."""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.timing.counters import count_kernels, count_lines
from fuselab.display.line_counts import counted_text, said_of

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


def test_the_lines_that_warps_are_at():
    x, w = torch.randn(4096, 2048, device="cuda"), torch.randn(2048, device="cuda")
    compiled = fusec.compile(
        lambda x, w: torch.softmax(torch.nn.functional.gelu(x) * w, -1), keep_inputs=True
    )
    compiled(x, w)
    (kernel,) = compiled.graphs[0].kernels
    found = count_lines(compiled.graphs[0], kernel.name)
    print(said_of(found), *counted_text(found, kernel.target), sep="\n")
    if found.missing:
        assert "Nsight Compute" in found.missing
        return
    lines = kernel.source.splitlines()
    assert found.elsewhere < 0.1
    assert all(lines[number - 1].strip() for number in found.lines)
    moving = [n for n in found.lines if "tl.load(" in lines[n - 1] or "tl.store(" in lines[n - 1]]
    moved = sum(found.lines[n].bytes for n in moving)
    assert 0.9 * 2 * x.nbytes <= moved <= 1.5 * 2 * x.nbytes
