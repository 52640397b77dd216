"""On a GPU: attention whose functions capture numbers that change, and tensors with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import fusec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
LENGTH, HEADS = 512, 4


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setenv("FUSEC_STRICT", "1")


def _tensors(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    shape = (2, HEADS, LENGTH, 128)
    return tuple(torch.randn(shape, device="cuda", dtype=dtype).requires_grad_() for _ in range(3))


def _masked(scores: torch.Tensor) -> torch.Tensor:
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device="cuda").triu(1)
    return scores.masked_fill(later, -float("inf"))


def _require_close(own: Any, exact: Any) -> None:
    for mine, wanted in zip(own, exact, strict=True):
        largest = max(float(wanted.abs().max()), 1.0)
        assert float((mine.double() - wanted).abs().max()) < 0.02 * largest


@pytest.fixture
def blocks() -> Any:
    return create_block_mask(lambda b, h, q, k: q >= k, None, None, LENGTH, LENGTH, device="cuda")


def test_a_number_that_changes(blocks: Any) -> None:
    def attend(q: Any, k: Any, v: Any, cap: float) -> Any:
        def bounded(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return cap * torch.tanh(score / cap)

        return flex_attention(q, k, v, score_mod=bounded, block_mask=blocks)

    compiled, tensors = fusec.compile(attend, tuned=False), _tensors()
    wide = tuple(t.detach().double().requires_grad_() for t in tensors)
    for cap in (20.0, 1.5, 0.75, 3.0):
        own = compiled(*tensors, cap)
        q, k, v = wide
        scores = cap * torch.tanh(q @ k.mT * 128**-0.5 / cap)
        exact = torch.softmax(_masked(scores), -1) @ v
        upstream = torch.randn_like(own)
        found = torch.autograd.grad(own, tensors, upstream)
        _require_close((own, *found), (exact, *torch.autograd.grad(exact, wide, upstream.double())))
    assert len(compiled.graphs) == 2
    externs = [extern.name for graph in compiled.graphs for extern in graph.externs]
    assert not any("flex" in name for name in externs), externs


@pytest.mark.parametrize("name", ["of a head", "relative", "of keys"])
def test_gradients_of_captured_tensors(name: str, blocks: Any) -> None:
    shape = {"of a head": (HEADS,), "relative": (HEADS, 2 * LENGTH), "of keys": (LENGTH,)}[name]
    table = torch.rand(shape, device="cuda").requires_grad_()

    def bias(t: Any, h: Any, i: Any, j: Any) -> Any:
        if name == "of a head":
            return t[h] * (j - i) / 64
        return t[h, i - j + LENGTH] if name == "relative" else t[j]

    def attend(q: Any, k: Any, v: Any, t: Any) -> Any:
        return flex_attention(
            q, k, v, lambda s, b, h, i, j: s + bias(t, h, i, j), block_mask=blocks
        )

    compiled, tensors = fusec.compile(attend, tuned=False), (*_tensors(), table)
    q, k, v, t = wide = tuple(t.detach().double().requires_grad_() for t in tensors)
    head = torch.arange(HEADS, device="cuda")[:, None, None]
    place = torch.arange(LENGTH, device="cuda")
    scores = q @ k.mT * 128**-0.5 + bias(t, head, place[:, None], place)
    exact = torch.softmax(_masked(scores), -1) @ v
    for _ in range(2):
        own = compiled(*tensors)
        upstream = torch.randn_like(own)
        found = torch.autograd.grad(own, tensors, upstream)
        right = torch.autograd.grad(exact, wide, upstream.double(), retain_graph=True)
        _require_close((own, *found), (exact, *right))
    assert not any(graph.externs for graph in compiled.graphs)
