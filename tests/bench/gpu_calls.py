"""What a call of a small compiled function costs on a GPU, beside eager and TorchInductor.

Everything is measured in turns, so that a machine whose speed varies is as unkind to all: a round
is a run of calls one after the other, then a wait for the GPU; a figure is the median over the
rounds, with the spread of the middle half, and the ratio is the median of the rounds' ratios to
eager (above 1: faster than eager). Outputs are compared with eager's first.

``python tests/bench/gpu_calls.py [--only add softmax block] [--rounds 30] [--calls 200]
[--no-peer] [--size 64 1024]``

``--processes 10`` asks instead how much the same call varies: that many processes, one after the
other, each timing its tenth to thousandth call of eager, of ``torch.compile`` and of
``fusec.compile``, call by call, after what is built once a machine is there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Function = Callable[..., Any]

SOURCES = {
    "add": "def f(a, b):\n    return (a + b).relu()\n",
    "softmax": "def f(x, y):\n    return torch.softmax(x @ y, -1)\n",
}


class Block(nn.Module):
    """A block of GPT-2 small: 768 wide, 12 heads."""

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.first(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


def nothing(module: Any, inputs: Any) -> Function:
    """A backend of TorchDynamo's that computes its outputs once."""
    outputs = module.forward(*[t.clone() if isinstance(t, torch.Tensor) else t for t in inputs])
    return lambda *_: outputs


def make(case: str) -> Any:
    """Return a new function, with code of its own: TorchDynamo caches by code."""
    if case == "block":
        torch.manual_seed(0)
        return Block().cuda().half().eval()
    module = sys.modules.setdefault("fuselab_calls", types.ModuleType("fuselab_calls"))
    space = vars(module)  # TorchDynamo imports the module of a function's globals by name
    space["torch"] = torch
    exec(compile(SOURCES[case], f"<{case}>", "exec"), space)
    function: types.FunctionType = space["f"]
    return function


def contenders(case: str, peer: bool) -> dict[str, Function]:
    """Return what is measured, eager first."""
    import fusec

    found: dict[str, Function] = {
        "eager": make(case),
        "TorchDynamo, nothing": torch.compile(make(case), backend=nothing),
    }
    if peer:
        found["TorchInductor"] = torch.compile(make(case))
        found["TorchInductor, graphs"] = torch.compile(make(case), mode="reduce-overhead")
    found["torch.compile, fusec"] = torch.compile(make(case), backend="fusec")
    found["torch.compile, fusec, graphs"] = torch.compile(
        make(case), backend="fusec", mode="reduce-overhead"
    )
    found["fusec.compile"] = fusec.compile(make(case))
    found["fusec.compile, graphs"] = fusec.compile(make(case), cuda_graphs=True)
    return found


def arguments(case: str, size: int) -> tuple[torch.Tensor, ...]:
    """Return the inputs of a call."""
    if case == "block":
        return (torch.randn(1, size, 768, device="cuda", dtype=torch.half),)
    shape = (size,) if case == "add" else (size, size)
    return tuple(torch.randn(shape, device="cuda") for _ in range(2))


def measure(
    functions: dict[str, Function], given: tuple[Any, ...], rounds: int, calls: int
) -> dict[str, list[float]]:
    """Return microseconds a call, a round each, of every function in turns."""
    found: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(calls):
            function(*given)
    for _ in range(rounds):
        for name, function in functions.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                function(*given)
            torch.cuda.synchronize()
            found[name].append((time.perf_counter() - start) / calls * 1e6)
    return found


FIRST, LAST = 10, 1000  # the calls of a process that are timed


def each_call(function: Function, given: tuple[Any, ...]) -> list[float]:
    """Return the microseconds of a new function's tenth to thousandth call."""
    times = []
    for number in range(1, LAST + 1):
        if number == FIRST:
            torch.cuda.synchronize()
        start = time.perf_counter()
        function(*given)
        times.append((time.perf_counter() - start) * 1e6)
    torch.cuda.synchronize()
    return times[FIRST - 1 :]


def one_process(case: str, size: int) -> dict[str, list[float]]:
    """Return each contender's times of each call; results are compared with eager's at the end."""
    import fusec

    functions = {
        "eager": make(case),
        "torch.compile, fusec": torch.compile(make(case), backend="fusec"),
        "fusec.compile": fusec.compile(make(case)),
    }
    with torch.no_grad():
        given = arguments(case, size)
        found = {name: each_call(function, given) for name, function in functions.items()}
        check(case, functions, given)
    return found


def in_processes(case: str, size: int, processes: int) -> None:
    """Print a line a contender: the mean of those calls in each process, and their spread."""
    command = [sys.executable, __file__, "--only", case, "--size", str(size), "--child"]
    runs: list[dict[str, list[float]]] = []
    for _ in range(processes):
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        runs.append(json.loads(said.splitlines()[-1]))
        means = (f"{name} {statistics.fmean(times):.2f}" for name, times in runs[-1].items())
        print(f"  process {len(runs)}: {', '.join(means)}", flush=True)
    print(f"\n{case}, {size}: us a call, {FIRST} to {LAST}, of {processes} processes")
    for name in runs[0]:
        for what, of in (("mean", statistics.fmean), ("median", statistics.median)):
            values = sorted(of(run[name]) for run in runs)
            listed = " ".join(f"{value:.2f}" for value in values)
            middle = statistics.median(values)
            print(
                f"  {name:22s} {what:7s} {listed}; of the median one {values[0] / middle:.2f}",
                end=" ",
            )
            print(f"to {values[-1] / middle:.2f}", flush=True)
        tenths = [statistics.quantiles(run[name], n=10) for run in runs]
        widest = max(tenth[-1] / tenth[0] for tenth in tenths)
        print(f"  {name:22s} calls of one process, ninth tenth over first: {widest:.2f} at most")


def show(title: str, found: dict[str, list[float]]) -> None:
    """Print one case."""
    print(f"\n{title:30s} {'us a call':>10s} {'middle half':>18s} {'x eager':>8s}")
    for name, times in found.items():
        low, middle, high = statistics.quantiles(times, n=4)
        ratios = [eager / mine for mine, eager in zip(times, found["eager"], strict=True)]
        spread = f"{low:.2f} .. {high:.2f}"
        print(
            f"{name:30s} {middle:10.2f} {spread:>18s} {statistics.median(ratios):8.2f}", flush=True
        )


def check(case: str, functions: dict[str, Function], given: tuple[Any, ...]) -> None:
    """Compare every function with eager, on new inputs too, keeping earlier outputs.

    Raises:
        AssertionError: One is wrong, or overwrote what it returned before.
    """
    tolerance = {"atol": 2e-2, "rtol": 2e-2} if case == "block" else {}
    others = [tuple(torch.randn_like(t) for t in given) for _ in range(3)]
    for name, function in functions.items():
        if "nothing" in name:
            function(*given)
            continue
        for _ in range(5):
            torch.testing.assert_close(function(*given), functions["eager"](*given), **tolerance)
        if "TorchInductor" in name:
            continue  # its graphs reuse the memory of outputs
        outputs = [function(*each) for each in others]
        for output, each in zip(outputs, others, strict=True):
            torch.testing.assert_close(output, functions["eager"](*each), **tolerance)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cases = ("add", "softmax", "block")
    parser.add_argument("--only", nargs="+", choices=cases, default=cases)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--size", type=int, nargs="+", default=None, help="of each case")
    parser.add_argument("--no-peer", action="store_true", help="leave TorchInductor out")
    parser.add_argument("--processes", type=int, default=0, help="what varies between so many")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    sizes = {"add": [64, 1024], "softmax": [100], "block": [128]}
    if chosen.child:
        print(json.dumps(one_process(chosen.only[0], chosen.size[0])))
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("FUSEC_CACHE_DIR", folder)
        os.environ.setdefault("FUSEC_GPU_PLANS", "1")
        from fusec.call import native

        if native.types(wait=True) is None:
            print(f"without the native part: {native.problem()}")
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
        for case in chosen.only:
            for size in chosen.size or sizes[case]:
                if chosen.processes:
                    in_processes(case, size, chosen.processes)
                    continue
                torch._dynamo.reset()
                with torch.no_grad():
                    functions = contenders(case, not chosen.no_peer)
                    given = arguments(case, size)
                    check(case, functions, given)
                    times = measure(functions, given, chosen.rounds, chosen.calls)
                show(f"{case}, {size}", times)
                for name, function in functions.items():
                    for graph in getattr(function, "graphs", ()):
                        print(f"  {name}: short calls {function.short_calls}; {graph.notes}")


if __name__ == "__main__":
    main()
