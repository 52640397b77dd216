"""Matrix products with epilogues on a GPU: fusec beside eager, BLAS alone and TorchInductor.

Run on the GPU machine from the repository root; torch and Triton suffice::

    PYTHONPATH=compiler:tests python tests/bench/gpu_matmul.py [WORDS] [--peers inductor max]

For each workload: compile, compare with float64 (eager's own error beside it), time all contestants
call by call in random order, the L2 overwritten before each call; medians and quartiles. "BLAS
alone" is the bare product without bias or epilogue. What fusec measured and chose at its first
compilation is printed below each line.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import fusec
from fusec.timing.measure import interleave

HALF, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Workload:
    """A function, its tensors on the device, and the bare product in it."""

    name: str
    function: Callable[..., Any]
    tensors: Callable[[], Tensors]
    product: Callable[..., Any]


def gelu_linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(torch.addmm(b, x, w))


def random(*shape: int, dtype: torch.dtype = HALF, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


def gelu(rows: int, columns: int, inner: int, dtype: torch.dtype = HALF) -> Workload:
    """``gelu(x @ w + b)``; w has its columns side by side."""
    return Workload(
        f"gelu {rows} x {columns} x {inner} {str(dtype)[6:]}",
        gelu_linear,
        lambda: (
            random(rows, inner, dtype=dtype),
            random(inner, columns, dtype=dtype, scale=inner**-0.5),
            random(columns, dtype=dtype),
        ),
        lambda x, w, b: torch.mm(x, w),
    )


def linear(
    rows: int, columns: int, inner: int, epilogue: str, dtype: torch.dtype = HALF
) -> Workload:
    """``nn.Linear`` with an epilogue: the weight has its rows side by side."""
    functions: dict[str, Callable[..., Any]] = {
        "gelu": lambda x, w, b, r: F.gelu(F.linear(x, w, b)),
        "residual": lambda x, w, b, r: r + F.linear(x, w, b),
        "relu": lambda x, w, b, r: F.relu(F.linear(x, w, b)),
    }
    return Workload(
        f"linear {epilogue} {rows} x {columns} x {inner} {str(dtype)[6:]}",
        functions[epilogue],
        lambda: (
            random(rows, inner, dtype=dtype),
            random(columns, inner, dtype=dtype, scale=inner**-0.5),
            random(columns, dtype=dtype),
            random(rows, columns, dtype=dtype),
        ),
        lambda x, w, b, r: F.linear(x, w),
    )


def quantized(rows: int, columns: int, inner: int) -> Workload:
    """int8 weights with a scale a column, dequantized on the way to a float16 product."""

    def tensors() -> Tensors:
        weight = torch.randint(-127, 128, (columns, inner), dtype=torch.int8, device="cuda")
        return random(rows, inner), weight, random(columns, scale=0.01 * inner**-0.5)

    return Workload(
        f"int8 weight {rows} x {columns} x {inner}",
        lambda x, q, s: F.linear(x, q.to(x.dtype) * s[:, None]),
        tensors,
        lambda x, q, s: F.linear(x, q.to(x.dtype)),
    )


def batched(count: int, rows: int, columns: int, inner: int) -> Workload:
    """Scaled products of a batch, with a mask added: the scores of attention."""
    return Workload(
        f"scores {count} x {rows} x {columns} x {inner}",
        lambda q, k, m: torch.bmm(q, k.transpose(1, 2)) * 0.125 + m,
        lambda: (random(count, rows, inner), random(count, columns, inner), random(rows, columns)),
        lambda q, k, m: torch.bmm(q, k.transpose(1, 2)),
    )


WORKLOADS = (
    gelu(4096, 4096, 4096),
    gelu(16, 11008, 4096),
    gelu(16, 4096, 11008),
    linear(4096, 4096, 4096, "gelu"),
    linear(16, 11008, 4096, "gelu"),
    gelu(8192, 4096, 4096),
    gelu(2048, 2048, 2048),
    gelu(1000, 1000, 1000),
    gelu(64, 11008, 4096),
    gelu(1, 11008, 4096),
    linear(8192, 1024, 1024, "residual"),
    linear(8192, 4096, 1024, "gelu", BF16),
    linear(512, 768, 3072, "residual", BF16),
    quantized(16, 11008, 4096),
    quantized(1, 4096, 4096),
    batched(96, 512, 512, 64),
    gelu(16, 4096, 4096, F32),
)


def compiled(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a peer's compilation of a function."""
    torch._dynamo.reset()
    mode = {"inductor": None, "max": "max-autotune-no-cudagraphs"}[kind]
    return torch.compile(function, mode=mode)


def error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest difference, as a share of the largest value."""
    return float((actual.double() - exact).abs().max() / exact.abs().max())


def measure(workload: Workload, peers: Sequence[str], rounds: int) -> dict[str, float]:
    """Print one workload's lines; return the medians in microseconds."""
    torch.manual_seed(0)
    tensors = workload.tensors()
    exact = workload.function(*(t.double() if t.is_floating_point() else t for t in tensors))
    torch._dynamo.reset()  # or the sizes of workloads that share a function become symbolic
    started = time.perf_counter()
    ours = fusec.compile(workload.function, matmul="auto")
    result = ours(*tensors)
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    errors = error(result, exact), error(workload.function(*tensors), exact)
    calls: dict[str, Callable[[], object]] = {
        "eager": lambda: workload.function(*tensors),
        "BLAS alone": lambda: workload.product(*tensors),
        "fusec": lambda: ours(*tensors),
    }
    for kind in peers:
        peer = compiled(kind, workload.function)
        peer(*tensors)
        calls[kind] = lambda peer=peer: peer(*tensors)  # type: ignore[misc]
    timings = interleave(calls, seconds=0, min_samples=rounds, device="cuda", flush_l2=True)
    medians = {name: timing.median * 1e6 for name, timing in timings.items()}
    cells = [
        f"{name} {medians[name]:7.1f} [{each.low * 1e6:.1f}..{each.high * 1e6:.1f}]"
        for name, each in timings.items()
    ]
    ratio = medians["eager"] / medians["fusec"]
    print(f"{workload.name:36s} {ratio:5.2f}x eager  {'  '.join(cells)}", flush=True)
    print(f"    error {errors[0]:.1e}, eager {errors[1]:.1e}; first call {first:.1f} s", flush=True)
    for graph in ours.graphs:
        for decision in graph.fusions:
            if "measured" in decision.reason:
                print(f"    {decision.reason}", flush=True)
        for kernel in graph.kernels:
            values = " ".join(f"{t.name}={t.value}" for t in kernel.tunables)
            print(f"    {kernel.name}: {kernel.generated.summary}; {values}", flush=True)
    return medians


def main() -> None:
    """Run what the arguments choose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only workloads whose name has one of these")
    parser.add_argument("--peers", nargs="*", default=["inductor", "max"])
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    found = []
    for workload in WORKLOADS:
        if not given.words or any(word in workload.name for word in given.words):
            found.append(measure(workload, given.peers, given.rounds))
    for name in found[0] if found else ():
        product = 1.0
        for medians in found:
            product *= medians[name] / medians["fusec"]
        print(f"{name}: {product ** (1 / len(found)):.3f}x fusec's time, geometric mean")


if __name__ == "__main__":
    main()
