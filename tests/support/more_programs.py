"""More small programs: products, weights of few bits, updates, windows, sizes that may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from support.few_bits import gated, halves, high_first, in_turns, quantize
from support.products import FUNCTIONS

HALF, BF16, I8, U8, I32, I64 = (
    torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64,
)  # fmt: skip
Tensor = torch.Tensor
Program = tuple[Callable[..., Any], tuple[Any, ...], int]
BIG, ROWS = (2048, 1024), (64, 4096)
N, M = "s40", "s24"  # sizes that may change, and what they are now
ORDER = [0, 4, 1, 5, 2, 6, 3, 7]


def scaled(w: Tensor, s: Tensor) -> Tensor:
    grouped = w.to(s.dtype).reshape(w.shape[0], s.shape[1], -1)
    return ((grouped - 8) * s[:, :, None]).reshape(w.shape)


def few_bits(unpack: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda x, q, s: x @ scaled(unpack(q), s).t()


def down_columns(q: Tensor) -> Tensor:
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    return ((q[:, None, :] >> shifts[None, :, None]) & 15).reshape(-1, q.shape[1]).t()


def awq(q: Tensor) -> Tensor:
    shifts = torch.tensor([4 * n for n in ORDER], dtype=torch.int32)
    return ((q[..., None] >> shifts) & 15).reshape(q.shape[0], -1)


def packed(rows: int, columns: int = 4096, inner: int = 2048) -> tuple[Any, ...]:
    return (rows, inner, HALF), (columns, inner // 2, U8), (columns, inner // 128, HALF)


def weighted_windows(x: Tensor, w: Tensor) -> Tensor:
    padded = F.pad(x, (0, 0, 1, 1, 1, 1))
    high, wide = x.shape[1:3]
    parts = [padded[:, i : i + high, j : j + wide] * w[i, j] for i in range(3) for j in range(3)]
    return sum(parts)  # type: ignore[return-value]


def two_norms(x: Tensor, y: Tensor, w: Tensor) -> Any:
    z = x + y
    return z, F.layer_norm(z, w.shape, w, w), z.pow(2).sum()


def ema(x: Tensor, m: Tensor) -> Any:
    return m * 0.9 + (x * m[:, None]).sum(1) * 0.1, (x - m[:, None]).exp().sum(1)


def center(x: Tensor) -> Any:
    return x * 2, (x - x.amax(1, keepdim=True)).exp().sum(1)


def sgd(p: Tensor, g: Tensor) -> Any:
    return p - 0.1 * g, (g * g).sum()


PRODUCTS: dict[str, Program] = {
    f"product, {name}": (function, tuple((*t.shape, t.dtype) for t in make()), 0)
    for name, (function, make, _) in FUNCTIONS.items()
}
MORE: dict[str, Program] = {
    "four bits in turns": (few_bits(in_turns), packed(1), 0),
    "four bits, high first": (few_bits(high_first), packed(4), 0),
    "four bits, halves": (few_bits(halves), packed(16), 0),
    "four bits, many rows": (few_bits(in_turns), packed(64), 0),
    "four bits, hundreds of rows": (few_bits(in_turns), packed(300), 0),
    "four bits, few columns": (few_bits(in_turns), packed(8, 300, 4096), 0),
    "four bits, many columns": (few_bits(in_turns), packed(1, 11008, 4096), 0),
    "four bits down columns": (
        few_bits(down_columns), ((2, 2048, HALF), (256, 4096, I32), (4096, 16, HALF)), 0,
    ),
    "four bits in another order": (
        few_bits(awq), ((8, 2048, BF16), (4096, 256, I32), (4096, 16, BF16)), 0,
    ),
    "bytes": (
        lambda x, q, s: F.linear(x, q.to(x.dtype) * s[:, :1]),
        ((2, 2048, HALF), (4096, 2048, I8), (4096, 16, HALF)), 0,
    ),
    "quantized rows": (lambda x: quantize(x, torch.int8), (ROWS,), 0),
    "quantized rows, gated": (lambda x, y: quantize(gated(x, y), I8), ((*ROWS, HALF),) * 2, 0),
    "ema": (lambda m, x: ema(x, m), ((64,), ROWS), 1),
    "center": (center, (ROWS,), 1),
    "center, halves": (center, ((*ROWS, HALF),), 1),
    "sgd": (sgd, (BIG, BIG), 1),
    "two norms": (two_norms, (BIG, BIG, (1024,)), 0),
    "windows with weights": (weighted_windows, ((8, 28, 28, 120), (3, 3, 120)), 0),
    "windows with weights, halves": (
        weighted_windows, ((64, 28, 28, 96, HALF), (3, 3, 96, HALF)), 0,
    ),
    "windows with weights, then widened": (
        lambda x, w: weighted_windows(x.relu(), w).float() * 2,
        ((8, 28, 28, 64, HALF), (3, 3, 64, HALF)), 0,
    ),
    "windows with weights of costly pixels": (
        lambda x, w: weighted_windows(x.exp().tanh(), w).sum((1, 2)),
        ((8, 28, 28, 64), (3, 3, 64)), 0,
    ),
    "windows with weights turned over": (
        lambda x, w: weighted_windows(x, w.permute(1, 2, 0).contiguous()),
        ((8, 28, 28, 64), (64, 3, 3)), 0,
    ),
    "enlarged": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), ((2, 8, 64, 64),), 0,
    ),
    "enlarged by three": (
        lambda x: F.interpolate(x, scale_factor=3, mode="bilinear"), ((2, 8, 64, 64),), 0,
    ),
    "enlarged, large": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), ((4, 64, 256, 256),), 0,
    ),
    "enlarged, three results": (
        lambda x: (y := F.interpolate(x, scale_factor=2, mode="bilinear"), y * 2, y + 1),
        ((4, 64, 256, 256),), 0,
    ),
    "shrunk": (lambda x: F.interpolate(x, size=(33, 47), mode="bilinear"), ((2, 8, 64, 64),), 0),
    "means of windows": (lambda x: F.adaptive_avg_pool2d(x, 7), ((4, 64, 14, 14),), 0),
    "sums along three": (lambda x: x.sum((0, 2, 3)), ((16, 32, 28, 28),), 0),
    "sums along two, turned": (lambda x: x.permute(2, 0, 1).sum((0, 2)), ((40, 50, 60),), 0),
    "largest along two, turned": (lambda x: x.permute(1, 2, 0).amax((0, 1)), ((40, 50, 60),), 0),
    "a chosen logit": (
        lambda x, t: -x.log_softmax(1).gather(1, t[:, None])[:, 0], ((256, 1000), (256, I64)), 0,
    ),
    "chosen rows, then summed": (
        lambda w, t: F.embedding(t, w).sum(1), ((1000, 64), (128, 20, I64)), 0,
    ),
    "checked, and a part of it read": (
        lambda w, t: F.embedding(t, w)[3:5] * 2, ((1000, 64), (128, I64)), 0,
    ),
    "one of many": (lambda t, w: F.one_hot(t, 50).float() @ w, ((256, I64), (50, 64)), 0),
    "one of many, down": (
        lambda x, t: (F.one_hot(t, 50).t() * x).sum(1), ((50, 256), (256, I64)), 0,
    ),
    "rows scattered": (
        lambda x, t, y: x.index_put((t,), y, accumulate=True), (BIG, (300, I64), (300, 1024)), 0,
    ),
    "stripes": (lambda x: torch.cat([x[:, ::2], x[:, 1::2]], 1).exp(), (BIG,), 0),
    "split": (lambda x: [y.exp() for y in x.split(300, 1)], (BIG,), 0),
    "turned and added": (lambda x, y: x.t() + y.exp(), ((300, 700), (700, 300)), 0),
    "four dimensions turned": (lambda x: x.permute(0, 3, 1, 2).contiguous(), ((8, 14, 14, 64),), 0),
    "heads": (
        lambda x: x.view(8, 128, 3, 12, 64).permute(2, 0, 3, 1, 4).contiguous(),
        ((8, 128, 2304),), 0,
    ),
    "rotated": (
        lambda x, c, s: x * c + torch.cat([-x[..., 32:], x[..., :32]], -1) * s,
        ((2, 12, 128, 64), (128, 64), (128, 64)), 0,
    ),
    "rows and columns of halves": (
        lambda x, w: (x.softmax(1) * w, (x * w).sum(0)), ((*BIG, HALF), (1024, HALF)), 0,
    ),
    "bias gradient of a softmax": (
        lambda g, y: (z := y * (g - (g * y).sum(1, keepdim=True)), z.sum(0)), (BIG, BIG), 0,
    ),
    "short rows": (lambda x: x.view(-1, 12).sum(1), ((4096, 12),), 0),
    "short rows, written": (lambda x: x.view(-1, 12).softmax(1), ((4096, 12),), 0),
    "short rows of a product": (lambda x, y: (x * y).sum(-1), ((4096, 24), (4096, 24)), 0),
    "rows of 77": (lambda x: (x - x.mean(1, keepdim=True)).pow(2).sum(1), ((512, 77),), 0),
    "angles": (lambda x: x.sin().cos().tan(), (BIG,), 0),
    "whole numbers": (lambda n: (n * n % 7 - n // 2).clamp(0, 99), ((*BIG, I32),), 0),
    "bits": (lambda n: (n ^ (n >> 3)) & 0xFF | (n << 2), ((*BIG, I64),), 0),
    "truth values": (lambda x: ((x > 0) & (x < 1) | x.isnan()).sum(1), (BIG,), 0),
    "chosen": (lambda x, y: torch.where(x > y, x.exp(), y.sin()), (BIG, BIG), 0),
    "rounded": (lambda x: (x * 127).round().clamp(-127, 127).to(I8), (BIG,), 0),
    "numbers of bytes": (lambda n: (n.float() * 0.1).half(), ((*BIG, U8),), 0),
    "powers": (lambda x: x.pow(2.5) + x.pow(3) + x.rsqrt(), (BIG,), 0),
    "softmax, symbolic": (lambda x: x.softmax(-1), ((N, M),), 0),
    "layer norm, symbolic": (lambda x, w: F.layer_norm(x, (768,), w, w), ((N, 768), (768,)), 0),
    "chain, symbolic": (lambda x, y: (x * 2).exp() + y, ((N, M), (M,)), 0),
    "turned, symbolic": (lambda x: x.t().contiguous().exp(), ((N, M),), 0),
    "joined, symbolic": (lambda x, y: torch.cat([x, y * 2]), ((N, 64), (M, 64)), 0),
    "flattened, symbolic": (lambda x: x.exp().view(-1).sum(), ((N, M),), 0),
    "reshaped, symbolic": (lambda x: x.view(-1, 8, 64).transpose(0, 1).exp(), ((N, 512),), 0),
    "columns, symbolic": (lambda x: (x.sum(0), x.amax(1)), ((N, M),), 0),
    "windows, symbolic": (lambda x: F.max_pool2d(x, 3, 2, 1), ((N, 16, M, M),), 0),
    "halved, symbolic": (lambda x: x[:, : x.shape[1] // 2] * x[:, x.shape[1] // 2 :], ((N, M),), 0),
    "running, symbolic": (lambda x: x.cumsum(1), ((N, M),), 0),
    "products, symbolic": (lambda x, w: (x @ w).relu(), ((N, 64, HALF), (64, 96, HALF)), 0),
    "norm gradient, symbolic": (
        lambda g, x: ((g * x).sum(0), g - g.mean(1, keepdim=True)), ((N, 768), (N, 768)), 0,
    ),
}  # fmt: skip
