"""Kernels of symbolic sizes on a GPU, beside those of known sizes: ``docs/gpu-figures.md``.

Each function is compiled with all sizes known and with all of them symbolic, by fusec and (symbolic
only) by TorchInductor.  All are compared with eager and then timed in turns, as ``gpu.py`` does;
the copy moves as many bytes as the function reads and writes.  ``--help`` has the choices.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from gpu import interleave

import fusec

Function = Callable[[torch.Tensor], torch.Tensor]


def halves(*shape: int) -> torch.Tensor:
    """Return random numbers in half precision."""
    return torch.randn(*shape, device="cuda", dtype=torch.float16)


def batch_norm(x: torch.Tensor) -> torch.Tensor:
    """Batch norm with running statistics, and relu."""
    channels = torch.arange(x.shape[1], device=x.device)
    return F.batch_norm(x, channels / 64, 1 + channels / 64).relu()


def causal_softmax(x: torch.Tensor) -> torch.Tensor:
    """Scores of attention, none for what comes later."""
    later = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).triu(1)
    return x.masked_fill(later, -1e4).softmax(-1)


def add_row(x: torch.Tensor) -> torch.Tensor:
    """A row added to all rows."""
    return x + torch.arange(x.shape[-1], device=x.device).to(x.dtype)


CASES: dict[str, tuple[Function, Callable[[], torch.Tensor]]] = {
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: halves(64, 64, 112, 112)),
    "larger max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: halves(16, 64, 256, 256)),
    "average pool": (lambda x: F.avg_pool2d(x, 2), lambda: halves(64, 64, 112, 112)),
    "bilinear": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda: halves(16, 64, 128, 128),
    ),
    "bilinear channels-last": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda: halves(16, 64, 128, 128).to(memory_format=torch.channels_last),
    ),
    "nearest": (
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
        lambda: halves(16, 64, 128, 128),
    ),
    "bilinear half": (
        lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
        lambda: halves(16, 64, 256, 256),
    ),
    "batch norm + relu": (batch_norm, lambda: halves(64, 64, 112, 112)),
    "group norm": (lambda x: F.group_norm(x, 8), lambda: halves(32, 64, 64, 64)),
    "softmax": (lambda x: x.softmax(-1), lambda: halves(4096, 4096)),
    "causal softmax": (causal_softmax, lambda: halves(16, 1024, 1024)),
    "layer norm": (lambda x: F.layer_norm(x, (x.shape[-1],)), lambda: halves(16, 512, 1000)),
    "row added": (add_row, lambda: halves(4096, 4096)),
    "transpose": (lambda x: x.transpose(1, 2).contiguous() * 2, lambda: halves(16, 1024, 1024)),
}


def measure(name: str, seconds: float) -> bool:
    """Print one line of microseconds; return whether all results are eager's."""
    function, make = CASES[name]
    torch._dynamo.reset()
    x = make()
    expected = function(x)
    symbolic = x.detach()
    for dim in range(x.dim()):
        torch._dynamo.mark_dynamic(symbolic, dim)

    # TorchDynamo keeps what it compiled with a function's code: each compiler gets its own
    def for_ours(x: torch.Tensor) -> torch.Tensor:
        return function(x)

    def for_peer(x: torch.Tensor) -> torch.Tensor:
        return function(x)

    known = fusec.compile(function, tuned=False, dynamic=False)
    ours = fusec.compile(for_ours, tuned=False, dynamic=True)
    peer = torch.compile(for_peer, dynamic=True)
    calls = {"known": lambda: known(x), "symbolic": lambda: ours(symbolic)}
    calls |= {"TorchInductor, symbolic": lambda: peer(symbolic), "eager": lambda: function(x)}
    right = not ours.fallbacks
    for call in calls.values():
        got = call()
        right &= torch.allclose(got.float(), expected.float(), rtol=1e-2, atol=1e-2)
    moved = (x.numel() + expected.numel()) * x.element_size()
    source = torch.empty(moved // 2, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    times = interleave({"copy": lambda: target.copy_(source), **calls}, seconds)
    medians = {key: f"{statistics.median(each):.1f}" for key, each in times.items()}
    print(f"{name:24}", "" if right else "WRONG", medians, flush=True)
    return right


def main() -> int:
    """Measure what is asked for; returns 1 if a result was wrong or ran in eager."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="words; cases whose name has one of them")
    parser.add_argument("--seconds", type=float, default=0.3, help="of timing a case")
    options = parser.parse_args()
    chosen = [n for n in CASES if not options.only or any(word in n for word in options.only)]
    right = [measure(name, options.seconds) for name in chosen]
    return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())
