"""Generated Triton kernels on a GPU, against a device copy of the same size and against eager.

Run on the GPU machine from the repository root; needs torch and Triton only::

    PYTHONPATH=compiler python tests/bench/triton_device.py [--filter softmax] [--tune 12]

For each workload: emit, build, compare with float64 (eager's own error beside it), time. Every
timing flushes the L2 first and takes the median; the limit is a copy that moves as many bytes as
the kernel must. ``--tune N`` tries up to N settings of the tunables and strategies; ``--variants``
also tries the same text with cheaper divisions and exponentials. Results go to a table on
standard output and, where OUT names a folder, to ``$OUT/triton_device.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fusec.ir.body import Body, Store
from fusec.targets.triton.emit import emit_triton
from fusec.targets.triton.toolchain.build import build_triton
from fusec.tunables import read_tunables, set_tunables
from support import triton_bodies as bodies

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
Tensors = dict[str, torch.Tensor]


@dataclass
class Workload:
    """What to run, and the same in eager."""

    name: str
    case: bodies.Case
    eager: Callable[[Tensors], torch.Tensor]
    strategies: tuple[str, ...] = ("",)


@dataclass
class Result:
    """One line of the table."""

    name: str
    summary: str = ""
    limit: float = math.nan
    ours: float = math.nan
    eager: float = math.nan
    best: float = math.nan
    config: str = ""
    error: float = math.nan
    eager_error: float = math.nan
    note: str = ""
    trials: list[tuple[str, float]] = field(default_factory=list)


def norm_backward(rows: int, columns: int, dtype: torch.dtype) -> bodies.Case:
    """The input gradient of a layer norm without weights."""
    ops, at = bodies.ops, bodies.at
    names = ("grad", "x")
    buffers = {n: bodies.buffer(n, (rows, columns), dtype) for n in (*names, "out")}
    buffers |= {n: bodies.buffer(n, (rows,), F32) for n in ("mean", "rstd")}
    with bodies.recording():
        (i,), (r,) = bodies.axes(rows), bodies.axes(columns, prefix="r")
        grad, x = (bodies.read(n, at(i, r), dtype) for n in names)
        mean, rstd = (ops.load(n, at(i), F32) for n in ("mean", "rstd"))
        normal = ops.binary("mul", ops.binary("sub", x, mean), rstd)
        count = bodies.f32(float(columns))
        first = ops.binary("truediv", ops.reduce("sum", grad, (r,), F32), count)
        product = ops.binary("mul", grad, normal)
        second = ops.binary("truediv", ops.reduce("sum", product, (r,), F32), count)
        rest = ops.binary("add", first, ops.binary("mul", normal, second))
        out = ops.binary("mul", ops.binary("sub", grad, rest), rstd)
        body = Body((i,), (r,), (Store("out", at(i, r), bodies.to_memory(out, dtype)),))
    return bodies.Case("norm_backward", body, buffers, "layer_norm backward")


def eager_norm_backward(t: Tensors) -> torch.Tensor:
    normal = (t["x"] - t["mean"][:, None]) * t["rstd"][:, None]
    grad = t["grad"].to(normal.dtype)
    rest = grad.mean(-1, keepdim=True) + normal * (grad * normal).mean(-1, keepdim=True)
    return ((grad - rest) * t["rstd"][:, None]).to(t["grad"].dtype)


def workloads(dry: bool = False) -> Iterator[Workload]:
    """Yield the workloads, those of ``reference/floors.md`` first; ``dry`` makes them tiny."""
    rows = ("", "looped")

    def n(size: int) -> int:
        return max(size // 512, 4) if dry else size

    def softmax(t: Tensors) -> torch.Tensor:
        return torch.softmax(t["x"], -1)

    def logsumexp(t: Tensors) -> torch.Tensor:
        return t["x"].masked_fill(~t["keep"], -math.inf).logsumexp(-1)

    def gelu_norm(t: Tensors) -> torch.Tensor:
        h = F.gelu(t["x"] * t["w"] + t["b"])
        return F.layer_norm(h, h.shape[-1:], t["gamma"], t["beta"])

    def cross_entropy(t: Tensors) -> torch.Tensor:
        logits = t["logits"]
        loss = F.cross_entropy(logits, t["target"], reduction="none")
        return loss.float() if logits.dtype == HALF else loss

    def chain(t: Tensors) -> torch.Tensor:
        h = torch.relu(t["a"] + t["b"])
        return torch.tanh(h) * h + 2

    def scale(t: Tensors) -> torch.Tensor:
        return (t["x"] + t["bias"]) * t["scale"] * t["gain"]

    for name, dtype in (("fp16", HALF), ("bf16", BF16), ("fp32", F32)):
        yield Workload(
            f"softmax 4096x4096 {name}", bodies.softmax(n(4096), n(4096), dtype), softmax
        )
        yield Workload(
            f"gelu+layer_norm 8192x2048 {name}",
            bodies.gelu_layer_norm(n(8192), n(2048), dtype),
            gelu_norm,
        )
        yield Workload(
            f"pointwise 8192x4096 {name}",
            bodies.pointwise_chain(n(8192), n(4096), dtype=dtype),
            chain,
        )
    yield Workload(
        "masked logsumexp 4096x8192 fp16", bodies.logsumexp(n(4096), n(8192), HALF), logsumexp, rows
    )
    both = ("", "persistent")
    yield Workload(
        "cross_entropy 4096x32000 fp16",
        bodies.cross_entropy(n(4096), n(32000), HALF),
        cross_entropy,
        ("", "looped"),
    )
    yield Workload(
        "softmax 128x131072 fp16",
        bodies.softmax(n(128), n(131072), HALF),
        softmax,
        ("", "looped", "split"),
    )
    yield Workload(
        "softmax 1024x65536 fp16", bodies.softmax(n(1024), n(65536), HALF), softmax, both
    )
    yield Workload("softmax 16384x1000 fp16", bodies.softmax(n(16384), n(1000), HALF), softmax)
    yield Workload("softmax 65536x128 fp16", bodies.softmax(n(65536), n(128), HALF), softmax)
    yield Workload("softmax 4x4000000 fp16", bodies.softmax(n(4), n(4000000), HALF), softmax)
    yield Workload(
        "norm backward 8192x2048 fp16", norm_backward(n(8192), n(2048), HALF), eager_norm_backward
    )
    yield Workload("scale 8192x4096 fp32", bodies.broadcast_add(n(8192), n(4096), F32), scale)
    yield Workload(
        "transpose add 4096x4096 fp16",
        bodies.transpose_add(n(4096), n(4096), HALF),
        lambda t: t["a"] + t["b"].T,
    )
    yield Workload(
        "sum dim0 16384x4096 fp16",
        bodies.sum_columns(n(16384), n(4096), HALF),
        lambda t: t["x"].sum(0),
    )
    yield Workload(
        "sum dim0 131072x256 fp32",
        bodies.sum_columns(n(131072), n(256), F32),
        lambda t: t["x"].sum(0),
    )
    yield Workload(
        "sum all 8192x8192 fp16",
        bodies.sum_all(n(8192), n(8192), dtype=HALF),
        lambda t: t["x"].sum(),
    )
    yield Workload(
        "argmax 4096x8192 fp32",
        bodies.reduce_rows("argmax", n(4096), n(8192)),
        lambda t: t["x"].argmax(-1),
    )
    yield Workload(
        "max dim0 8192x8192 bf16",
        bodies.reduce_rows("max", n(8192), n(8192), BF16, down=True),
        lambda t: t["x"].amax(0),
    )
    yield Workload(
        "gather 65536x512 fp16",
        bodies.gather(n(100000), n(512), n(65536), HALF),
        lambda t: t["table"][t["which"]] * 2,
    )


# -- measuring ----------------------------------------------------------------------------


class Clock:
    """Times functions on the device, the L2 flushed before every run."""

    def __init__(self) -> None:
        self.flush = torch.empty(
            512 << (20 if DEVICE == "cuda" else 0), dtype=torch.int8, device=DEVICE
        )

    def __call__(self, run: Callable[[], object], repeat: int = 30) -> float:
        """Return the median, in microseconds, of ``repeat`` runs."""
        if DEVICE == "cpu":  # a dry run: the script is tried, not the kernels' speed
            started = time.perf_counter()
            run()
            return (time.perf_counter() - started) * 1e6
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        pairs = []
        for _ in range(repeat):
            self.flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in pairs) * 1e3


def copy_limit(clock: Clock, moved: int) -> float:
    """Return how long a device copy takes that moves ``moved`` bytes in all."""
    source = torch.empty(max(moved // 2, 1), dtype=torch.int8, device=DEVICE)
    target = torch.empty_like(source)
    return clock(lambda: target.copy_(source))


def on_gpu(case: bodies.Case) -> bodies.Case:
    """Return a case whose buffers are on the GPU."""
    device = torch.device(DEVICE)
    buffers = {n: replace(b, device=device) for n, b in case.buffers.items()}
    return replace(case, buffers=buffers)


def make_inputs(case: bodies.Case) -> Tensors:
    """Return random tensors for all buffers, made where they are needed."""
    torch.manual_seed(0)
    found = {}
    for name, buffer in case.buffers.items():
        shape = [case.size(e) for e in buffer.shape]
        if buffer.dtype == torch.bool:
            values = torch.rand(shape, device=DEVICE) < 0.5
        elif buffer.dtype.is_floating_point:
            values = torch.randn(shape, device=DEVICE).to(buffer.dtype)
        else:
            values = torch.randint(-50, 50, shape, device=DEVICE, dtype=buffer.dtype)
        found[name] = case.fill.get(name, lambda t: t)(values)
    return found


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest difference; infinite where one is NaN and the other is not."""
    a, b = got.double().flatten(), wanted.double().flatten()
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, torch.zeros_like(a), (a - b).abs())
    return float("inf") if bool(difference.isnan().any()) else float(difference.max())


def variants(text: str) -> Iterator[tuple[str, str]]:
    """Yield the text with cheaper maths, to learn what the exact kind costs."""
    if "libdevice.exp(" in text:
        yield "tl.exp", text.replace("libdevice.exp(", "tl.exp(")
    if "tl.div_rn(" in text:
        yield "fast /", text.replace("tl.div_rn(", "tl.fdiv(")
    cheap = text.replace("libdevice.exp(", "tl.exp(").replace("tl.div_rn(", "tl.fdiv(")
    if cheap != text:
        yield "tl.exp, fast /", cheap
    if "libdevice.erf(" in text:
        yield "no erf", cheap.replace("libdevice.erf(", "(")
    if "libdevice.tanh(" in text:
        yield "no tanh", cheap.replace("libdevice.tanh(", "(")


def settings(text: str, count: int) -> Iterator[dict[str, int]]:
    """Yield settings of the tunables: neighbors of the default first, then a random sample."""
    knobs = read_tunables(text)
    default = {k.name: k.value for k in knobs}
    seen = {tuple(default.values())}
    near = []
    for knob in knobs:
        place = knob.choices.index(knob.value) if knob.value in knob.choices else 0
        for other in (place - 1, place + 1):
            if 0 <= other < len(knob.choices):
                near.append({**default, knob.name: knob.choices[other]})
    everything = [
        dict(zip(default, values, strict=True))
        for values in itertools.product(*(k.choices for k in knobs))
    ]
    random.Random(0).shuffle(everything)
    for setting in [*near, *everything]:
        key = tuple(setting.values())
        if key not in seen:
            seen.add(key)
            yield setting
            count -= 1
            if count <= 0:
                return


def measure(work: Workload, clock: Clock, tune: int, try_variants: bool) -> Result:
    """Check and time one workload."""
    case = on_gpu(work.case)
    result = Result(work.name)
    tensors = make_inputs(case)
    reads = [n for n in case.body.reads() if n not in case.body.writes()]
    order = [tensors[n] for n in [*reads, *case.body.writes()]]
    inputs = {n: tensors[n] for n in case.body.reads()}
    wide = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
    wanted = work.eager(wide)
    del wide
    result.eager_error = error(work.eager(inputs), wanted)
    output = tensors[case.body.writes()[0]]

    for strategy in work.strategies:
        source = emit_triton(
            case.name, case.body, case.buffers, label=case.label, strategy=strategy
        )
        run = build_triton(source.text, source.signature)
        output.fill_(float("nan") if output.is_floating_point() else 77)
        run(order, [])
        found = error(output, wanted)
        spent = clock(lambda run=run: run(order, []))
        if not strategy:
            result.summary, result.ours, result.error = source.summary, spent, found
            result.limit = copy_limit(clock, source.read_bytes + source.written_bytes)
            result.best, result.config = spent, "default"
        consider(result, f"{strategy or 'rule'}", spent, found)
        texts = [("", source.text)]
        for setting in settings(source.text, tune):
            words = " ".join(f"{k}={v}" for k, v in setting.items())
            texts.append((words, set_tunables(source.text, setting)))
        if try_variants:
            texts += list(variants(source.text))
        for words, text in texts[1:]:
            try:
                run = build_triton(text, source.signature)
                run(order, [])
                if DEVICE == "cuda":
                    torch.cuda.synchronize()
                spent = clock(lambda run=run: run(order, []), 12)
            except Exception as problem:  # too many registers, too much shared memory
                result.trials.append((words, math.inf))
                result.note = type(problem).__name__
                continue
            consider(result, f"{strategy or 'rule'} {words}", spent, error(output, wanted))
    result.eager = clock(lambda: work.eager(inputs))
    return result


def consider(result: Result, config: str, spent: float, found: float) -> None:
    """Note a trial; the best right one wins."""
    result.trials.append((config, spent))
    if not found <= 4 * result.eager_error + 1e-3 and not re.search("no (erf|tanh)", config):
        result.note += f" WRONG({config}: {found:.3g})"
    elif spent < result.best and not re.search("no (erf|tanh)", config):
        result.best, result.config = spent, config


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--filter", default="", help="regular expression on the names")
    parser.add_argument("--tune", type=int, default=8, help="settings to try, a strategy")
    parser.add_argument("--variants", action="store_true", help="also time cheaper maths")
    parser.add_argument("--trials", action="store_true", help="print every trial")
    parser.add_argument("--dry", action="store_true", help="tiny sizes, to try the script itself")
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "no GPU: a dry run"
    print(name, "torch", torch.__version__, flush=True)
    clock = Clock()
    head = f"{'workload':36} {'copy':>7} {'ours':>7} {'of it':>5} {'best':>7} {'of it':>5}"
    print(f"{head} {'eager':>7}  {'error':>8} {'eager':>8}  best setting")
    results = []
    for work in workloads(options.dry or DEVICE == "cpu"):
        if not re.search(options.filter, work.name):
            continue
        started = time.time()
        try:
            r = measure(work, clock, options.tune, options.variants)
        except Exception as problem:
            words = str(problem).splitlines() or [""]
            print(f"{work.name:36} failed: {type(problem).__name__}: {words[0][:120]}", flush=True)
            continue
        results.append(r)
        print(
            f"{r.name:36} {r.limit:7.1f} {r.ours:7.1f} {r.limit / r.ours:5.2f} {r.best:7.1f} "
            f"{r.limit / r.best:5.2f} {r.eager:7.1f}  {r.error:8.1e} {r.eager_error:8.1e}  "
            f"{r.config}{' | ' + r.note if r.note else ''} ({time.time() - started:.0f} s)",
            flush=True,
        )
        if options.trials:
            for words, spent in sorted(r.trials, key=lambda t: t[1]):
                print(f"    {spent:8.1f}  {words}")
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
    if results:
        ratios = [r.limit / r.ours for r in results]
        tuned = [r.limit / r.best for r in results]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        best = math.exp(statistics.fmean(map(math.log, tuned)))
        print(f"geometric mean of the copy's speed: {mean:.3f}, tuned {best:.3f}")
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "triton_device.json").write_text(
            json.dumps([vars(r) for r in results], indent=1)
        )


if __name__ == "__main__":
    main()
