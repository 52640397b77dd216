"""On a GPU: flex_attention whose warps have tasks of their own, against float64."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import fusec
from fusec.machine import this_machine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
HEADS, SHARED = 4, 2
MASKS: dict[str, Callable[..., Any]] = {
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k <= 70),
    "prefix": lambda b, h, q, k: (k < 200) | (q >= k),
    "later": lambda b, h, q, k: q >= k + 140,
    "nothing": lambda b, h, q, k: q < 0,
}


def _documents(length: int) -> Callable[..., Any]:
    numbers = (torch.arange(length, device="cuda") // 150).to(torch.int32)
    return lambda b, h, q, k: (numbers[q] == numbers[k]) & (q >= k)


def _score(name: str) -> Callable[..., Any] | None:
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], device="cuda")
    return {
        "alibi": lambda score, b, h, q, k: score + slopes[h] * (k - q),
        "soft cap": lambda score, b, h, q, k: 20 * torch.tanh(score / 20),
        "large": lambda score, b, h, q, k: torch.where(k < 5, score, score - 1e31),
    }.get(name)


def _function(name: str, length: int) -> Callable[..., Any]:
    mask = _documents(length) if name == "document" else MASKS.get(name)
    if name == "soft cap":
        mask = MASKS["causal"]
    blocks = None
    if mask is not None:
        blocks = create_block_mask(mask, 2, HEADS, length, length, device="cuda")
    score = _score(name)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        out, more = flex_attention(
            q,
            k,
            v,
            score_mod=score,
            block_mask=blocks,
            enable_gqa=True,
            return_aux=AuxRequest(lse=True),
        )
        return out, more.lse

    return attend


def _tensors(length: int, depth: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    shapes = [(2, HEADS, length, depth), *[(2, SHARED, length, depth)] * 2]
    return tuple(torch.randn(*shape, device="cuda", dtype=dtype) for shape in shapes)


def _is_right(own: Any, function: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> None:
    exact, eager = function(*(t.double() for t in given)), function(*given)
    for mine, wanted, usual in zip(own, exact, eager, strict=True):
        finite = wanted.isfinite()
        assert torch.equal(mine.double()[~finite], wanted[~finite])
        error = (mine.double() - wanted)[finite].abs().max() if finite.any() else 0.0
        allowed = (usual.double() - wanted)[finite].abs().max() if finite.any() else 0.0
        assert error <= 2 * allowed + 1e-3


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch.zeros(1, device="cuda")
    if this_machine().gpu.name != "sm_90" or not triton.__version__.startswith("3.6."):
        pytest.skip("no sm_90 with the Gluon that is written")


def _kernel(compiled: Any) -> Any:
    (graph,) = compiled.graphs
    (kernel,) = (k for k in graph.kernels if "tl.warp_specialize(" in k.source)
    return graph, kernel


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "name", ["none", "alibi", "soft cap", "large", "document", *MASKS], ids=str
)
def test_masks_and_scores(name: str, dtype: torch.dtype) -> None:
    function, given = _function(name, 768), _tensors(768, 128, dtype)
    compiled = fusec.compile(function, tuned=False)
    for _ in range(3):
        _is_right(compiled(*given), function, given)
        given = _tensors(768, 128, dtype)
    _kernel(compiled)


def test_rows_that_begin_anywhere() -> None:
    function = _function("causal", 1024)
    compiled = fusec.compile(function, tuned=False)
    for offset in (0, 1, 8, 3):
        given = tuple(
            torch.empty(t.numel() + offset, device="cuda", dtype=t.dtype)[offset:]
            .view(t.shape)
            .copy_(t)
            for t in _tensors(1024, 128, torch.bfloat16)
        )
        _is_right(compiled(*given), function, given)


@pytest.mark.parametrize("keys", [128, 384])
def test_blocks_as_large_as_the_keys_or_larger(keys: int) -> None:
    blocks = create_block_mask(
        MASKS["prefix"], 2, HEADS, 512, keys, device="cuda", BLOCK_SIZE=(128, 256)
    )

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return (flex_attention(q, k, v, block_mask=blocks, enable_gqa=True),)

    query, key, value = _tensors(512, 128, torch.bfloat16)
    given = query, key[:, :, :keys].contiguous(), value[:, :, :keys].contiguous()
    _is_right(fusec.compile(attend, tuned=False)(*given), attend, given)


def test_heads_between_the_rows() -> None:
    function = _function("window", 384)
    compiled = fusec.compile(function, tuned=False)
    given = tuple(
        t.transpose(1, 2).contiguous().transpose(1, 2) for t in _tensors(384, 128, torch.float16)
    )
    _is_right(compiled(*given), function, given)
    _kernel(compiled)


def test_lengths_that_have_a_rest_are_triton() -> None:
    function, given = _function("causal", 300), _tensors(300, 128, torch.float16)
    compiled = fusec.compile(function, tuned=False)
    _is_right(compiled(*given), function, given)
    assert all("warp_specialize" not in k.source for k in compiled.graphs[0].kernels)


def _gradients(
    function: Callable[..., Any], given: tuple[torch.Tensor, ...], dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    tensors = tuple(t.detach().to(dtype).requires_grad_() for t in given)
    out, sums = function(*tensors)
    torch.manual_seed(3)
    wanted = torch.randn(out.shape, device="cuda").to(out.dtype)
    loss = (out * wanted).sum() + torch.where(sums.isfinite(), sums, 0).sum()
    return torch.autograd.grad(loss, tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [256, 768])
@pytest.mark.parametrize(
    "name", ["none", "alibi", "soft cap", "large", "document", *MASKS], ids=str
)
def test_gradients(name: str, length: int, dtype: torch.dtype) -> None:
    function, given = _function(name, length), _tensors(length, 128, dtype)
    compiled = fusec.compile(function, tuned=False)
    for _ in range(2):
        found = _gradients(compiled, given, dtype)
        exact, eager = (_gradients(function, given, t) for t in (torch.float64, dtype))
        for mine, right, usual in zip(found, exact, eager, strict=True):
            error = (mine.double() - right).abs().max()
            assert error <= 2 * (usual.double() - right).abs().max() + 1e-3
        given = _tensors(length, 128, dtype)
    kernels = [kernel for graph in compiled.graphs for kernel in graph.kernels]
    apart = sum("_differentiate" in kernel.source for kernel in kernels)
    assert apart == (1 if name == "soft cap" else 2)


def test_stages_of_gradients() -> None:
    function = _function("window", 512)
    compiled = fusec.compile(function, tuned=False, keep_inputs=True)
    _gradients(compiled, _tensors(512, 128, torch.bfloat16), torch.bfloat16)
    (graph,) = compiled.graphs
    for kernel in graph.kernels:
        if "_differentiate" in kernel.source:
            (choices,) = re.findall(r"NUM_STAGES = \d+  # tunable: ([\d ]+) ", kernel.source)
            for stages in choices.split():
                source = re.sub(r"(?m)^NUM_STAGES = \d+", f"NUM_STAGES = {stages}", kernel.source)
                assert graph.check(kernel, source).ok, (kernel.name, stages)


def test_gradients_of_rows_that_begin_anywhere() -> None:
    function = _function("causal", 512)
    compiled = fusec.compile(function, tuned=False)
    for offset in (0, 1, 8, 3):
        given = tuple(
            torch.empty(t.numel() + offset, device="cuda", dtype=t.dtype)[offset:]
            .view(t.shape)
            .copy_(t)
            for t in _tensors(512, 128, torch.bfloat16)
        )
        tensors = tuple(t.requires_grad_() for t in given)
        out = compiled(*tensors)[0]
        found = torch.autograd.grad(out.float().square().sum(), tensors)
        exact = tuple(t.detach().double().requires_grad_() for t in given)
        right = torch.autograd.grad(function(*exact)[0].square().sum(), exact)
        for mine, wanted in zip(found, right, strict=True):
            assert (mine.double() - wanted).abs().max() <= 2e-2 * wanted.abs().max()


def test_values_that_are_not_finite() -> None:
    function, given = _function("none", 256), _tensors(256, 128, torch.bfloat16)
    given[0][0, 0, 3, 5] = float("nan")
    given[2][1, 1, 200, 7] = float("inf")
    out = fusec.compile(function, tuned=False)(*given)[0]
    eager = function(*given)[0]
    assert torch.equal(out.isnan(), eager.isnan())
    torch.testing.assert_close(out, eager, atol=2e-2, rtol=2e-2, equal_nan=True)


@pytest.mark.parametrize("name", ["none", "document", "later", "soft cap"])
def test_tiles_in_turn(name: str) -> None:
    function, given = _function(name, 1024), _tensors(1024, 128, torch.bfloat16)
    compiled = fusec.compile(function, tuned=False, keep_inputs=True)
    compiled(*given)
    graph, kernel = _kernel(compiled)
    for turns in (1, 2, 4, 8):
        for seats in (1, 2):
            source = re.sub(r"(?m)^TURNS = \d+", f"TURNS = {turns}", kernel.source)
            source = re.sub(r"(?m)^SEATS = \d+", f"SEATS = {seats}", source)
            assert graph.check(kernel, source).ok, (turns, seats)


def test_edits_are_checked_and_tuned() -> None:
    function, given = _function("soft cap", 1024), _tensors(1024, 128, torch.bfloat16)
    compiled = fusec.compile(function, tuned=False, keep_inputs=True)
    compiled(*given)
    graph, kernel = _kernel(compiled)
    assert graph.check(kernel, kernel.source + "\n# the same\n").ok
    wrong = kernel.source.replace("* 20.0", "* 20.5")
    assert wrong != kernel.source
    verdict = graph.check(kernel, wrong)
    assert not verdict.ok
    assert "differs from eager" in verdict.reason
    broken = graph.check(kernel, kernel.source.replace("tl.exp2(most", "tl.exq2(most", 1))
    assert not broken.ok
    assert broken.line == next(
        n for n, line in enumerate(kernel.source.splitlines(), 1) if "tl.exp2(most" in line
    )
    run = graph.tune(kernel, budget=20.0, progress=None, stop=None)
    assert sum(trial.timing is not None for trial in run.trials) > 1
    _is_right(compiled(*given), function, given)


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_gradients_of_a_mask_run_by_kernels(dropout: float) -> None:
    """The seed of a library's attention lies on the CPU, whatever fake tensors say of it."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> Any:
        found = F.scaled_dot_product_attention(q * 2, k * 2, v, attn_mask=m * 1, dropout_p=dropout)
        return (found * 2).float()

    shapes = [(2, 4, 49, 32)] * 3 + [(2, 4, 49, 49)]
    given = [torch.randn(s, device="cuda", dtype=torch.half, requires_grad=True) for s in shapes]
    compiled = fusec.compile(function)
    for _ in range(2):
        found = torch.autograd.grad(compiled(*given).sum(), given)
        assert not compiled.graphs[0].notes
        if not dropout:
            wanted = torch.autograd.grad(function(*given).sum(), given)
            for ours, eagers in zip(found, wanted, strict=True):
                torch.testing.assert_close(ours, eagers, atol=2e-2, rtol=2e-2)
