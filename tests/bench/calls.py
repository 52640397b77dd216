"""What a call of a small compiled function costs: ``make bench-calls``.

Beside eager, TorchDynamo and TorchInductor. Everything is measured in turns, so that a machine
whose speed varies is as unkind to all; a figure is the median over the rounds, with the spread of
the middle half, and the ratio to eager is the median of the rounds' ratios. "Doing nothing" returns
outputs that are there already.

``python tests/bench/calls.py [--only two four five product module forward step update view sizes]
[--rounds 40] [--calls 300]
[--no-peer] [--size 64]``
"""

from __future__ import annotations

import argparse
import itertools
import linecache
import os
import statistics
import tempfile
import time
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Function = Callable[..., Any]

CELLS = {
    "two": "def f(a, b):\n    return (a + b).relu()\n",
    "four": "def f(a, b):\n    return ((a + b).relu() * a - b).sigmoid()\n",
    "five": (
        "def f(a, b):\n"
        "    x = (a + b).view(-1, 8)\n"
        "    for _ in range(2):\n"
        "        x = torch.softmax(x, 0)\n"
        "        x = torch.softmax(x * x.sum(1, keepdim=True), 1)\n"
        "    return x.cumsum(0)\n"
    ),
}
TITLES = {
    "two": "2 operators",
    "four": "4 operators",
    "five": "several kernels",
    "product": "softmax of a product of 100 x 100",
    "module": "a small module",
    "forward": "4 operators, recorded",
    "step": "4 operators and gradients",
    "update": "an input updated in place",
    "view": "2 operators and a view",
    "sizes": "4 operators, any size",
}
CELLS["product"] = "def f(a, b):\n    return torch.softmax(a @ b, -1)\n"
# The other cases: which operators, and what is special about a call.
CELLS |= {
    "forward": CELLS["four"],
    "step": CELLS["four"],
    "update": "def f(a, b):\n    a.mul_(0.9).add_(b)\n    return a\n",
    "view": "def f(a, b):\n    return (a + b).relu(), a.view(8, -1)\n",
    "sizes": CELLS["four"],
}
RECORDED = ("forward", "step")
_numbers = itertools.count()


class Small(nn.Module):
    """A module of pointwise operators and a normalization: no matrix product hides the call."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.norm(x) * self.scale)


def nothing(module: Any, inputs: Any) -> Function:
    """A backend of TorchDynamo's that computes its outputs once."""
    outputs = module.forward(*[t.clone() if isinstance(t, torch.Tensor) else t for t in inputs])
    return lambda *_: outputs


def nothing_after_autograd(module: Any, inputs: Any) -> Function:
    """The same behind AOTAutograd."""
    from functorch.compile import make_boxed_func
    from torch._functorch.aot_autograd import aot_module_simplified

    def compiler(graph: Any, given: Any) -> Function:
        with torch._subclasses.fake_tensor.unset_fake_temporarily():
            real = [torch.zeros(tuple(t.shape), dtype=t.dtype) for t in given]
            outputs = list(graph.forward(*real))
        return make_boxed_func(lambda *_: outputs)

    return aot_module_simplified(module, inputs, fw_compiler=compiler)


def plain(case: str) -> Function:
    """Return a new function with code of its own: TorchDynamo caches by code.

    Its source can be read, as a cell's can. Where it could not, TorchDynamo would put a function of
    its own around it, up to torch 2.12, whose one code all cases would share: from the ninth on,
    calls would go through eight sets of guards to be refused.
    """
    space: dict[str, Any] = {"torch": torch, "__name__": "bench"}
    name = f"<{case} {next(_numbers)}>"
    linecache.cache[name] = len(CELLS[case]), None, CELLS[case].splitlines(keepends=True), name
    exec(compile(CELLS[case], name, "exec"), space)
    function: types.FunctionType = space["f"]
    return function


def cell(case: str) -> Function:
    """Return what a ``%%fuse`` cell that defines the function leaves in the notebook."""
    from fusec.cache import default_store
    from fuselab.session.cell_options import CellOptions, Frontend
    from fuselab.session.session import Session

    space: dict[str, Any] = {"torch": torch, "__name__": f"bench_{case}"}
    session = Session(space, store=default_store())
    session.run(*session.prepare(CELLS[case], CellOptions(), Frontend(1, None)))
    function: Function = space["f"]
    return function


def contenders(case: str, size: int, peer: bool) -> tuple[dict[str, Function], tuple[Any, ...]]:
    """Return what is measured, eager first, and the arguments of a call."""
    import fusec

    def make() -> Any:
        return plain(case) if case != "module" else Small(size).eval()

    dynamic = True if case == "sizes" else None

    def through(backend: Any) -> Function:
        target = make()
        if isinstance(target, nn.Module):
            target.load_state_dict(eager.state_dict())
        return torch.compile(target, backend=backend, dynamic=dynamic)

    eager = make()
    found: dict[str, Function] = {"eager": eager}
    if case not in (
        "forward",
        "step",
        "update",
        "view",
        "sizes",
    ):  # they would have to do something
        found["TorchDynamo, nothing"] = through(nothing)
        found["Dynamo + AOT, nothing"] = through(nothing_after_autograd)
    if peer:
        found["TorchInductor"] = through("inductor")
    found["torch.compile, fusec"] = through("fusec")
    found["fusec.compile"] = fusec.compile(make(), dynamic=dynamic)
    if case not in ("module", "sizes"):
        found["%%fuse cell"] = cell(case)
    count = 1 if case == "module" else 2
    shape = (100, 100) if case == "product" else (size,)
    given = tuple(torch.randn(shape) for _ in range(count))
    if case in RECORDED:
        given[0].requires_grad_()
    if case == "step":
        found = {name: step_of(function, torch.ones(size)) for name, function in found.items()}
    return found, given


def step_of(function: Function, slope: torch.Tensor) -> Function:
    """Return the function with the gradient of its first argument."""

    def step(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(function(a, b), a, slope)
        return found

    return step


def measure(
    functions: dict[str, Function], arguments: tuple[Any, ...], rounds: int, calls: int
) -> dict[str, list[float]]:
    """Return microseconds a call, a round each, of every function in turns."""
    found: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(3 * calls):
            function(*arguments)
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(calls):
                function(*arguments)
            found[name].append((time.perf_counter() - start) / calls * 1e6)
    return found


def show(case: str, found: dict[str, list[float]]) -> None:
    """Print one case."""
    print(f"\n{TITLES[case]:26s} {'us a call':>10s} {'middle half':>16s} {'of eager':>9s}")
    for name, times in found.items():
        low, middle, high = statistics.quantiles(times, n=4)
        ratios = [mine / eager for mine, eager in zip(times, found["eager"], strict=True)]
        spread = f"{low:.2f} .. {high:.2f}"
        print(f"{name:26s} {middle:10.2f} {spread:>16s} {statistics.median(ratios):9.2f}")
    base = found.get("Dynamo + AOT, nothing")
    if base is None:
        return
    ours = found["torch.compile, fusec"]
    if case != "product":  # whose work is most of its call
        share = statistics.median(a / b for a, b in zip(ours, base, strict=True))
        print(f"torch.compile with fusec takes {share:.2f} of Dynamo + AOT doing nothing")
    bound = list(map(sum, zip(found["eager"], found["TorchDynamo, nothing"], strict=True)))
    share = statistics.median(a / b for a, b in zip(ours, bound, strict=True))
    print(f"torch.compile with fusec takes {share:.2f} of eager and TorchDynamo doing nothing")


def copies(tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Return tensors that may be updated in place."""
    return [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--size", type=int, default=64, help="elements of each input")
    parser.add_argument("--no-peer", action="store_true", help="leave TorchInductor out")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("FUSEC_CACHE_DIR", folder)
        from fusec.call import native

        if native.types(wait=True) is None:
            print(f"without the native part: {native.problem()}")
        print(
            f"torch {torch.__version__}, {chosen.size} elements, "
            f"{chosen.rounds} rounds of {chosen.calls} calls in turns"
        )
        for case in chosen.only:
            with torch.set_grad_enabled(case in RECORDED):
                functions, arguments = contenders(case, chosen.size, not chosen.no_peer)
                expected = functions["eager"](*copies(arguments))
                for name, function in functions.items():
                    actual = function(*copies(arguments))
                    if "nothing" not in name:
                        torch.testing.assert_close(actual, expected)
                show(case, measure(functions, arguments, chosen.rounds, chosen.calls))


if __name__ == "__main__":
    main()
