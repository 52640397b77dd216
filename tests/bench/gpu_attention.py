"""Attention on a GPU: eight masks and score functions, forward and backward, written out too.

Run on the GPU machine from the repository root; torch and Triton suffice::

    PYTHONPATH=compiler:tests python tests/bench/gpu_attention.py [WORDS] [--seed N] [--no-peer]

Each workload is compared with float64 first, at a small size of odd length, eager's own error
beside it, and with eager at its real size; then it is timed call by call in random order, the L2
overwritten before each: fusec, TorchInductor, and where there is one the library's attention.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gpu
import torch
import torch.nn.functional as F
from common import geometric_mean
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import fusec

BF16 = torch.bfloat16
Tensor = torch.Tensor
WINDOW, PREFIX, CAP, DOCUMENTS = 512, 1024, 20.0, 12


@dataclass(frozen=True)
class Case:
    """One workload.

    Attributes:
        name: Its name.
        score: Makes the score function, given the size; None for none.
        mask: Makes the mask function; likewise.
        heads: Of queries, and of keys.
        batch: Batches.
        queries: Their number; 0 for as many as keys.
        keys: Their number.
        depth: Of a head.
        causal: What the library's attention is told; None where it has no such mask.
        written: Whether it is written out, as formulas have it.
    """

    name: str
    score: Callable[[int], Any] | None = None
    mask: Callable[[int], Any] | None = None
    heads: tuple[int, int] = (16, 16)
    batch: int = 2
    queries: int = 0
    keys: int = 4096
    depth: int = 128
    causal: bool | None = None
    written: bool = False


def causal(length: int) -> Any:
    """Each query sees the keys up to its own."""
    return lambda b, h, q, k: q >= k


def window(length: int) -> Any:
    """Each query sees the last few keys."""
    size = min(WINDOW, length // 3)
    return lambda b, h, q, k: (q >= k) & (q - k <= size)


def prefix(length: int) -> Any:
    """All see the beginning; the rest is causal."""
    size = min(PREFIX, length // 3)
    return lambda b, h, q, k: (k < size) | (q >= k)


def document(length: int) -> Any:
    """Causal within documents that lie one behind the other."""
    places = torch.rand(length, device="cuda", generator=_generator())
    ids = (places < DOCUMENTS / length).cumsum(0).to(torch.int32)
    return lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k)


def alibi(length: int) -> Any:
    """A bias that grows with the distance, by a slope a head."""
    slopes = torch.exp2(-torch.arange(1, 33, device="cuda") / 4)
    return lambda score, b, h, q, k: score + slopes[h] * (k - q)


def soft_cap(length: int) -> Any:
    """Scores within a bound."""
    return lambda score, b, h, q, k: CAP * torch.tanh(score / CAP)


def last(length: int) -> Any:
    """One query at the end sees all keys but the last few."""
    return lambda b, h, q, k: k < length - 5


def _generator() -> torch.Generator:
    return torch.Generator("cuda").manual_seed(7)


CASES = (
    Case("none", causal=False),
    Case("causal", mask=causal, causal=True),
    Case("sliding window", mask=window),
    Case("alibi", score=alibi),
    Case("soft cap, causal", score=soft_cap, mask=causal),
    Case("prefix", mask=prefix),
    Case("document", mask=document),
    Case("causal, depth 64", mask=causal, depth=64, causal=True),
    Case("decode, shared heads", heads=(32, 8), batch=8, queries=1, keys=8192),
    Case("decode, masked", mask=last, heads=(32, 8), batch=8, queries=1, keys=8192),
    Case("written out, 1024", keys=1024, causal=False, written=True),
    Case("written out, causal, 1024", keys=1024, causal=True, written=True),
    Case("written out, causal, 4096", causal=True, written=True),
)


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention as formulas have it."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v


def written_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same, each query with the keys up to its own."""
    length = q.shape[-2]
    later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


def make(case: Case, small: bool, dtype: torch.dtype = BF16) -> tuple[Any, tuple[Tensor, ...]]:
    """Return a function of queries, keys and values, and those."""
    keys = case.keys if not small else 333
    queries = case.queries or keys
    batch, (heads, shared) = case.batch, case.heads
    q = torch.randn(batch, heads, queries, case.depth, device="cuda", dtype=dtype)
    k, v = (
        torch.randn(batch, shared, keys, case.depth, device="cuda", dtype=dtype) for _ in range(2)
    )
    if case.written:
        return written_causal if case.causal else written_out, (q, k, v)
    score = case.score(keys) if case.score else None
    mask = case.mask(keys) if case.mask else None
    blocks = create_block_mask(mask, None, None, queries, keys, device="cuda") if mask else None

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(  # type: ignore[return-value]
            q, k, v, score_mod=score, block_mask=blocks, enable_gqa=heads != shared
        )

    return attend, (q, k, v)


def measure(case: Case, options: argparse.Namespace) -> tuple[str, dict[str, float]]:
    """Return a line and the medians: microseconds forward, backward, errors."""
    torch._dynamo.reset()
    attend, inputs = make(case, small=True)
    fused = fusec.compile(attend, tuned=False)
    with torch.no_grad():
        wanted = attend(*(t.double() for t in inputs))
        error = gpu.gap(fused(*inputs), wanted)
        eager = gpu.gap(attend(*inputs), wanted)
    wrong = "" if error <= 2 * eager + torch.finfo(BF16).eps else "WRONG"
    backward = case.queries != 1 and not options.forward
    if backward:
        own, their = (_gradients(f, inputs, wanted) for f in (fused, attend))
        exact = _gradients(attend, tuple(t.double() for t in inputs), wanted)
        for a, b, c in zip(own, their, exact, strict=True):
            error, eager = max(error, gpu.gap(a, c)), max(eager, gpu.gap(b, c))
        wrong = wrong if error <= 2 * eager + torch.finfo(BF16).eps else "WRONG"
    del wanted
    torch._dynamo.reset()
    attend, inputs = make(case, small=False)
    functions = {"fusec": fusec.compile(attend, tuned=False)}
    if not options.no_peer:
        functions["inductor"] = torch.compile(attend, dynamic=False)
    if case.causal is not None:
        functions["library"] = _library(case.causal)
    if options.eager:
        functions["eager"] = attend
    calls: dict[str, Callable[[], object]] = {}
    with torch.no_grad():
        results = {name: function(*inputs) for name, function in functions.items()}
        peer = results.get("inductor")
        if peer is not None and gpu.gap(results["fusec"], peer) > 0.02:
            wrong = "DIFFERS"
        del results
        calls = {name: _bound(function, inputs) for name, function in functions.items()}
        times = gpu.interleave(calls, options.seconds)
    found = {name: statistics.median(each) for name, each in times.items()}
    if backward:
        given = tuple(t.detach().requires_grad_() for t in inputs)
        gradient = torch.randn_like(given[0])
        calls = {name: _backward(function, given, gradient) for name, function in functions.items()}
        times = gpu.interleave(calls, options.seconds)
        found |= {f"{name} back": statistics.median(each) for name, each in times.items()}
    columns = ("fusec", "inductor", "library", "eager")
    cells = "".join(
        f"{found[c]:>10.1f}" if c in found else f"{'':>10}"
        for c in (*columns, *(f"{each} back" for each in columns))
    )
    ratios = "".join(
        f"{found[f'inductor{b}'] / found[f'fusec{b}']:>7.2f}"
        if f"inductor{b}" in found
        else " " * 7
        for b in ("", " back")
    )
    note = wrong or ("fell back" if functions["fusec"].fallbacks else "")  # type: ignore[attr-defined]
    return f"{case.name:<24}{cells}{ratios}  {error:.1e} ({eager:.1e})  {note}", found


def _gradients(function: Any, inputs: tuple[Tensor, ...], like: Tensor) -> tuple[Tensor, ...]:
    given = tuple(t.detach().requires_grad_() for t in inputs)
    gradient = torch.randn(like.shape, device="cuda", generator=_generator())
    return torch.autograd.grad(function(*given), given, gradient.to(given[0].dtype))


def _library(is_causal: bool) -> Any:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def _bound(function: Callable[..., object], inputs: tuple[Any, ...]) -> Callable[[], object]:
    return lambda: function(*inputs)


def _backward(function: Any, inputs: tuple[Tensor, ...], gradient: Tensor) -> Callable[[], object]:
    result = function(*inputs)
    return lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True)


def main(arguments: Sequence[str]) -> int:
    """Measure what is asked for; return 1 where a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="words; workloads whose name has one of them")
    parser.add_argument("--seconds", type=float, default=0.3, help="of timing a row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-peer", action="store_true", help="without TorchInductor")
    parser.add_argument("--forward", action="store_true", help="without gradients")
    parser.add_argument("--eager", action="store_true", help="time eager as well")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, seed {options.seed}")
    print(
        f"{'microseconds':<24}     fusec  inductor   library     eager back: fusec  inductor"
        "   library     eager  ratios         error (eager's)"
    )
    failed, ratios = False, []
    for case in CASES:
        if options.only and not any(word in case.name for word in options.only):
            continue
        line, found = measure(case, options)
        failed |= not line.endswith("  ")
        print(line, flush=True)
        for back in ("", " back"):
            if f"inductor{back}" in found:
                ratios.append(found[f"inductor{back}"] / found[f"fusec{back}"])
        torch.cuda.empty_cache()
    if ratios:
        print(f"geometric mean beside TorchInductor: {geometric_mean(ratios):.3f}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
