"""The quickstart's cells, on the CPU or a GPU: correctness, and times beside eager's.

Run ``python tests/bench/quickstart_cells.py [--device cuda] [--dtype float16] [--inductor]``.
Every row is checked against eager and float64 on real and on fresh inputs, then timed interleaved
with eager (medians; on a GPU the L2 is flushed before each run).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import fusec


class Block(nn.Module):
    """A transformer block in plain PyTorch."""

    def __init__(self, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output for x of batch x time x width."""
        batch, steps, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, steps, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        future = torch.ones(steps, steps, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, steps, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def chain(x: torch.Tensor) -> torch.Tensor:
    """Elementary functions in a row."""
    return torch.tanh(x * 2 + 1) * torch.sigmoid(x) + x.abs().sqrt()


def gelu_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Scale, gelu, layer norm."""
    return F.layer_norm(F.gelu(x * w + b), (x.shape[-1],), w, b)


def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Softmax cross-entropy."""
    return F.cross_entropy(logits, target)


def mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Two matrix products with what stands between them."""
    return F.gelu(x @ up) @ down + x


def cells(device: str, dtype: torch.dtype) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return the cells with their inputs, at sizes that suit the device."""
    scale = 1 if device == "cpu" else 2

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    rows, width, classes = 4096 * scale, 1024 * scale, 8192 if device == "cpu" else 32000
    block = Block(512 * scale, 8 * scale).to(device=device, dtype=dtype).eval()
    target = torch.randint(0, classes, (2048 * scale,), device=device)
    return {
        "pointwise chain": (chain, (rand(rows, width),)),
        "gelu + layer norm": (gelu_norm, (rand(rows, width), rand(width), rand(width))),
        "cross-entropy": (loss, (rand(2048 * scale, classes), target)),
        "mlp": (mlp, (rand(rows, width), rand(width, 4 * width) / 32, rand(4 * width, width) / 64)),
        "transformer block": (block, (rand(4, 256 * scale, 512 * scale),)),
    }


def main() -> None:
    """Check and time every cell; print a table, and JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--inductor", action="store_true", help="time TorchInductor as well")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing a cell")
    parser.add_argument("--json", default="", help="write all figures to this file")
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"{fusec.device_summary()}, torch {torch.__version__}, {options.dtype}")
    print(f"{'cell':<20}{'kernels':>8}{'first s':>9}{'eager ms':>10}{'fused ms':>10}", end="")
    print(f"{'x':>7}{'inductor':>10}{'error':>10}{'eager err':>11}")
    rows = []
    with torch.no_grad():
        table = cells(options.device, getattr(torch, options.dtype))
        for name, (function, inputs) in table.items():
            rows.append(measure(name, function, inputs, options))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


def measure(
    name: str, function: Callable[..., Any], inputs: tuple[Any, ...], options: argparse.Namespace
) -> dict[str, Any]:
    """Check and time one cell; print its row."""
    from fusec.timing.measure import interleave

    torch._dynamo.reset()
    compiled = fusec.compile(function, keep_inputs=True)
    started = time.perf_counter()
    compiled(*inputs)
    if options.device == "cuda":
        torch.cuda.synchronize()
    first = time.perf_counter() - started
    calls = {"eager": lambda: function(*inputs), "fused": lambda: compiled(*inputs)}
    if options.inductor:
        peer = torch.compile(function)
        peer(*inputs)
        calls["inductor"] = lambda: peer(*inputs)
    gpu = options.device == "cuda"
    timings = interleave(calls, seconds=options.seconds, device=options.device, flush_l2=gpu)
    verdict = compiled.graphs[0].verify()
    worst = max(verdict.outputs, key=lambda o: o.against_eager, default=None)
    ratio = timings["eager"].median / timings["fused"].median
    row = {
        "cell": name,
        "kernels": list(compiled.kernels),
        "first_s": first,
        "ok": verdict.ok,
        "reason": verdict.reason,
        "fallbacks": compiled.fallbacks,
        **{f"{k}_ms": t.milliseconds for k, t in timings.items()},
        **{f"{k}_spread_ms": [t.low * 1e3, t.high * 1e3] for k, t in timings.items()},
    }
    peer_ms = f"{timings['inductor'].milliseconds:.3f}" if options.inductor else "-"
    print(
        f"{name:<20}{len(compiled.kernels):>8}{first:>9.2f}{timings['eager'].milliseconds:>10.3f}"
        f"{timings['fused'].milliseconds:>10.3f}{ratio:>7.2f}{peer_ms:>10}"
        f"{worst.against_float64 or 0 if worst else 0:>10.1e}"
        f"{worst.eager_against_float64 or 0 if worst else 0:>11.1e}"
        f"  {'ok' if verdict.ok else verdict.reason}",
        flush=True,
    )
    for reason in compiled.fallbacks:
        print(f"    {reason}")
    return row


if __name__ == "__main__":
    main()
