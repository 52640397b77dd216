"""The workloads of ``make bench-cpu``: what people run on a CPU, at sizes beyond its caches.

Each is a function with its inputs.  Where ``backward`` is set the function's inputs require
gradients and forward and backward are timed together, with a fixed gradient of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    Attributes:
        name: For people and ``--only``.
        function: What is compiled.
        inputs: Makes its inputs.
        backward: Whether its gradients are computed as well.
        bound: ``memory``: moving the bytes is the limit; ``compute``: a library's matrix product
            or the arithmetic is; ``call``: the call itself.
        moved: Bytes that it must move; None: its inputs and results, once each.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    backward: bool = False
    bound: str = "memory"
    moved: int | None = None


def _rand(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(*shape, dtype=dtype),)


def _norm_inputs(
    rows: int, width: int, dtype: torch.dtype = torch.float32
) -> Callable[[], tuple[Any, ...]]:
    return lambda: tuple(torch.randn(*s, dtype=dtype) for s in ((rows, width), (width,), (width,)))


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Layer norm over the last dimension."""
    return F.layer_norm(x, (x.shape[-1],), w, b)


def gelu_layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Gelu, then layer norm."""
    return F.layer_norm(F.gelu(x), (x.shape[-1],), w, b)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RMS norm over the last dimension, as Llama writes it."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def chain(x: torch.Tensor) -> torch.Tensor:
    """Exponentials and logarithms in a row."""
    return torch.tanh(x) * torch.sigmoid(x) + torch.log(x.abs() + 1) - torch.exp(-x.abs())


def waves(x: torch.Tensor) -> torch.Tensor:
    """Sines, cosines, powers."""
    return torch.sin(x) * torch.cos(2 * x) + (x.abs() + 0.5).pow(1.7)


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """Swish-gated halves."""
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def geglu(x: torch.Tensor) -> torch.Tensor:
    """Gelu-gated halves."""
    a, b = x.chunk(2, -1)
    return F.gelu(a) * b


def rotary(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """Rotary position embedding of queries and keys."""

    def turned(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    return q * cos + turned(q) * sin, k * cos + turned(k) * sin


def _rotary_inputs() -> tuple[Any, ...]:
    heads = [torch.randn(2, 16, 1024, 64) for _ in range(2)]
    return *heads, torch.randn(1024, 64), torch.randn(1024, 64)


def adamw(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> Any:
    """One step of AdamW, written out, out of place."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p * (1 - 1e-5) - 1e-3 * m / (v.sqrt() + 1e-8), m, v


def quantize(x: torch.Tensor) -> Any:
    """To int8 with a scale for each row."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


def dequantize(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """From int8 with a scale for each row."""
    return q.float() * scale


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Any:
    """Masked attention, written out."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v


def _attention_inputs() -> tuple[Any, ...]:
    return *(torch.randn(4, 8, 256, 64) for _ in range(3)), torch.ones(256, 256).triu(1).bool()


def mlp(x: torch.Tensor, up: torch.Tensor, a: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Two linear layers, gelu between them, and a residual."""
    return x + F.linear(F.gelu(F.linear(x, up, a)), down)


class ConvNormRelu(nn.Module):
    """Convolution, batch norm in inference, relu; twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(32, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        )
        self.eval()

    def forward(self, x: torch.Tensor) -> Any:
        """Return the result for x of batch x 32 x height x width."""
        with torch.no_grad():
            return self.layers(x)


def _cross_entropy_inputs() -> tuple[Any, ...]:
    return torch.randn(2048, 8192), torch.randint(0, 8192, (2048,))


def batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Batch norm in training and relu."""
    return F.batch_norm(x, None, None, w, b, training=True).relu()


def embed(index: torch.Tensor, table: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    """Embedding and layer norm."""
    return F.layer_norm(F.embedding(index, table), (table.shape[1],), w, b)


def add_rows(into: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows added at computed places."""
    return into.index_add(0, index, rows * 2)


def covariance(x: torch.Tensor) -> torch.Tensor:
    """Of columns, as a principal component analysis begins."""
    centered = x - x.mean(0)
    return centered.t() @ centered / (x.shape[0] - 1)


BF16, F16 = torch.bfloat16, torch.float16
M4 = (4096, 1024)

WORKLOADS = (
    Workload("softmax 4096x1024", lambda x: x.softmax(-1), _rand(*M4)),
    Workload("softmax 131072x32", lambda x: x.softmax(-1), _rand(131072, 32)),
    Workload("softmax 16x262144", lambda x: x.softmax(-1), _rand(16, 262144)),
    Workload("softmax dim 0", lambda x: x.softmax(0), _rand(1024, 4096)),
    Workload("softmax fp16", lambda x: x.softmax(-1), _rand(*M4, dtype=F16)),
    Workload("log_softmax 4096x1024", lambda x: x.log_softmax(-1), _rand(*M4)),
    Workload("log_softmax 131072x32", lambda x: x.log_softmax(-1), _rand(131072, 32)),
    Workload("layer norm", layer_norm, _norm_inputs(*M4)),
    Workload("layer norm backward", layer_norm, _norm_inputs(*M4), True),
    Workload("layer norm bf16", layer_norm, _norm_inputs(*M4, BF16)),
    Workload("gelu + layer norm", gelu_layer_norm, _norm_inputs(*M4)),
    Workload("rms norm", rms_norm, lambda: _norm_inputs(*M4)()[:2]),
    Workload("rms norm backward", rms_norm, lambda: _norm_inputs(*M4)()[:2], True),
    Workload(
        "group norm",
        lambda x, w, b: F.group_norm(x, 32, w, b),
        lambda: (torch.randn(16, 64, 64, 64), torch.randn(64), torch.randn(64)),
    ),
    Workload(
        "group norm 8x256x32x32",
        lambda x, w, b: F.group_norm(x, 32, w, b),
        lambda: (torch.randn(8, 256, 32, 32), torch.randn(256), torch.randn(256)),
    ),
    Workload(
        "batch norm backward",
        batch_norm,
        lambda: (torch.randn(32, 64, 32, 32), torch.randn(64), torch.randn(64)),
        True,
    ),
    Workload("gelu", F.gelu, _rand(*M4)),
    Workload("gelu backward", F.gelu, _rand(*M4), True),
    Workload("gelu bf16", F.gelu, _rand(*M4, dtype=BF16)),
    Workload("silu fp16", F.silu, _rand(*M4, dtype=F16)),
    Workload("swiglu", swiglu, _rand(2048, 4096)),
    Workload("geglu bf16", geglu, _rand(2048, 4096, dtype=BF16)),
    Workload("rotary", rotary, _rotary_inputs),
    Workload("cross-entropy", F.cross_entropy, _cross_entropy_inputs),
    Workload("cross-entropy backward", F.cross_entropy, _cross_entropy_inputs, True),
    Workload("adamw", adamw, lambda: tuple(torch.rand(*M4) for _ in range(4))),
    Workload("tanh sigmoid log exp", chain, _rand(*M4)),
    Workload("sin cos pow", waves, _rand(*M4)),
    Workload("quantize int8", quantize, _rand(*M4)),
    Workload(
        "dequantize int8",
        dequantize,
        lambda: (torch.randint(-127, 128, M4, dtype=torch.int8), torch.rand(4096, 1)),
    ),
    Workload(
        "transpose + add",
        lambda x, y: x.t() + y,
        lambda: (torch.randn(2048, 2048), torch.randn(2048, 2048)),
    ),
    Workload(
        "permute copy",
        lambda x: x.permute(0, 2, 1, 3).contiguous() * 2,
        _rand(8, 512, 16, 64),
    ),
    Workload(
        "outer sum",
        lambda x, y: x[:, None] + y[None, :],
        lambda: (torch.randn(2048), torch.randn(2048)),
    ),
    Workload("sum of squares", lambda x: (x * x).sum(), _rand(*M4)),
    Workload(
        "relu sum float64",
        lambda w, x, b: (w * x + b).relu().sum(),
        lambda: tuple(torch.randn(8_000_000, dtype=torch.float64) for _ in range(3)),
    ),
    Workload("sum dim 0", lambda x: (x * 2).sum(0), _rand(*M4)),
    Workload("argmax", lambda x: x.argmax(-1), _rand(*M4)),
    Workload("var_mean", lambda x: torch.var_mean(x, -1), _rand(*M4)),
    Workload("cumsum", lambda x: x.cumsum(-1), _rand(*M4)),
    Workload("cumprod dim 0", lambda x: (x * 0.1 + 1).cumprod(0), _rand(*M4)),
    Workload("max pool", lambda x: F.max_pool2d(x, 3, 2, 1), _rand(16, 32, 64, 64)),
    Workload("average pool", lambda x: F.avg_pool2d(x, 2), _rand(16, 32, 64, 64)),
    Workload(
        "interpolate",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        _rand(4, 32, 64, 64),
    ),
    Workload(
        "grid sample",
        lambda x, grid: F.grid_sample(x, grid, align_corners=False),
        lambda: (torch.randn(4, 16, 64, 64), torch.rand(4, 64, 64, 2) * 2.2 - 1.1),
    ),
    Workload("reflection pad", lambda x: F.pad(x, (3,) * 4, "reflect"), _rand(16, 16, 64, 64)),
    Workload(
        "embedding + layer norm",
        embed,
        lambda: (
            torch.randint(0, 30000, (8, 512)),
            torch.randn(30000, 768),
            torch.randn(768),
            torch.randn(768),
        ),
        moved=2 * 8 * 512 * 768 * 4,
    ),
    Workload(
        "scatter-add",
        add_rows,
        lambda: (torch.zeros(2048, 512), torch.randint(0, 2048, (8192,)), torch.randn(8192, 512)),
    ),
    Workload(
        "scatter-add along rows",
        lambda x, index, rows: x.scatter_add(1, index, rows),
        lambda: (
            torch.randn(1000, 512),
            torch.randint(0, 512, (1000, 512)),
            torch.randn(1000, 512),
        ),
    ),
    Workload(
        "adaptive average pool",
        lambda x: F.adaptive_avg_pool2d(x, 1),
        _rand(32, 512, 14, 14),
    ),
    Workload(
        "nearest of one dimension",
        lambda x: F.interpolate(x, scale_factor=2),
        _rand(16, 64, 1000),
    ),
    Workload("circular pad", lambda x: F.pad(x, (3, 3), "circular"), _rand(16, 64, 1000)),
    Workload("replication pad", lambda x: F.pad(x, (3,) * 4, "replicate"), _rand(16, 16, 64, 64)),
    Workload("roll", lambda x: x.roll((-3, -3), (1, 2)), _rand(8, 56, 56, 96)),
    Workload("moving average", lambda x: x.unfold(-1, 5, 1).mean(-1), _rand(16, 64, 1000)),
    Workload(
        "columns by index",
        lambda x, index: x.index_select(1, index),
        lambda: (torch.randn(1000, 512), torch.randint(0, 512, (700,))),
    ),
    Workload(
        "products of 8x8",
        torch.bmm,
        lambda: (torch.randn(10000, 8, 8), torch.randn(10000, 8, 8)),
    ),
    Workload("lgamma", torch.lgamma, lambda: (torch.rand(1024, 1024) * 10,), bound="compute"),
    Workload(
        "erfinv f64",
        torch.erfinv,
        lambda: (torch.rand(1024, 1024, dtype=torch.float64) * 2 - 1,),
        bound="compute",
    ),
    Workload("erfc", torch.erfc, _rand(1024, 1024), bound="compute"),
    Workload("rsqrt", torch.rsqrt, lambda: (torch.rand(1024, 1024) * 10,)),
    Workload("sum fp16", lambda x: x.sum(), _rand(*M4, dtype=F16)),
    Workload("columns of fp16", lambda x: x.sum(0), _rand(*M4, dtype=F16)),
    Workload(
        "covariance",
        covariance,
        _rand(4096, 64),
        bound="compute",
    ),
    Workload("dropout", lambda x: F.dropout(x, 0.1, True) * 2, _rand(*M4)),
    Workload("attention", attention, _attention_inputs, bound="compute"),
    Workload(
        "linear + gelu",
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        lambda: (torch.randn(1024, 512), torch.randn(2048, 512) / 23, torch.randn(2048)),
        bound="compute",
    ),
    Workload(
        "mlp",
        mlp,
        lambda: (
            torch.randn(512, 512),
            torch.randn(2048, 512) / 23,
            torch.randn(2048),
            torch.randn(512, 2048) / 45,
        ),
        bound="compute",
    ),
    Workload("conv + batch norm + relu", ConvNormRelu(), _rand(4, 32, 56, 56), bound="compute"),
    Workload(
        "softmax of a product",  # where dissections of torch.compile end
        lambda x, y: (x @ y).softmax(-1),
        lambda: (torch.randn(100, 100), torch.randn(100, 100)),
        bound="call",
    ),
    Workload(
        "64 elements",
        lambda x, y: (x + y).relu(),
        lambda: (torch.randn(64), torch.randn(64)),
        bound="call",
    ),
)
