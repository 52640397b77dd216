"""A process that stands for a user's script: does one thing, and says what the user saw of it.

Run by ``run_house`` as ``python -m faults.user ACT SEED``; the last line that it prints is JSON.
All results are compared with eager's.
"""

from __future__ import annotations

import json
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

import fusec

Function = Callable[..., Any]


def activation(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A kernel of its own."""
    return torch.tanh(x * w + 1.0) * 0.5


def normal(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Another one, with sums of rows."""
    return torch.softmax(x - w, -1) * x


class Seen:
    """What a user sees: wrong results, warnings, and what fell back to eager.

    Attributes:
        wrong: How many results were not eager's.
        said: What the user read.
        figures: Numbers for the table.
    """

    def __init__(self) -> None:
        self.wrong = 0
        self.said: list[str] = []
        self.figures: list[str] = []

    def same(self, one: Any, other: Any) -> None:
        """Compare a result with eager's."""
        self.wrong += not torch.allclose(one, other, rtol=2e-5, atol=1e-6, equal_nan=True)

    def fuse(self, function: Function, *given: torch.Tensor, calls: int = 3) -> Any:
        """Compile a function, call it, compare, and note what the user is told."""
        compiled = fusec.compile(function, keep_inputs=True)
        for _ in range(calls):
            self.same(compiled(*given), function(*given))
        self.said += compiled.fallbacks
        if not compiled.fallbacks and not compiled.kernels:
            self.said.append("nothing was compiled")
        return compiled

    def must(self, holds: bool, what: str) -> None:
        """Say what does not hold."""
        if not holds:
            self.said.append(what)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same tensors in every process."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(64, 96, generator=draw), torch.randn(96, generator=draw)


def fuse(seen: Seen) -> None:
    """Compile two functions."""
    for function in (activation, normal):
        seen.fuse(function, *inputs())


def edit(seen: Seen) -> None:
    """Compile, and edit what came of it."""
    compiled = seen.fuse(activation, *inputs())
    keep_edit(seen, compiled)


def keep_edit(seen: Seen, compiled: Any) -> None:
    """Keep a right edit, call it, and have a wrong one refused."""
    (kernel,) = compiled.kernels.values()
    text = kernel.source
    verdict = kernel.keep(text + "// edited\n")
    seen.must(verdict.ok, f"a right edit was refused: {verdict.reason}")
    seen.same(compiled(*inputs()), activation(*inputs()))
    wrong = kernel.check(text.replace("0.5", "0.75"))
    seen.must("0.5" in text and not wrong.ok, "a wrong edit was not refused")
    seen.same(compiled(*inputs()), activation(*inputs()))


def acts() -> dict[str, Callable[[Seen], None]]:
    """Return what can be done, by name."""
    from faults.acts import cells, disks, interrupts, memory, processes

    found: dict[str, Callable[[Seen], None]] = {"fuse": fuse, "edit": edit}
    for module in (cells, disks, interrupts, memory, processes):
        found |= {name: getattr(module, name) for name in module.__all__}
    return found


def observe(act: str, seed: int) -> Seen:
    """Do what has a name, and return what a user saw of it, warnings too."""
    torch.manual_seed(seed)
    seen = Seen()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        acts()[act](seen)
    ours = [str(each.message) for each in caught if "fusec" in str(each.message)]
    seen.must(len(set(ours)) == len(ours), f"said {len(ours)} times")
    seen.said += ours
    return seen


def main() -> None:
    """Do what the first argument names."""
    # What was started in the background of a shell takes no interrupts, and who uses this does.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen = observe(sys.argv[1], int(sys.argv[2]))
    print(json.dumps(vars(seen)), flush=True)


if __name__ == "__main__":
    main()
