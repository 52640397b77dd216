"""The workloads of ``make bench-gpu``: what models spend their memory traffic on, at real sizes.

Sizes go through ``n(real, small)``, so that a test can ask for the same workloads small enough for
Triton's interpreter.  Where ``backward`` is set the inputs require gradients, and forward and
backward are timed together, with a fixed gradient of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from common import flat, total_bytes
from cpu_workloads import (
    add_rows,
    batch_norm,
    chain,
    embed,
    geglu,
    gelu_layer_norm,
    layer_norm,
    quantize,
    rms_norm,
    rotary,
    swiglu,
)

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
FP8 = torch.float8_e4m3fn
Size = Callable[..., int]
Inputs = Callable[[Size], tuple[Any, ...]]


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    Attributes:
        name: For people and for the filter.
        function: What is compiled.
        inputs: Makes its inputs on torch's default device; takes what scales each size.
        backward: Whether its gradients are computed as well.
        bound: ``memory``: moving the bytes is the limit; ``compute``: a matrix product is.
        moved: Bytes that it must move, from its inputs and results; None: all of them, once
            forward and once backward.
        changes: Whether it changes its inputs in place.
    """

    name: str
    function: Callable[..., Any]
    inputs: Inputs
    backward: bool = False
    bound: str = "memory"
    moved: Callable[[tuple[Any, ...], list[Any]], int] | None = None
    changes: bool = False


def full_size(real: int, small: int = 0) -> int:
    """Return a size as it is measured."""
    return real


def tiny_size(real: int, small: int = 0) -> int:
    """Return a size that an interpreter copes with: the one given, or a small part of the real."""
    return small or max(real >> 8, 3)


def _randn(*shape: int, dtype: torch.dtype = F32) -> Inputs:
    return lambda n: (torch.randn([n(s) for s in shape], dtype=dtype),)


def _norm(rows: int, width: int, dtype: torch.dtype, count: int = 3) -> Inputs:
    def make(n: Size) -> tuple[Any, ...]:
        shapes = [(n(rows), n(width)), (n(width),), (n(width),)]
        return tuple(torch.randn(s, dtype=dtype) for s in shapes[:count])

    return make


def _images(batch: int, channels: int, side: int, dtype: torch.dtype, last: bool = False) -> Inputs:
    def make(n: Size) -> tuple[Any, ...]:
        few = n(channels, 8)
        x = torch.randn(n(batch), few, n(side), n(side), dtype=dtype)
        if last:
            x = x.to(memory_format=torch.channels_last)
        # the parameters of a norm stay in float32 under autocast
        return x, torch.randn(few), torch.randn(few)

    return make


def _logits(rows: int, classes: int, dtype: torch.dtype) -> Inputs:
    return lambda n: (
        torch.randn(n(rows), n(classes), dtype=dtype),
        torch.randint(0, n(classes), (n(rows),)),
    )


def group_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Group norm in float32, as under autocast, back in the input's dtype; then silu."""
    groups = 32 if x.shape[1] % 32 == 0 else 4
    return F.silu(F.group_norm(x.to(w.dtype), groups, w, b)).to(x.dtype)


def fused_linear_cross_entropy(
    h: torch.Tensor, table: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    """The end of a language model: logits and their loss."""
    return F.cross_entropy((h @ table.t()).float(), target)


def masked_softmax(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention's weights under a mask."""
    return (scores * 0.125).masked_fill(mask, float("-inf")).softmax(-1)


def masked_logsumexp(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Log-sum-exp of what a mask keeps."""
    return x.float().masked_fill(~keep, float("-inf")).logsumexp(-1)


def quantize_fp8(x: torch.Tensor) -> Any:
    """To fp8 with a scale for each row."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448.0
    return (x.float() / scale).clamp(-448.0, 448.0).to(FP8), scale


def dequantize(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """From int8 with a scale for each row, to bfloat16."""
    return (q.float() * scale).to(BF16)


def _parameters(n: Size) -> tuple[Any, ...]:
    """Return the parameters of six transformer layers, their gradients, and AdamW's state."""
    d = n(1024)
    layer = [(3 * d, d), (3 * d,), (d, d), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,)]
    layer += [(d,)] * 4
    shapes = layer * n(6, 1)
    parameters, gradients, m = ([torch.randn(s) * 0.1 for s in shapes] for _ in range(3))
    return parameters, gradients, m, [torch.rand(s) for s in shapes]


def adamw(p: list[Any], g: list[Any], m: list[Any], v: list[Any]) -> Any:
    """One step of AdamW over all parameters, in place, as ``torch.optim`` does it."""
    torch._foreach_mul_(p, 1 - 1e-5)
    torch._foreach_lerp_(m, g, 0.1)
    torch._foreach_mul_(v, 0.999)
    torch._foreach_addcmul_(v, g, g, 0.001)
    spread = torch._foreach_sqrt(v)
    torch._foreach_add_(spread, 1e-8)
    torch._foreach_addcdiv_(p, m, spread, -1e-3)
    return p[0].view(-1)[:1] * 1


def residual_rms_norm(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> Any:
    """The residual connection and the norm of what follows it; both are needed."""
    h = x + residual
    return rms_norm(h, w), h


def embedding_backward(gradient: torch.Tensor, index: torch.Tensor, table: torch.Tensor) -> Any:
    """The gradient of an embedding table."""
    return torch.ops.aten.embedding_dense_backward(gradient, index, table.shape[0], -1, False)


def _rotary_inputs(n: Size) -> tuple[Any, ...]:
    heads = [torch.randn(4, n(32, 2), n(4096), n(128, 8), dtype=BF16) for _ in range(2)]
    return *heads, *(torch.randn(n(4096), n(128, 8), dtype=BF16) for _ in range(2))


def _tokens(n: Size) -> torch.Tensor:
    return torch.randint(0, n(50257), (8, n(2048)))


def _gathered(inputs: tuple[Any, ...], results: list[Any]) -> int:
    """Bytes of what rows are gathered into, read and written."""
    return 2 * total_bytes(results)


def _embedded(n: Size) -> tuple[Any, ...]:
    d = n(1024)
    weights = [torch.randn(s, dtype=BF16) for s in ((n(50257), d), (d,), (d,))]
    return _tokens(n), *weights


WORKLOADS = (
    # softmax and its like
    Workload("softmax 4096x4096 fp16", lambda x: x.softmax(-1), _randn(4096, 4096, dtype=F16)),
    Workload("softmax 4096x4096 fp32", lambda x: x.softmax(-1), _randn(4096, 4096)),
    Workload("softmax 1024x32768 bf16", lambda x: x.softmax(-1), _randn(1024, 32768, dtype=BF16)),
    Workload("softmax 128x131072 fp16", lambda x: x.softmax(-1), _randn(128, 131072, dtype=F16)),
    Workload("softmax 64x262144 fp32", lambda x: x.softmax(-1), _randn(64, 262144)),
    Workload(
        "softmax dim 0 8192x4096 bf16", lambda x: x.softmax(0), _randn(8192, 4096, dtype=BF16)
    ),
    Workload(
        "log_softmax 8192x8192 bf16", lambda x: x.log_softmax(-1), _randn(8192, 8192, dtype=BF16)
    ),
    Workload(
        "log_softmax channels fp16",
        lambda x: x.log_softmax(1),
        lambda n: (torch.randn(16, 21, n(512), n(512), dtype=F16),),
    ),
    Workload(
        "masked softmax fp16",
        masked_softmax,
        lambda n: (
            torch.randn(4, n(16, 2), n(1024, 9), n(1024, 9), dtype=F16),
            torch.ones(n(1024, 9), n(1024, 9), dtype=torch.bool).triu(1),
        ),
    ),
    Workload(
        "masked log-sum-exp 4096x8192 fp16",
        masked_logsumexp,
        lambda n: (
            torch.randn(n(4096), n(8192), dtype=F16),
            torch.rand(n(4096), n(8192)) < 0.9,
        ),
    ),
    Workload("cross-entropy 4096x32000 fp16", F.cross_entropy, _logits(4096, 32000, F16)),
    Workload("cross-entropy 2048x128256 bf16", F.cross_entropy, _logits(2048, 128256, BF16)),
    Workload(
        "cross-entropy backward 4096x32000 bf16", F.cross_entropy, _logits(4096, 32000, BF16), True
    ),
    Workload(
        "linear + cross-entropy bf16",
        fused_linear_cross_entropy,
        lambda n: (
            torch.randn(n(4096), n(2048), dtype=BF16),
            torch.randn(n(32000), n(2048), dtype=BF16) / 45,
            torch.randint(0, n(32000), (n(4096),)),
        ),
        bound="compute",
    ),
    # norms
    Workload("layer norm 16384x2048 bf16", layer_norm, _norm(16384, 2048, BF16)),
    Workload("layer norm backward 8192x4096 bf16", layer_norm, _norm(8192, 4096, BF16), True),
    Workload("gelu + layer norm 8192x2048 fp16", gelu_layer_norm, _norm(8192, 2048, F16)),
    Workload("rms norm 8192x4096 bf16", rms_norm, _norm(8192, 4096, BF16, 2)),
    Workload("rms norm backward 8192x4096 bf16", rms_norm, _norm(8192, 4096, BF16, 2), True),
    Workload("group norm + silu 16x512x64x64 fp16", group_norm, _images(16, 512, 64, F16)),
    Workload("group norm backward 16x256x64x64 fp16", group_norm, _images(16, 256, 64, F16), True),
    Workload("batch norm + relu 64x256x28x28 fp16", batch_norm, _images(64, 256, 28, F16)),
    Workload(
        "batch norm + relu channels-last fp16", batch_norm, _images(64, 256, 56, F16, last=True)
    ),
    Workload(
        "batch norm backward channels-last fp16",
        batch_norm,
        _images(64, 128, 56, F16, last=True),
        True,
    ),
    # element by element
    Workload("gelu 8192x8192 bf16", F.gelu, _randn(8192, 8192, dtype=BF16)),
    Workload("gelu backward 8192x8192 fp16", F.gelu, _randn(8192, 8192, dtype=F16), True),
    Workload("silu 8192x8192 fp32", F.silu, _randn(8192, 8192)),
    Workload("swiglu 8192x16384 bf16", swiglu, _randn(8192, 16384, dtype=BF16)),
    Workload("geglu 8192x16384 fp16", geglu, _randn(8192, 16384, dtype=F16)),
    Workload("rotary bf16", rotary, _rotary_inputs),
    Workload("tanh sigmoid log exp fp32", chain, _randn(8192, 4096)),
    Workload(
        "residual + rms norm 8192x4096 bf16",
        residual_rms_norm,
        lambda n: (torch.randn(n(8192), n(4096), dtype=BF16), *_norm(8192, 4096, BF16, 2)(n)),
    ),
    Workload(
        "adamw over 72 tensors fp32",
        adamw,
        _parameters,
        moved=lambda i, r: total_bytes(flat(i)) * 7 // 4,
        changes=True,
    ),
    # quantization
    Workload("quantize fp8 8192x8192 bf16", quantize_fp8, _randn(8192, 8192, dtype=BF16)),
    Workload("quantize int8 8192x8192 fp16", quantize, _randn(8192, 8192, dtype=F16)),
    Workload(
        "dequantize int8 8192x8192 bf16",
        dequantize,
        lambda n: (
            torch.randint(-127, 128, (n(8192), n(8192)), dtype=torch.int8),
            torch.rand(n(8192), 1),
        ),
    ),
    # moving
    Workload(
        "transpose + add 4096x4096 fp32",
        lambda x, y: x.t() + y,
        lambda n: tuple(torch.randn(n(4096), n(4096)) for _ in range(2)),
    ),
    Workload(
        "transpose 8192x8192 fp16", lambda x: x.t().contiguous() * 2, _randn(8192, 8192, dtype=F16)
    ),
    Workload(
        "permute copy bf16",
        lambda x: x.permute(0, 2, 1, 3).contiguous() * 2,
        lambda n: (torch.randn(8, n(4096), 16, 128, dtype=BF16),),
    ),
    Workload(
        "outer sum 8192x8192 fp16",
        lambda x, y: x[:, None] + y[None, :],
        lambda n: tuple(torch.randn(n(8192), dtype=F16) for _ in range(2)),
    ),
    # reductions
    Workload(
        "sum of squares 8192x8192 bf16", lambda x: (x * x).sum(), _randn(8192, 8192, dtype=BF16)
    ),
    Workload(
        "sum dim 0 16384x4096 bf16", lambda x: (x * 2).sum(0), _randn(16384, 4096, dtype=BF16)
    ),
    Workload("norm of 16 rows of 1M fp32", lambda x: x.norm(dim=-1), _randn(16, 1 << 20)),
    Workload("argmax 4096x32000 bf16", lambda x: x.argmax(-1), _randn(4096, 32000, dtype=BF16)),
    Workload(
        "var_mean 16384x4096 fp16", lambda x: torch.var_mean(x, -1), _randn(16384, 4096, dtype=F16)
    ),
    Workload("cumsum 4096x8192 fp32", lambda x: x.cumsum(-1), _randn(4096, 8192)),
    # windows
    Workload(
        "max pool 64x64x112x112 fp16",
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda n: (torch.randn(n(64), n(64), n(112, 12), n(112, 12), dtype=F16),),
    ),
    Workload(
        "average pool 64x256x56x56 fp16",
        lambda x: F.avg_pool2d(x, 2),
        lambda n: (torch.randn(n(64), n(256), n(56, 12), n(56, 12), dtype=F16),),
    ),
    Workload(
        "interpolate 16x64x128x128 fp16",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        _randn(16, 64, 128, 128, dtype=F16),
    ),
    # computed places
    Workload("embedding + layer norm bf16", embed, _embedded, moved=_gathered),
    Workload(
        "embedding backward bf16",
        embedding_backward,
        lambda n: (
            torch.randn(8, n(2048), n(1024), dtype=BF16),
            _tokens(n),
            torch.empty(n(50257), 1, dtype=BF16),
        ),
    ),
    Workload(
        "gather rows 65536x1024 fp16",
        lambda table, which: table[which] * 2,
        lambda n: (
            torch.randn(n(100000), n(1024), dtype=F16),
            torch.randint(0, n(100000), (n(65536),)),
        ),
        moved=_gathered,
    ),
    Workload(
        "scatter-add 65536x512 fp32",
        add_rows,
        lambda n: (
            torch.zeros(n(16384), n(512)),
            torch.randint(0, n(16384), (n(65536),)),
            torch.randn(n(65536), n(512)),
        ),
    ),
)
