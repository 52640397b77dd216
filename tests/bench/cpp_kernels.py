"""C++ kernels beside eager and TorchInductor: ``python tests/bench/cpp_kernels.py [name ...]``.

Every workload is lowered, scheduled and emitted by the compiler, then run without its host
program: outputs are allocated anew each call, as eager does.  The contenders are timed in turns;
the figures are medians over the rounds.  The floor is a copy, into memory that is there, of as
many bytes as the kernels must move.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from fusec.codegen.common.signatures import argument_buffers
from fusec.graph.decompositions import decomposition_table
from fusec.ir.node import Recorder, recording
from fusec.ir.program import Compute, TensorRef
from fusec.kernel_source import KernelSource
from fusec.lower import lower_graph
from fusec.schedule import schedule_program
from fusec.targets.cpp.emit import emit_cpp
from fusec.toolchain.build import build
from fusec.toolchain.loading import load

Function = Callable[..., object]


@dataclass
class Workload:
    name: str
    function: Function
    inputs: tuple[torch.Tensor, ...]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def workloads() -> list[Workload]:
    """Return the workloads; shapes are those of the measured floors."""
    x = randn(4096, 1024)
    row, other = randn(1024), randn(1024)
    bf = randn(4096, 1024, dtype=torch.bfloat16)
    square = randn(2048, 2048)
    image = randn(32, 64, 56, 56)
    many = randn(1 << 22)
    labels = torch.randint(0, 8192, (1024,))
    logits = randn(1024, 8192)
    table = randn(10000, 512)
    ids = torch.randint(0, 10000, (4096,))
    return [
        Workload("relu(a + b)", lambda a, b: (a + b).relu(), (x, randn(4096, 1024))),
        Workload("softmax", lambda a: a.softmax(-1), (x,)),
        Workload("softmax dim 0", lambda a: a.softmax(0), (x,)),
        Workload("log_softmax short", lambda a: a.log_softmax(-1), (randn(65536, 32),)),
        Workload(
            "gelu + layer_norm",
            lambda a, w, b: F.layer_norm(F.gelu(a), (1024,), w, b),
            (x, row, other),
        ),
        Workload("layer_norm", lambda a, w, b: F.layer_norm(a, (1024,), w, b), (x, row, other)),
        Workload(
            "rms_norm",
            lambda a, w: a * torch.rsqrt((a * a).mean(-1, keepdim=True) + 1e-6) * w,
            (x, row),
        ),
        Workload("gelu", F.gelu, (x,)),
        Workload("gelu bf16", F.gelu, (bf,)),
        Workload("gelu fp16", F.gelu, (bf.half(),)),
        Workload("tanh chain", lambda a: torch.tanh(torch.tanh(a * 2) + a).sigmoid() * a, (x,)),
        Workload("exp log sin", lambda a: torch.sin(torch.log(torch.exp(a) + 1)), (x,)),
        Workload("sum", lambda a: a.sum(), (many,)),
        Workload("sum dim 0", lambda a: a.sum(0), (x,)),
        Workload("sum dim 1", lambda a: a.sum(1), (x,)),
        Workload("max dim 0", lambda a: a.amax(0), (x,)),
        Workload("max all", lambda a: a.amax(), (many,)),
        Workload("var all", lambda a: a.var(), (many,)),
        Workload("var dim 0", lambda a: a.var(0), (x,)),
        Workload("argmax", lambda a: a.argmax(-1), (x,)),
        Workload("argmax all", lambda a: a.argmax(), (many,)),
        Workload("logsumexp", lambda a: a.logsumexp(-1), (logits,)),
        Workload("cross_entropy", F.cross_entropy, (logits, labels)),
        Workload("transpose + add", lambda a, b: a.t() + b, (square, randn(2048, 2048))),
        Workload("transpose copy", lambda a: a.t().contiguous(), (square,)),
        Workload("permute NCHW", lambda a: a.permute(0, 2, 3, 1).contiguous(), (image,)),
        Workload("batch_norm stats", lambda a: (a.mean((0, 2, 3)), a.var((0, 2, 3))), (image,)),
        Workload("embedding", lambda t, i: t[i], (table, ids)),
        Workload("bool mask", lambda a: torch.where(a > 0, a, 0.1 * a), (x,)),
        Workload("int8 quantize", lambda a: (a * 20).round().clamp(-128, 127).to(torch.int8), (x,)),
        Workload("cat", lambda a, b: torch.cat([a, b], 1), (x, x)),
        Workload("broadcast", lambda a, b: a[:, None] * b[None, :], (randn(4096), row)),
        Workload("tiny", lambda a, b: (a + b).relu(), (randn(64), randn(64))),
    ]


class Program:
    """The kernels of a function, run one after the other."""

    def __init__(self, function: Function, inputs: Sequence[torch.Tensor]) -> None:
        def outputs(*args: torch.Tensor) -> tuple[object, ...]:
            result = function(*args)
            return result if isinstance(result, tuple) else (result,)

        module = make_fx(outputs, decomposition_table(), tracing_mode="fake")(*inputs)
        recorder = Recorder()
        with recording(recorder):
            program = schedule_program(lower_graph(module, recorder=recorder)).program
        self.program = program
        self.sources: list[KernelSource] = []
        self.steps: list[tuple[object, tuple[str, ...]]] = []
        self.build_seconds = 0.0
        for number, step in enumerate(program.steps):
            assert isinstance(step, Compute), f"{step} is an extern call"
            source = emit_cpp(f"kernel_{number}", step.body, program.buffers, label=step.label)
            started = time.perf_counter()
            path = build(source.text)
            self.build_seconds = max(self.build_seconds, time.perf_counter() - started)
            types = [ctypes.c_void_p] * len(source.signature.arguments) + [ctypes.c_int64]
            function = load(path, source.entry, argtypes=types)
            self.steps.append((function, argument_buffers(step.body)))
            self.sources.append(source)
        made = [n for step in program.steps for n in step.writes() if n not in program.inputs]
        self.made = [
            (
                name,
                tuple(int(e.constant or 0) for e in program.buffers[name].shape),
                tuple(int(e.constant or 0) for e in program.buffers[name].strides),
                program.buffers[name].dtype,
            )
            for name in dict.fromkeys(made)
        ]
        # Bytes in and out of the program; what stays inside it may stay in the cache.
        ends = set(program.inputs) | program.output_buffers()
        self.bytes = sum(b.bytes for n, b in program.buffers.items() if n in ends)

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        tensors = dict(zip(self.program.inputs, inputs, strict=True))
        for name, shape, strides, dtype in self.made:
            tensors[name] = torch.empty_strided(shape, strides, dtype=dtype)
        threads = torch.get_num_threads()
        for function, names in self.steps:
            function(*[tensors[n].data_ptr() for n in names], threads)  # type: ignore[operator]
        return [
            tensors[v.buffer].as_strided(
                [int(e.constant or 0) for e in v.shape],
                [int(e.constant or 0) for e in v.strides],
                int(v.offset.constant or 0),
            )
            for v in self.program.outputs
            if isinstance(v, TensorRef)
        ]


clock = time.perf_counter


def once(function: Callable[[], object], repeat: int) -> float:
    started = clock()
    for _ in range(repeat):
        function()
    return (clock() - started) / repeat


def compare(
    contenders: dict[str, Callable[[], object]], seconds: float, best: bool
) -> dict[str, float]:
    """Time the contenders in turns; return medians (or minima) in milliseconds."""
    for function in contenders.values():
        function()
    longest = max(once(function, 1) for function in contenders.values())
    repeat = max(1, min(1000, int(0.002 / max(longest, 1e-7))))
    rounds = max(5, min(60, int(seconds / (longest * repeat * len(contenders)))))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            times[name].append(once(function, repeat))
    middle = min if best else statistics.median
    return {name: middle(values) * 1e3 for name, values in times.items()}


def run(
    workload: Workload, inductor: bool, seconds: float, best: bool
) -> tuple[dict[str, float], float]:
    """Time one workload; check it first."""
    program = Program(workload.function, workload.inputs)
    expected = workload.function(*workload.inputs)
    outputs = list(expected) if isinstance(expected, tuple) else [expected]
    for got, wanted in zip(program(*workload.inputs), outputs, strict=True):
        loose = wanted.dtype in (torch.bfloat16, torch.float16)
        torch.testing.assert_close(
            got, wanted, rtol=1e-2 if loose else 1e-4, atol=1e-2 if loose else 1e-4
        )
    source = torch.ones(max(program.bytes // 2, 1), dtype=torch.uint8)
    target = torch.ones_like(source)
    contenders: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        "eager": lambda: workload.function(*workload.inputs),
        "fusec": lambda: program(*workload.inputs),
    }
    if inductor:
        torch._dynamo.reset()
        compiled = torch.compile(workload.function, dynamic=False)
        contenders["inductor"] = lambda: compiled(*workload.inputs)
    return compare(contenders, seconds, best), program.build_seconds


def settle() -> None:
    """Start over in a process whose allocator keeps memory, so that nobody times page faults."""
    settings = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
    if any(name not in os.environ for name in settings):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **settings})


def main() -> None:
    """Run the workloads named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--inductor", action="store_true", help="time TorchInductor as well")
    parser.add_argument("--show", action="store_true", help="print the kernels, time nothing")
    parser.add_argument("--best", action="store_true", help="minima: for a machine in use")
    parser.add_argument(
        "--cpu", action="store_true", help="one thread, and its time on the processor alone"
    )
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each workload")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.cpu:
        global clock
        clock, options.threads = time.thread_time, 1
    if options.threads:
        torch.set_num_threads(options.threads)
    print(f"{torch.get_num_threads()} threads; milliseconds; floor = copy / fusec")
    ratios: dict[str, list[float]] = {"eager": [], "inductor": []}
    for workload in workloads():
        if options.names and not any(name in workload.name for name in options.names):
            continue
        if options.show:
            for source in Program(workload.function, workload.inputs).sources:
                print(source.text)
            continue
        try:
            times, seconds = run(workload, options.inductor, options.seconds, options.best)
        except Exception as error:
            print(f"{workload.name:20} failed: {type(error).__name__}: {str(error)[:200]}")
            continue
        text = "  ".join(f"{name} {value:8.3f}" for name, value in times.items())
        for name, found in ratios.items():
            if name in times:
                found.append(times[name] / times["fusec"])
                text += f"  {name}/fusec {found[-1]:5.2f}"
        print(
            f"{workload.name:20} {text}  floor {times['copy'] / times['fusec']:4.2f}"
            f"  build {seconds:.2f}"
        )
        sys.stdout.flush()
    for name, found in ratios.items():
        if found:
            mean = math.exp(sum(map(math.log, found)) / len(found))
            print(f"{name}/fusec: geometric mean {mean:.2f}, worst {min(found):.2f}")


if __name__ == "__main__":
    settle()
    main()
