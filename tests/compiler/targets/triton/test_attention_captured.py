"""Gradients of the tensors that a score function of attention captures: a kernel that adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import fusec
from fusec.targets.triton.toolchain.cross_compile import artifacts
from support.attention import Sizes, causal, gradients, prepare, sources
from support.interpreted import Interpreted

SIZES = Sizes(2, 4, 2, 40, 40, 16)
F32, BF16, F64 = torch.float32, torch.bfloat16, torch.float64
DOCUMENT = torch.arange(40) // 11


@pytest.fixture(autouse=True)
def _prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch)


Mod = Callable[..., Any]

# What a function makes of captured tensors; their shapes; whether a mask with blocks is there.
CAPTURED: dict[str, tuple[Callable[..., Mod], tuple[tuple[int, ...], ...], bool]] = {
    "of a head": (lambda t: lambda s, b, h, i, j: s + t[h] * (j - i), ((4,),), True),
    "relative": (lambda t: lambda s, b, h, i, j: s + t[h, i - j + 39], ((4, 79),), True),
    "of keys": (lambda t: lambda s, b, h, i, j: s * t[b, j], ((2, 40),), False),
    "of queries": (lambda t: lambda s, b, h, i, j: torch.tanh(s * t[i]), ((40,),), False),
    "of documents": (lambda t: lambda s, b, h, i, j: s + t[DOCUMENT[i], h], ((4, 4),), True),
    "two": (lambda t, u: lambda s, b, h, i, j: s * t[h] + u[i, j], ((4,), (40, 40)), False),
    "read twice": (lambda t: lambda s, b, h, i, j: s + t[h] * t[j], ((40,),), True),
}


def attention(name: str) -> Callable[..., Any]:
    """Return attention of queries, keys, values and what its function captures."""
    make, _, masked = CAPTURED[name]
    blocks = None
    if masked:
        blocks = create_block_mask(causal, None, None, 40, 40, device="cpu", BLOCK_SIZE=16)

    def attend(q: Any, k: Any, v: Any, *captured: Any) -> Any:
        return flex_attention(q, k, v, make(*captured), block_mask=blocks, enable_gqa=True)

    return attend


def given(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    captured = (torch.rand(shape, generator=generator) for shape in CAPTURED[name][1])
    return (*SIZES.tensors(dtype), *(each.to(dtype) for each in captured))


def require_close(own: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    error, usual = (float((each.double() - exact).abs().max()) for each in (own, eager))
    largest = max(float(exact.abs().max()), 1.0)
    assert error <= 2 * usual + max(torch.finfo(own.dtype).eps, 1e-5) * largest


@pytest.mark.triton
@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("name", CAPTURED)
def test_gradients_of_captured_tensors(name: str, dtype: torch.dtype) -> None:
    attend, tensors = attention(name), given(name, dtype)
    compiled = fusec.compile(attend, target="triton")
    exact, eager = gradients(attend, tensors, F64), gradients(attend, tensors, dtype)
    for own, usual, right in zip(gradients(compiled, tensors, dtype), eager, exact, strict=True):
        assert own.dtype == usual.dtype
        require_close(own, usual, right)
    assert not any(graph.externs for graph in compiled.graphs)
    summaries = [kernel.generated.summary for kernel in compiled.kernels.values()]
    assert sum("captured tensors" in summary for summary in summaries) == 1


@pytest.mark.parametrize("name", ["relative", "two"])
def test_the_body_itself(name: str) -> None:
    attend, tensors = attention(name), given(name, F32)
    backend = Interpreted(products=True)
    found = gradients(torch.compile(attend, backend=backend), tensors, F32)
    for own, right in zip(found, gradients(attend, tensors, F64), strict=True):
        assert float((own - right).abs().max()) < 1e-4


@pytest.mark.triton
def test_only_what_has_a_gradient_is_added_to() -> None:
    table, slopes = torch.rand(40), torch.rand(4, dtype=torch.float16)

    def attend(q: Any, k: Any, v: Any, t: Any) -> Any:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s * table[j] + t[h].float() * j)

    def exact(q: Any, k: Any, v: Any, t: Any) -> Any:
        scores = q.double() @ k.double().mT / 4 * table.double()
        scores = scores + t.double()[:, None, None] * torch.arange(40)
        return torch.softmax(scores, -1) @ v.double()

    found = []
    for function in (fusec.compile(attend, target="triton"), exact):
        own = slopes.clone().requires_grad_()
        function(*Sizes(1, 4, 4, 40, 40, 16).tensors(F32), own)[..., 0].sum().backward()
        found.append(own.grad)
    assert found[0].dtype == torch.float16
    torch.testing.assert_close(*found, rtol=2e-3, atol=0)  # eager adds up in half precision


@pytest.mark.triton
@pytest.mark.sample(1)
@pytest.mark.parametrize("gpu", ["sm_90", "gfx942"])
def test_places_that_are_the_same_along_a_tile_are_added_to_once(gpu: str) -> None:
    for name, summed in (("of a head", "tl.sum("), ("of keys", ", 0, keep_dims"), ("two", "")):
        tensors = tuple(t.requires_grad_() for t in given(name, BF16))
        *_, kernel = sources(attention(name), tensors)
        assert "tl.atomic_add" in kernel.text
        assert summed in kernel.text
        kind = "amdgcn" if gpu == "gfx942" else "ptx"
        if name == "of keys":
            code = artifacts(kernel.text, kernel.signature, gpu=gpu, kinds=(kind,))[kind]
            assert "atom" in code


@pytest.mark.slow
@pytest.mark.triton
def test_in_deterministic_mode_they_are_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.lower.scatter.steps.is_gpu", lambda device: True)
    attend, tensors = attention("of a head"), given("of a head", F32)
    exact, eager = gradients(attend, tensors, F64), gradients(attend, tensors, F32)
    compiled = fusec.compile(attend, target="triton")
    torch.use_deterministic_algorithms(True)
    try:
        found = gradients(compiled, tensors, F32)
    finally:
        torch.use_deterministic_algorithms(False)
    for own, usual, right in zip(found, eager, exact, strict=True):
        require_close(own, usual, right)
    assert not compiled.fallbacks
    reasons = [extern.reason for graph in compiled.graphs for extern in graph.externs]
    assert any("deterministic" in reason for reason in reasons), reasons
