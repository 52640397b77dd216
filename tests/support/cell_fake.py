"""A compiler that is a script: TorchDynamo captures for real, the kernels are pretended.

The graphs run as they were captured, so what lands is right; kernels, timings and verdicts come
from `panel_fake`, whose host reads the kernel's text (WRONG, static_assert(false, RAISE).
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch

from fusec.kernel import Kernel
from fusec.kernel_source import Argument, KernelSource, Signature
from fusec.report import (
    ExternCall,
    FusionDecision,
    GraphBreak,
    Guard,
    OutputError,
    Recompile,
    SourceLine,
    Stage,
    Timing,
    Verdict,
)
from fusec.timing.limits import Limit
from support.panel_fake import CPP, TRITON, FakeHost, milliseconds, timing


def output(error: float = 2.4e-7, name: str = "out", ok: bool = True) -> OutputError:
    exact = 1.1e-7 if ok else error
    return OutputError(
        name, "float32", (4096, 1024), error, exact, 1.2e-7, 1.3e-5, (17, 3), ok
    )  # fmt: skip


class FakeGraph:
    """A captured graph with one pretended kernel."""

    def __init__(self, module: Any, number: int, kernel: Kernel, filename: str) -> None:
        self.name = f"graph {number}"
        self.eager = module
        self.compiled = module.forward
        self.kernels = (kernel,)
        self.externs = (ExternCall("aten.mm", "a library does it better", SourceLine(filename, 3)),)
        self.fusions = (
            FusionDecision("gelu", "norm", True, "same rows", 1 << 20),
            FusionDecision("mm", "gelu", False, "mm is an extern call", 1 << 18),
        )
        self.stages = (Stage("capture", 0.1, "graph(x)"), Stage("emit", 0.02, "text <b>"))
        self.parts = ()
        self.seconds = 0.12
        self.last_inputs: tuple[Any, ...] = ()
        self.called = False
        self.measured = 0
        self.verified = 0
        self.ok = True

    def await_call(self) -> None:
        self.called = False

    def __call__(self, *inputs: Any) -> Any:
        self.last_inputs, self.called = inputs, True
        return self.eager(*inputs)

    def measure(self, seconds: float = 0.3) -> tuple[Timing, Timing]:
        self.measured += 1
        return timing(9.84), timing(sum(milliseconds(k.source) for k in self.kernels))

    def measure_beside(
        self, others: dict[str, Any], seconds: float = 0.3, stop: Any = None
    ) -> dict[str, Timing]:
        eager, fused = self.measure(seconds)
        return {"eager": eager, "fused": fused, **dict.fromkeys(others, timing(7.77))}

    def limit(self) -> Limit:
        return Limit(1 << 24, timing(1.1), 0, 1.1e-3, 5 << 24, 1 << 25)

    def kernel_timings(self, seconds: float = 0.2) -> dict[str, Timing]:
        return {k.name: timing(milliseconds(k.source)) for k in self.kernels}

    def verify(self) -> Verdict:
        self.verified += 1
        if not self.ok:
            return Verdict(
                False, "wrong", "out[17, 3] is 0.31 off", outputs=(output(0.31, ok=False),)
            )
        return Verdict(True, "passed", "same as eager within rounding", outputs=(output(),))


class FakeFunction:
    """What `fusec.compile` returns, as far as the extension uses it."""

    def __init__(self, compiler: FakeCompiler, function: Any, options: dict[str, Any]) -> None:
        self.compiler = compiler
        self.function = function
        self.options = options
        self.graphs: tuple[FakeGraph, ...] = ()
        self.breaks: tuple[GraphBreak, ...] = ()
        self.guards = (Guard("x is a float32 tensor of shape (4,)", "x", None),)
        self.recompiles: tuple[Recompile, ...] = ()
        self.fallbacks: tuple[str, ...] = ()
        self._run = torch.compile(function, backend=self._backend)
        if not isinstance(function, torch.nn.Module):
            functools.update_wrapper(self, function)

    def _backend(self, module: Any, example_inputs: Any) -> Any:
        number = len(self.graphs)
        code = getattr(self.function, "__code__", None)
        filename = code.co_filename if code else ""
        prefix = self.options.get("name") or "gelu_norm"
        name = prefix if number == 0 else f"{prefix}_{number}"
        cpp = self.options.get("target") != "triton"
        source = KernelSource(
            name,
            "cpp" if cpp else "triton",
            name,
            CPP if cpp else TRITON,
            Signature(self.compiler.arguments),
            origins={
                18: (SourceLine(filename, 2, "y = F.gelu(x)"),),
                26: (SourceLine(filename, 3),),
            },
            read_bytes=1 << 24,
            written_bytes=1 << 24,
            summary="row reduction over 4096 x 1024",
        )
        kernel = Kernel(source, cast(Any, None), self.compiler.host)
        graph = FakeGraph(module, number, kernel, filename)
        self.graphs = (*self.graphs, graph)
        if number == 1:
            place = SourceLine(filename, 3, "print(y)")
            self.breaks = (GraphBreak("print() runs in Python", "move it below", place),)
        return graph

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    @property
    def kernels(self) -> dict[str, Kernel]:
        return {k.name: k for g in self.graphs for k in g.kernels}


class FakeCompiler:
    """Stands in for `fusec.compile`; remembers what it compiled."""

    def __init__(self, pause: float = 0.0) -> None:
        self.host = FakeHost(pause)
        self.arguments: tuple[Argument, ...] = ()
        self.functions: list[FakeFunction] = []

    def __call__(self, function: Any, **options: Any) -> FakeFunction:
        compiled = FakeFunction(self, function, options)
        self.functions.append(compiled)
        return compiled
