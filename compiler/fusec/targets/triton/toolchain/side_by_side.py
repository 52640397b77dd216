"""Kernels that are compiled side by side, for tensors that are there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import torch

from fusec.kernel_source import KernelSource, Runnable
from fusec.targets.triton.toolchain.build import TritonRunnable, build_triton
from fusec.targets.triton.toolchain.interpret import compiling
from fusec.targets.triton.toolchain.starts import starts_of


def build_for(
    sources: Sequence[KernelSource], tensors: Sequence[torch.Tensor]
) -> list[Runnable | None]:
    """Return kernels that are ready to run on tensors; None for what Triton refuses.

    Interpreted ones are compiled by nobody.
    """
    kernels = [build_triton(source.text, source.signature, source.entry) for source in sources]
    for_gpu = [k for k in kernels if isinstance(k, TritonRunnable) and not k.interpreted]
    refused = {
        id(k) for k, good in zip(for_gpu, _warm_up(for_gpu, tensors), strict=True) if not good
    }
    return [None if id(kernel) in refused else kernel for kernel in kernels]


def _warm_up(kernels: Sequence[TritonRunnable], tensors: Sequence[torch.Tensor]) -> list[bool]:
    """Have Triton compile what the kernels would start; return which of them it accepts."""
    if not kernels:
        return []
    device = torch.cuda.current_device()

    def compiles(start: Any) -> bool:
        torch.cuda.set_device(device)
        try:
            start.function.warmup(*start.args, grid=(1,), **start.kwargs)
        except Exception:  # refused: not a candidate
            return False
        return True

    with compiling():
        starts = [starts_of(k.namespace, k.starter, tensors) for k in kernels]
        with ThreadPoolExecutor(min(os.cpu_count() or 1, 16), "fusec-product") as pool:
            done = list(pool.map(compiles, [start for each in starts for start in each]))
    good = iter(done)
    return [all(list(islice(good, len(each)))) for each in starts]


__all__ = ["build_for"]
