"""Linear layers with cross-entropy on a GPU: whole logits, and within budgets of memory.

Run on the GPU machine from the repository root; torch and Triton suffice::

    PYTHONPATH=compiler:tests python tests/bench/gpu_losses.py [WORDS] [--seed N] [--no-peer]

Gradients are compared with float64 at a small size first, eager's own error beside them.  A step is
forward and backward; the steps take turns, medians are shown, and as memory the most that a step
has beside its tensors: with the gradients, and without.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

import fusec

Tensor = torch.Tensor
SHARES = (0.5, 0.375, 0.25)  # of the logits' bytes
CASES = (
    ("llama 3, 4096 x 4096 x 128256", 4096, 4096, 128256),
    ("gpt-2, 8192 x 768 x 50257", 8192, 768, 50257),
    ("gemma, 4096 x 2048 x 256000", 4096, 2048, 256000),
)


def loss_of(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """A language model's head."""
    return F.cross_entropy(F.linear(x, weight).float(), target)


def make(rows: int, width: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, a weight and the right columns."""
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(rows, width, **options).requires_grad_()
    weight = (torch.randn(columns, width, **options) / width**0.5).requires_grad_()
    return x, weight, torch.randint(0, columns, (rows,), device="cuda")


def functions(size: int, peer: bool) -> dict[str, Callable[..., Tensor]]:
    """Return what is measured, for logits of so many bytes."""
    found: dict[str, Callable[..., Tensor]] = {"eager": loss_of}
    if peer:
        found["inductor"] = torch.compile(loss_of, dynamic=False)
    found["fusec"] = fusec.compile(loss_of, tuned=False)
    for share in SHARES:
        found[f"{share:.1%} of the logits"] = fusec.compile(
            loss_of, tuned=False, memory_budget=int(share * size)
        )
    return found


def step(function: Callable[..., Tensor], given: tuple[Tensor, ...]) -> None:
    """Forward and backward."""
    for each in given[:2]:
        each.grad = None
    function(*given).backward()


def errors(peer: bool) -> str:
    """Return how far gradients are from float64's, at a small size."""
    given = make(517, 256, 3001)
    x, weight = (t.detach().double().requires_grad_() for t in given[:2])
    wanted = torch.autograd.grad(loss_of(x, weight, given[2]), (x, weight))
    words = []
    for name, function in functions(517 * 3001 * 2, peer).items():
        found = torch.autograd.grad(function(*given), given[:2])
        far = [
            float((a.double() - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)
        ]
        words.append(f"{name} {far[0]:.1e} {far[1]:.1e}")
    return "; ".join(words)


def peak(function: Callable[..., Tensor], given: tuple[Tensor, ...]) -> int:
    """Return the most bytes that a step has beside its tensors."""
    for each in given[:2]:
        each.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(function, given)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def main(arguments: Sequence[str]) -> int:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="words; workloads whose name has one of them")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-peer", action="store_true", help="without TorchInductor")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, seed {options.seed}")
    print(f"gradients' distance from float64: {errors(not options.no_peer)}")
    for name, rows, width, columns in CASES:
        if options.only and not any(word in name for word in options.only):
            continue
        torch._dynamo.reset()
        given = make(rows, width, columns)
        gradients = sum(each.nbytes for each in given[:2])
        steps = functions(rows * columns * 2, not options.no_peer)
        times: dict[str, list[float]] = {each: [] for each in steps}
        most = {}
        for each, function in steps.items():
            for _ in range(3):
                step(function, given)
            most[each] = peak(function, given)
        order = list(steps)
        for _ in range(options.steps):
            random.shuffle(order)
            for each in order:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda._sleep(2_000_000)
                begin.record()
                step(steps[each], given)
                end.record()
                torch.cuda.synchronize()
                times[each].append(begin.elapsed_time(end))
        own = statistics.median(times["fusec"])
        print(f"{name:<34}      ms  x fusec   MiB   x fusec   beside gradients   x fusec")
        for each in steps:
            took, bytes_ = statistics.median(times[each]), most[each]
            beside, theirs = bytes_ - gradients, most["fusec"] - gradients
            print(
                f"  {each:<32}{took:>8.2f}{took / own:>9.3f}{bytes_ / 2**20:>6.0f}"
                f"{bytes_ / most['fusec']:>10.2f}{beside / 2**20:>19.0f}{beside / theirs:>10.2f}",
                flush=True,
            )
        del given, steps
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
