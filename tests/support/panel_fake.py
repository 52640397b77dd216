"""A fused cell whose compiler is a script: real `Kernel` objects over a host that pretends.

The host reads the text: `static_assert(false` does not compile, `WRONG` gives wrong results,
`RAISE` makes the checker itself fail. Times follow the tunables, so tuning has something to find.
"""

from __future__ import annotations

import html
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from fusec.kernel import Kernel
from fusec.kernel_source import KernelSource, Signature
from fusec.report import OutputError, Timing, Verdict
from fusec.tunables import read_tunables, set_tunables
from fusec.tuning_report import Trial, TuningRun
from fusec.verify.comparison.words import praise

METHOD = "median of 30 interleaved blocks after 10 warm-up calls, 2 threads"

CPP = """\
// gelu_norm: row reduction over 4096 x 1024
#include <cmath>
#include <cstdint>

constexpr int64_t GRAIN = 4;   // tunable: 1 2 4 8 16 (rows a thread takes at a time)
constexpr int64_t UNROLL = 2;  // tunable: 1 2 4 (vectors in flight)
constexpr int64_t STREAM = 0;  // tunable: 0 1 (whether stores bypass the cache)

template <typename T> static inline T gelu(T x) {
  return x * T(0.5) * (T(1) + std::erf(x * T(0.7071067811865476)));
}

extern "C" int gelu_norm(const float* x, const float* weight, const float* bias,
                         float* out, int64_t rows, int64_t columns, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static, GRAIN)
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = x + i * columns;
    float mean = 0.0f, square = 0.0f;
    for (int64_t j = 0; j < columns; ++j) {  // cell line 2: y = F.gelu(x)
      const float y = gelu(row[j]);
      mean += y;
      square += y * y;
    }
    mean /= columns;
    const float scale = 1.0f / std::sqrt(square / columns - mean * mean + 1e-5f);
    for (int64_t j = 0; j < columns; ++j) {  // cell line 3: F.layer_norm(y, ...)
      out[i * columns + j] = (gelu(row[j]) - mean) * scale * weight[j] + bias[j];
    }
  }
  return 0;
}
"""

TRITON = '''\
"""tanh_add: pointwise over 4096 x 1024."""
import triton
import triton.language as tl

XBLOCK = 1024  # tunable: 256 512 1024 2048 4096 (elements a program handles)
WARPS = 4  # tunable: 1 2 4 8 (warps a program)


@triton.jit
def tanh_add(x_ptr, out_ptr, n, XBLOCK: tl.constexpr):
    """out = tanh(x) + 1  (cell line 4)"""
    i = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    mask = i < n
    x = tl.load(x_ptr + i, mask=mask)
    tl.store(out_ptr + i, tl.math.tanh(x) + 1.0, mask=mask)


def launch(x, out):
    n = x.numel()
    tanh_add[(triton.cdiv(n, XBLOCK),)](x, out, n, XBLOCK=XBLOCK, num_warps=WARPS)
'''


def timing(milliseconds: float) -> Timing:
    return Timing(milliseconds * 1e-3, milliseconds * 0.97e-3, milliseconds * 1.05e-3, 30, METHOD)


class FakeHost:
    """A `KernelHost` that takes `pause` seconds for each thing it does, or until `go` is set."""

    def __init__(self, pause: float) -> None:
        self.pause = pause
        self.go: threading.Event | None = None
        self.calls: list[str] = []
        self.threads: set[str] = set()

    def _record(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)

    def build(self, kernel: Kernel, text: str) -> Any:
        self._record("build")
        return lambda tensors, sizes: None

    def check(
        self,
        kernel: Kernel,
        text: str,
        *,
        timed: bool = True,
        trust: bool = False,
        sanitize: bool = False,
    ) -> Verdict:
        self._record("check")
        if self.go is not None:
            self.go.wait(60)
        time.sleep(self.pause)
        if not text.strip():
            return Verdict(False, "empty", "the text is empty")
        if "RAISE" in text:
            raise RuntimeError("the worker process could not be started")
        if "static_assert(false" in text:
            line = text[: text.index("static_assert(false")].count("\n") + 1
            details = f"kernel.cpp:{line}:3: error: static assertion failed\n  <b>not bold</b>"
            return Verdict(
                False, "compile", "static assertion failed", line, seconds=0.21, details=details
            )
        wrong = "WRONG" in text
        output = OutputError(
            "out", "float32", (4096, 1024), 0.31 if wrong else 2.4e-7, 0.31 if wrong else 1.1e-7,
            1.2e-7, 1.3e-5, (17, 3), not wrong,
        )  # fmt: skip
        if wrong:
            reason = "out[17, 3] is 0.31 away from eager, allowed is 1.3e-05"
            return Verdict(False, "wrong", reason, outputs=(output,), seconds=0.43)
        own = milliseconds(text)
        generated = timing(milliseconds(kernel.generated.text))
        return Verdict(
            True, "passed", praise((output,), timing(own), generated), outputs=(output,),
            timing=timing(own), generated=generated,
            graph=timing(own + 0.05), eager=timing(9.84), seconds=0.47,
        )  # fmt: skip

    def tune(
        self,
        kernel: Kernel,
        *,
        budget: float,
        progress: Callable[[TuningRun], None] | None,
        stop: threading.Event | None,
    ) -> TuningRun:
        self._record("tune")
        configs: list[tuple[tuple[str, int], ...]] = [()]
        for tunable in kernel.tunables:
            configs = [(*c, (tunable.name, v)) for c in configs for v in tunable.choices]
        start = tuple((t.name, t.value) for t in kernel.tunables)
        configs = [start] + [c for c in configs if c != start]
        trials: list[Trial] = []
        run = TuningRun(kernel.name, (), None, len(configs), timing(9.84), "", 0.0)
        started = time.monotonic()
        for config in configs:
            ending = "stopped" if stop and stop.is_set() else ""
            if not ending and time.monotonic() - started > budget:
                ending = "budget"
            if ending:
                break
            time.sleep(self.pause / 4)
            text = set_tunables(kernel.source, dict(config))
            slow = len(trials) == 7
            error = "does not fit in registers" if slow else ""
            trials.append(Trial(config, None if slow else timing(milliseconds(text)), error))
            times = [(t.timing.median, i) for i, t in enumerate(trials) if t.timing]
            spent = time.monotonic() - started
            run = TuningRun(
                kernel.name, tuple(trials), min(times)[1], len(configs), timing(9.84), "", spent
            )
            if progress:
                progress(run)
        else:
            ending = "finished"
        run = TuningRun(run.kernel, run.trials, run.best, run.total, run.eager, ending, run.seconds)
        if run.best is not None:
            kernel.use(kernel.with_tunables(dict(run.trials[run.best].values)))
        return run


def milliseconds(text: str) -> float:
    """A time for a kernel text: a bowl over the tunables."""
    total = 0.0
    for tunable in read_tunables(text):
        best = tunable.choices[len(tunable.choices) * 3 // 4]
        total += 0.21 * abs(math.log2((tunable.value + 1) / (best + 1)))
    return 2.31 + total


class FakeCell:
    """What the panel needs of a `FusedCell`."""

    def __init__(self, pause: float = 0.0, kernels: bool = True) -> None:
        self.name = "cell_3"
        self.source = "y = F.gelu(x)\nz = F.layer_norm(y, (1024,), weight, bias)\n"
        self.lock = threading.RLock()
        self.host = FakeHost(pause)
        self.kernels: dict[str, Kernel] = {}
        self.eager: Timing | None = timing(9.84)
        self.fused: Timing | None = timing(3.27)
        self.error: float | None = 2.4e-7
        self.others: dict[str, Timing] = {}
        self.kernel_times: dict[str, Timing] = {}
        # What a script compiles has none of these.
        self.graphs: tuple[Any, ...] = ()
        self.breaks: tuple[Any, ...] = ()
        self.guards: tuple[Any, ...] = ()
        self.recompiles: tuple[Any, ...] = ()
        self.filename = "<fuse cell 3>"
        self.refreshed = 0
        if kernels:
            self._add("gelu_norm", "cpp", CPP, "row reduction over 4096 x 1024", 16_785_408)
            self._add("tanh_add", "triton", TRITON, "pointwise over 4096 x 1024", 4_000_000)

    def _add(self, name: str, target: Any, text: str, summary: str, count: int) -> None:
        source = KernelSource(
            name, target, name, text, Signature(()),
            read_bytes=count, written_bytes=count, summary=summary,
        )  # fmt: skip
        self.kernels[name] = Kernel(source, cast(Any, None), self.host)

    @property
    def max_error(self) -> float | None:
        with self.lock:  # as FusedCell does
            return self.error

    def share(self, folder: str | Path = ".") -> list[Path]:
        path = Path(folder) / f"{self.name}.html"
        path.write_text("shared")
        return [path]

    def refresh(self) -> tuple[Timing | None, Timing | None]:
        self.refreshed += 1
        times = {name: milliseconds(k.source) / 2 for name, k in self.kernels.items()}
        self.kernel_times = {name: timing(time) for name, time in times.items()}
        self.fused = timing(sum(times.values()) + 0.1)
        return self.eager, self.fused

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Any:
        return {
            "text/plain": f"<FusedCell {self.name}>",
            "text/html": f"<pre>{html.escape(self.source)}</pre>",
        }
