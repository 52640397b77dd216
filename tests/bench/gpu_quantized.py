"""Numbers of few bits on a GPU: rows quantized, products with quantized weights, very large sums.

Run on the GPU machine from the repository root; torch and Triton suffice::

    PYTHONPATH=compiler:tests python tests/bench/gpu_quantized.py [WORDS] [--seed N] [--no-peer]

Each workload is compared with float64 first (eager's own error beside it) and then timed call by
call in random order, the L2 overwritten before each: fusec, eager, TorchInductor, a copy that moves
the bytes that must be moved, and for products the product of the unpacked weight in half precision.
What is overwritten in the L2 has to be written to memory while something else is read, which costs
a product up to its own time; ``--graphs`` times products as decoding has them, too: launches of one
CUDA graph, each with a weight of its own, more of them than the L2 holds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import gpu
import torch
import torch.nn.functional as F
from common import flat, total_bytes
from gpu_workloads import Size, Workload, full_size

import fusec

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
FP8 = torch.float8_e4m3fn
GROUP = 128
ENOUGH = 300 << 20  # bytes of weights, several times what an L2 holds
Tensor = torch.Tensor


def wide(x: Tensor) -> Tensor:
    """``x`` as float32, as which its element-wise maths is computed; float64 stays what it is."""
    return x.to(torch.promote_types(x.dtype, F32))


def scaled(y: Tensor, dim: Any, to: torch.dtype) -> tuple[Tensor, Tensor]:
    """``y`` as numbers of 8 bits, and what they are times: an extreme along ``dim``."""
    most = 448.0 if to == FP8 else 127.0
    scale = y.abs().amax(dim, keepdim=True).clamp(min=1e-12) / most
    y = y / scale
    return (y if to == FP8 else y.round()).clamp(-most, most).to(to), scale


def gated(to: torch.dtype) -> Callable[..., Any]:
    """``silu(a) * b`` with a scale a row."""
    return lambda a, b: scaled(F.silu(wide(a)) * wide(b), -1, to)


def blocks(x: Tensor) -> Any:
    """A scale for each 128 elements of a row."""
    q, scale = scaled(wide(x).reshape(x.shape[0], -1, GROUP), -1, FP8)
    return q.reshape(x.shape), scale


def dequantized(w: Tensor, s: Tensor) -> Tensor:
    """Unsigned numbers of 4 bits, less 8, times a scale for each 128 of a row."""
    grouped = w.to(s.dtype).reshape(w.shape[0], -1, GROUP)
    return ((grouped - 8) * s[:, :, None]).reshape(w.shape)


def in_turns(x: Tensor, q: Tensor, s: Tensor) -> Tensor:
    """Neighbors share a byte."""
    w = torch.stack([q & 15, q >> 4], -1).reshape(q.shape[0], -1)
    return x @ dequantized(w, s).t()


def halves(x: Tensor, q: Tensor, s: Tensor) -> Tensor:
    """The first half of a row shares its bytes with the second."""
    return x @ dequantized(torch.cat([q & 15, q >> 4], -1), s).t()


def words(x: Tensor, q: Tensor, s: Tensor) -> Tensor:
    """Eight numbers down a column share an int32, as GPTQ has them."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=q.device)
    w = ((q[:, None, :] >> shifts[None, :, None]) & 15).reshape(-1, q.shape[1])
    return x @ dequantized(w.t(), s).t()


def eight_bits(x: Tensor, q: Tensor, s: Tensor) -> Tensor:
    """A scale a column."""
    return F.linear(x, q.to(x.dtype) * s[:, None])


def weight(rows: int, columns: int, inner: int, form: str, dtype: torch.dtype = F16) -> Any:
    """Return what makes the tensors of a product."""

    def make(n: Size) -> tuple[Tensor, ...]:
        k, c = max(n(inner), 2 * GROUP) // GROUP * GROUP, n(columns)
        x, s = torch.randn(rows, k, dtype=dtype), torch.rand(c, k // GROUP).to(dtype)
        if form == "bytes":
            return x, torch.randint(-127, 128, (c, k), dtype=torch.int8), s[:, 0].contiguous()
        if form == "words":
            return x, torch.randint(-(2**31), 2**31 - 1, (k // 8, c), dtype=torch.int32), s
        return x, torch.randint(0, 256, (c, k // 2), dtype=torch.uint8), s

    return make


def two(rows: int, columns: int) -> Any:
    """Return what makes two tensors in bfloat16."""
    return lambda n: tuple(torch.randn(n(rows), n(columns), dtype=BF16) for _ in range(2))


def many(bits: int, dtype: torch.dtype) -> Any:
    """Return what makes 2**bits elements."""
    return lambda n: (torch.randn(n(1 << bits, 5000), dtype=dtype),)


def _product(
    name: str, function: Any, rows: int, columns: int, inner: int, form: str, dtype: Any = F16
) -> Workload:
    make = weight(rows, columns, inner, form, dtype)
    return Workload(f"{name} {rows} x {columns} x {inner}", function, make, bound="product")


WORKLOADS = (
    Workload("silu * b to fp8, rows 8192x14336", gated(FP8), two(8192, 14336)),
    Workload("silu * b to int8, rows 8192x14336", gated(torch.int8), two(8192, 14336)),
    Workload("silu * b to fp8, rows 16384x4096", gated(FP8), two(16384, 4096)),
    Workload(
        "to fp8, rows 16384x5120",
        lambda x: scaled(wide(x), -1, FP8),
        lambda n: (torch.randn(n(16384), n(5120), dtype=BF16),),
    ),
    Workload(
        "to fp8, blocks of 128, 8192x14336",
        blocks,
        lambda n: (torch.randn(n(8192), n(14336, 256), dtype=BF16),),
    ),
    Workload(
        "to fp8, one scale, 8192x14336",
        lambda x: scaled(wide(x), (0, 1), FP8),
        lambda n: (torch.randn(n(8192), n(14336), dtype=BF16),),
        # read twice: no element can be scaled before the last one is seen
        moved=lambda given, results: 2 * total_bytes(flat(given)) + total_bytes(results),
    ),
    _product("4 bits in turns", in_turns, 1, 11008, 4096, "pairs"),
    _product("4 bits in turns", in_turns, 8, 11008, 4096, "pairs"),
    _product("4 bits in turns", in_turns, 16, 11008, 4096, "pairs"),
    _product("4 bits in turns", in_turns, 64, 11008, 4096, "pairs"),
    _product("4 bits in turns", in_turns, 1, 4096, 11008, "pairs"),
    _product("4 bits in turns", in_turns, 16, 4096, 11008, "pairs"),
    _product("4 bits in turns, bf16", in_turns, 16, 11008, 4096, "pairs", BF16),
    _product("4 bits in halves", halves, 16, 11008, 4096, "pairs"),
    _product("4 bits in words", words, 1, 11008, 4096, "words"),
    _product("4 bits in words", words, 16, 11008, 4096, "words"),
    _product("8 bits", eight_bits, 1, 11008, 4096, "bytes"),
    _product("8 bits", eight_bits, 16, 11008, 4096, "bytes"),
    Workload("sum of 2^26 fp16", torch.sum, many(26, F16)),
    Workload("sum of 2^28 fp16", torch.sum, many(28, F16)),
    Workload("sum of 2^28 fp32", torch.sum, many(28, F32)),
    Workload("sum of squares of 2^27 fp16", lambda x: (wide(x) ** 2).sum(), many(27, F16)),
)


def in_a_graph(calls: Sequence[Callable[[], object]], seconds: float) -> float:
    """Return the microseconds of a launch among those of one CUDA graph."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(times) < 7:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()  # the first waits for the host
        begin.record()
        for _ in range(3):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / 3 / len(calls))
    return statistics.median(times)


def graph_times(function: Any, inputs: Sequence[Tensor], w: Tensor, seconds: float) -> str:
    """Return what a product and the half-precision one take among others, and their ratio."""
    x, *rest = inputs
    copies = max(ENOUGH // sum(each.nbytes for each in rest), 2)
    weights = [tuple(each.clone() for each in rest) for _ in range(copies)]
    halves = [w.clone() for _ in range(max(ENOUGH // w.nbytes, 2))]
    own = in_a_graph([_bound(function, (x, *each)) for each in weights], seconds)
    their = in_a_graph([_bound(torch.mm, (x, each.t())) for each in halves], seconds)
    return f"  in a graph {own:.1f}, half {their:.1f}: {their / own:.2f} x"


def measure(workload: Workload, seconds: float, peer: bool, graphs: bool) -> str:
    """Return a line: microseconds, the share of the copy, what is wrong."""
    torch._dynamo.reset()
    inputs = gpu.make_inputs(workload, "cuda", full_size)
    fused = fusec.compile(workload.function, tuned=False)
    functions: dict[str, Any] = {"eager": workload.function, "fusec": fused}
    if peer:
        functions["inductor"] = torch.compile(workload.function, dynamic=False)
    with torch.no_grad():
        _, errors, wrong = gpu.check(workload, functions, inputs)
        results = flat([workload.function(*inputs)])
        moved = workload.moved(inputs, results) if workload.moved else 0
        moved = moved or total_bytes(flat(inputs)) + total_bytes(results)
        source = torch.empty(moved // 2, dtype=torch.int8, device="cuda")
        target = torch.empty_like(source)
        calls: dict[str, Callable[[], object]] = {
            name: _bound(function, inputs) for name, function in functions.items()
        }
        calls["copy"] = lambda: target.copy_(source)
        if workload.bound == "product":
            x, w = inputs[0], torch.randn(results[0].shape[1], inputs[0].shape[1])
            w = w.to(x)
            calls["half"] = lambda: x @ w.t()
        times = gpu.interleave(calls, seconds)
        more = ""
        if graphs and workload.bound == "product":
            more = graph_times(fused, inputs, w, seconds / 4)
    found = {name: statistics.median(each) for name, each in times.items()}
    columns = ("copy", "fusec", "inductor", "eager", "half")
    cells = "".join(f"{found[c]:>10.1f}" if c in found else f"{'':>10}" for c in columns)
    note = wrong or ("fell back" if fused.fallbacks else "")
    error = f"{errors['fusec']:.1e} ({errors['eager']:.1e})"
    return (
        f"{workload.name:<40}{cells}{found['copy'] / found['fusec']:>9.2f}  {error}{more}  {note}"
    )


def _bound(function: Callable[..., object], inputs: tuple[Any, ...]) -> Callable[[], object]:
    return lambda: function(*inputs)


def main(arguments: Sequence[str]) -> int:
    """Measure what is asked for; return 1 where a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="words; workloads whose name has one of them")
    parser.add_argument("--seconds", type=float, default=0.4, help="of timing a row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-peer", action="store_true", help="without TorchInductor")
    parser.add_argument("--graphs", action="store_true", help="products in CUDA graphs, too")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, seed {options.seed}")
    print(f"{'microseconds':<40}      copy     fusec  inductor     eager      half  of copy  error")
    failed = False
    for workload in WORKLOADS:
        if options.only and not any(word in workload.name for word in options.only):
            continue
        line = measure(workload, options.seconds, not options.no_peer, options.graphs)
        failed |= not line.endswith("  ")
        print(line, flush=True)
        torch.cuda.empty_cache()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
