"""Functions around matrix products, for the tests with and without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from support.triton_bodies import F32

HALF, BF16, F64 = torch.float16, torch.bfloat16, torch.float64


Tensors = tuple[torch.Tensor, ...]


def random(*shape: int, dtype: torch.dtype = HALF, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def weight(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return random(*shape, dtype=dtype, scale=shape[-2] ** -0.5)


def int8(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(-50, 50, shape, dtype=torch.int8, generator=generator)


def thrice(y: torch.Tensor) -> Tensors:
    return y, y.relu(), y > 0


def with_sums(y: torch.Tensor) -> Tensors:
    return y, y.sum(1), y.amax(1, keepdim=True)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], Tensors], int]] = {
    # name: function, inputs, kernels
    "bare": (lambda x, w: x @ w, lambda: (random(70, 130), weight(130, 90)), 1),
    "bias and gelu": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        lambda: (random(100, 200), weight(200, 72).t().contiguous(), random(72)),
        1,
    ),
    "residual, alpha": (
        lambda x, w, r: torch.addmm(r, x, w, beta=0.5, alpha=2) + r,
        lambda: (random(70, 130), weight(130, 90), random(70, 90)),
        1,
    ),
    "beta 0 hides NaN": (
        lambda x, w, r: torch.addmm(r, x, w, beta=0).relu(),
        lambda: (random(70, 130), weight(130, 90), torch.full((90,), torch.nan, dtype=HALF)),
        1,
    ),
    "row scale": (
        lambda x, w, s: (x @ w) * s[:, None],
        lambda: (random(70, 130), weight(130, 90), random(70)),
        1,
    ),
    "two results": (
        lambda x, w, r: thrice(x @ w + r),
        lambda: (random(70, 130), weight(130, 90), random(70, 90)),
        1,
    ),
    "dequantized weight": (
        lambda x, q, s: F.linear(x, q.to(x.dtype) * s[:, None]),
        lambda: (random(70, 130), int8(90, 130), random(90, scale=0.01)),
        1,
    ),
    "cast weight, one row": (
        lambda x, w: x @ w.to(x.dtype),
        lambda: (random(1, 130), weight(130, 90, dtype=F32)),
        1,
    ),
    "relu before": (
        lambda x, w: x.relu() @ w,
        lambda: (random(70, 130), weight(130, 90)),
        1,
    ),
    "one after the other": (
        lambda x, w, v: ((x @ w).relu() @ v).sigmoid(),
        lambda: (random(70, 130), weight(130, 90), weight(90, 64)),
        2,
    ),
    "gate": (
        lambda x, w, v: F.silu(x @ w) * (x @ v),
        lambda: (random(70, 130), weight(130, 90), weight(130, 90) * 2),
        2,
    ),
    "transposed operands": (
        lambda x, w: (x.t() @ w.t()).relu(),
        lambda: (random(130, 70), weight(90, 130)),
        1,
    ),
    "a slice": (
        lambda x, w: (x[3:, 1:] @ w).relu(),
        lambda: (random(70, 131), weight(130, 90)),
        1,
    ),
    "itself": (lambda x: (x @ x.t()).relu(), lambda: (random(70, 64, scale=0.3),), 1),
    "its square": (lambda x: (x @ x).relu(), lambda: (random(72, 72, scale=0.1),), 1),
    "batched": (
        lambda x, w: torch.bmm(x, w).tanh(),
        lambda: (random(3, 50, 70), weight(3, 70, 40)),
        1,
    ),
    "a batch of one": (
        lambda x, w: torch.bmm(x, w).tanh(),
        lambda: (random(1, 50, 70), weight(1, 70, 40)),
        1,
    ),
    "an expanded batch": (
        lambda x, w: torch.matmul(x, w.expand(3, 70, 40)).tanh(),
        lambda: (random(3, 50, 70), weight(1, 70, 40)),
        1,
    ),
    "scores with a mask": (
        lambda q, k, m: torch.matmul(q, k.transpose(-1, -2)) * 0.125 + m,
        lambda: (random(2, 3, 50, 64), random(2, 3, 40, 64), random(50, 40)),
        1,
    ),
    "baddbmm": (
        lambda b, x, w: torch.baddbmm(b, x, w, beta=0.5, alpha=2.0).relu(),
        lambda: (random(3, 1, 40), random(3, 50, 70), weight(3, 70, 40)),
        1,
    ),
    "bfloat16": (
        lambda x, w, b: F.gelu(torch.addmm(b, x, w)),
        lambda: (random(70, 130, dtype=BF16), weight(130, 90, dtype=BF16), random(90, dtype=BF16)),
        1,
    ),
    "float32": (
        lambda x, w, b: F.gelu(torch.addmm(b, x, w)),
        lambda: (random(70, 130, dtype=F32), weight(130, 90, dtype=F32), random(90, dtype=F32)),
        1,
    ),
    "one row": (
        lambda x, w, b: F.gelu(torch.addmm(b, x, w)),
        lambda: (random(1, 1300), weight(1300, 90), random(90)),
        1,
    ),
    "one column": (lambda x, w: (x @ w).relu(), lambda: (random(90, 130), weight(130, 1)), 1),
    "a softmax after": (
        lambda x, w: (x @ w + 1).softmax(-1) * 2,
        lambda: (random(70, 130), weight(130, 90)),
        1,
    ),
    "a softmax of known width": (
        lambda x, w: (x @ w).softmax(-1),
        lambda: (random(70, 64), weight(64, 128)),
        1,
    ),
    "a float32 softmax": (
        lambda x, w: torch.softmax(x @ w, dim=1),
        lambda: (random(100, 100, dtype=F32), weight(100, 100, dtype=F32)),
        1,
    ),
    "residual and layer norm": (
        lambda x, w, b, r: F.layer_norm(F.linear(x, w, b) + r, (96,), b, b),
        lambda: (random(70, 64), weight(96, 64), random(96), random(70, 96)),
        1,
    ),
    "rows and their sums": (
        lambda x, w: with_sums(x @ w),
        lambda: (random(70, 64), weight(64, 90)),
        1,
    ),
    "cross entropy": (
        lambda x, w: F.cross_entropy(x @ w, torch.arange(30, device=x.device), reduction="none"),
        lambda: (random(30, 64, dtype=F32), weight(64, 40, dtype=F32)),
        2,
    ),
    "attention with bounded scores": (
        lambda q, k, v: (q @ k.transpose(-1, -2) * 0.2).tanh().softmax(-1) @ v,
        lambda: (random(2, 3, 50, 64), random(2, 3, 40, 64), random(2, 3, 40, 64)),
        2,
    ),
    "a long row": (
        lambda x, w: (x @ w).softmax(-1),
        lambda: (random(20, 64), weight(64, 300)),
        2,
    ),
    "sums of columns": (
        lambda x, w: (x @ w).sum(0),
        lambda: (random(70, 64), weight(64, 90)),
        2,
    ),
}


VECTORS: dict[str, tuple[Any, tuple[tuple[int, ...], ...], int, int]] = {
    # a function of halves, their shapes, its kernels, its calls of BLAS
    "gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), ((1, 256), (192, 256), (192,)), 1, 0),
    "gated": (lambda x, g, w: F.linear(F.silu(x) * g, w), ((1, 256), (1, 256), (90, 256)), 2, 0),
    "quantized": (lambda x, q, s: F.linear(x, q.round() * s), ((1, 70), (90, 70), (90, 1)), 1, 0),
    "norm": (
        lambda x, g, w: F.linear(F.rms_norm(x, (70,), g), w),
        ((1, 1, 70), (70,), (9, 70)),
        2,
        0,
    ),
    "in a row": (
        lambda x, v, w: F.linear(F.gelu(F.linear(x, v)), w),
        ((1, 64), (96, 64), (32, 96)),
        2,
        0,
    ),
    "softmax": (lambda x, w: F.linear(x, w / 16).softmax(-1), ((1, 256), (192, 256)), 2, 0),
    "matrix and vector": (lambda x, w: torch.mv(w, x), ((256,), (192, 256)), 1, 0),
    "two vectors": (lambda x, w: x @ w, ((1, 256), (256, 1)), 1, 0),
    "columns contiguous": (lambda x, w: x @ w, ((1, 256), (256, 192)), 0, 1),
    "two rows": (F.linear, ((2, 256), (192, 256)), 0, 1),
    "a batch": (lambda x, w: x @ w.mT, ((3, 1, 256), (3, 192, 256)), 0, 1),
}
