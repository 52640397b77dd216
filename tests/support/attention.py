"""flex_attention with the masks and score functions that its tests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as torch_attention
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from fusec.graph.decompositions import decomposition_table
from fusec.ir.node import Recorder, recording
from fusec.ir.program import Compute
from fusec.kernel_source import KernelSource
from fusec.lower import lower_graph
from fusec.options import Options
from fusec.targets.triton.emit import emit_triton
from fusec.targets.triton.toolchain import simulate

Tensors = tuple[torch.Tensor, ...]
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
DOCUMENTS = (torch.arange(1000) // 37).to(torch.int32)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k <= 20)


def prefix(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k < 25) | (q >= k)


def document(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k)


def later(b: Any, h: Any, q: Any, k: Any) -> Any:
    """The first queries see nothing."""
    return q >= k + 40


def alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + SLOPES[h] * (k - q)


def soft_cap(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 20 * torch.tanh(score / 20)


# a score function, a mask function
MODS: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "causal": (None, causal),
    "window": (None, window),
    "alibi": (alibi, None),
    "soft cap": (soft_cap, causal),
    "prefix": (None, prefix),
    "document": (None, document),
    "later": (None, later),
}


@dataclass(frozen=True)
class Sizes:
    """Of attention: batches, heads, heads that share keys, queries, keys, depth."""

    batch: int = 2
    heads: int = 4
    shared: int = 2
    queries: int = 70
    keys: int = 90
    depth: int = 32

    def tensors(self, dtype: torch.dtype, seed: int = 0) -> Tensors:
        """Return queries, keys and values."""
        generator = torch.Generator().manual_seed(seed)
        shapes = [(self.batch, self.heads, self.queries, self.depth)]
        shapes += [(self.batch, self.shared, self.keys, self.depth)] * 2
        return tuple(torch.randn(*s, generator=generator).to(dtype) for s in shapes)


def attention(
    name: str, sizes: Sizes, block: int | tuple[int, int] = 32, sums: bool = False
) -> Callable[..., Any]:
    """Return a function of queries, keys and values.

    Args:
        name: Of ``MODS``.
        sizes: What it is for.
        block: Rows and columns of a block of the mask.
        sums: Whether it returns the logarithms of the rows' sums as well.
    """
    score, mask = MODS[name]
    blocks = None
    if mask is not None:
        blocks = create_block_mask(
            mask, None, None, sizes.queries, sizes.keys, device="cpu", BLOCK_SIZE=block
        )

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(
            q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True, return_lse=sums
        )

    return attend


def gradients(function: Callable[..., Any], tensors: Tensors, dtype: torch.dtype) -> Tensors:
    """Return the gradients of inputs in ``dtype``, for a result's that is the same every time."""
    given = tuple(t.detach().to(dtype).requires_grad_() for t in tensors)
    results = function(*given)
    results = results if isinstance(results, tuple) else (results,)
    sums = [torch.where(r.isinf(), 0, r) for r in results[1:]]
    generator = torch.Generator().manual_seed(3)
    wanted = [torch.randn(r.shape, generator=generator).to(r.dtype) for r in results]
    return torch.autograd.grad([results[0], *sums], given, wanted)


def prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch differentiate attention on a CPU, and Triton's interpreter run all kernels."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    monkeypatch.setattr(torch_attention, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(simulate, "INTERPRETED_ELEMENTS", 1 << 40)
    torch._dynamo.reset()


def sources(function: Callable[..., Any], tensors: Tensors) -> list[KernelSource]:
    """Return the kernels of attention in a function: forward's, then those of the gradients."""
    found: list[KernelSource] = []

    abilities = Options(target="triton").abilities

    def compiler(module: fx.GraphModule, inputs: Any) -> Any:
        with recording(Recorder()) as recorder:
            program = lower_graph(module, recorder=recorder, abilities=abilities)
            for step in program.steps:
                if isinstance(step, Compute) and step.body.attends:
                    found.append(
                        emit_triton(step.name, step.body, program.buffers, label=step.label)
                    )
        return module.forward

    table = decomposition_table()
    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, decompositions=table)
    result = torch.compile(function, backend=backend)(*tensors)
    if result.requires_grad:
        result.sum().backward()
    return found
