"""Compiled code that records nothing for autograd, called where autograd is on.

What a function computes under ``no_grad`` has no history, although its caller records.  Kernels
record nothing; operators of ATen would, where an input requires gradients.  What it computes in
inference mode is an inference tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusec.call.autocast import without_autocast


def in_modes(
    run: Callable[..., Any], converts: bool, records: bool, inference: Sequence[int]
) -> Callable[..., Any]:
    """Return a function that runs another one in the modes that it was compiled for.

    Args:
        run: What runs it.
        converts: Whether it calls operators where autocast is on.
        records: Whether it calls operators where autograd is on, and is to record nothing.
        inference: The results that are inference tensors.
    """
    run = without_autocast(run) if converts else run
    run = without_gradients(run) if records else run
    return with_inference_results(run, inference) if inference else run


def without_gradients(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs another one with autograd off."""
    is_on, switch = torch.is_grad_enabled, torch._C._set_grad_enabled

    def call(*inputs: Any) -> Any:
        if not is_on():
            return run(*inputs)
        switch(False)
        try:
            return run(*inputs)
        finally:
            switch(True)

    return call


def with_inference_results(
    run: Callable[..., Any], positions: Sequence[int]
) -> Callable[..., list[Any]]:
    """Return a function that makes inference tensors of some results of another one."""

    def call(*inputs: Any) -> list[Any]:
        results = list(run(*inputs))
        for position in positions:
            results[position] = as_inference(results[position])
        return results

    return call


def as_inference(value: torch.Tensor) -> torch.Tensor:
    """Return an inference tensor of the same memory."""
    with torch.inference_mode():
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        made.set_(value.untyped_storage(), value.storage_offset(), value.size(), value.stride())
    made.__dict__.update(value.__dict__)  # TorchDynamo's marks
    return made


__all__ = ["as_inference", "in_modes", "with_inference_results", "without_gradients"]
