"""``make bench-gpu``: eager, TorchInductor and fusec on a GPU, interleaved in one run.

Each result is compared with float64 first, eager's own error beside it.  Then all are timed in
turns: the L2 is overwritten before each call, device events stand round it, and the device is kept
busy before them until the host has sent all of the call, so that what is timed is the device's
work and not Python's.  The limit of a workload is a device copy that moves as many bytes as it
reads and writes, timed the same way.  Times are medians.

All workloads run in one child process, which is started again after the one that broke it.  The
report (JSON lines) is written after each row, so that a run can be stopped and taken up again;
``--budget`` stops by itself.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import Row, caller, flat, geometric_mean, read_rows, total_bytes, write_rows
from gpu_workloads import WORKLOADS, Workload, full_size

MODES = ("default", "max-autotune-no-cudagraphs", "reduce-overhead")
FLUSHED = 256 << 20  # bytes; four times the L2 of an H200
CLOCK = 2.0e9  # device cycles a second, at most
LEAST = 0.75  # of the limit, for a memory-bound workload


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(prog="make bench-gpu", description=__doc__)
    parser.add_argument("only", nargs="*", help="words; workloads whose name has one of them")
    parser.add_argument(
        "--modes",
        nargs="*",
        choices=MODES,
        default=list(MODES[:2]),
        help="of TorchInductor (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=0.4, help="of timing a row")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds of the whole run")
    parser.add_argument("--report", type=Path, default=Path("build/bench_gpu.jsonl"))
    parser.add_argument("--again", action="store_true", help="also what the report has already")
    parser.add_argument("--show", action="store_true", help="only print the report")
    parser.add_argument("--child", nargs="+", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=math.inf, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; returns 1 if a result was wrong or a row failed."""
    options = parse(arguments)
    if options.child:
        child(options)
        return 0
    rows = {key[0]: row for key, row in read_rows(options.report, "name").items()}
    chosen = [
        w.name for w in WORKLOADS if not options.only or any(x in w.name for x in options.only)
    ]
    todo = [name for name in chosen if options.again or not complete(rows.get(name), options.modes)]
    print(head(options.modes))
    for name in chosen:
        if name in rows and (options.show or name not in todo):
            print(line(rows[name], options.modes))
    if todo and not options.show:
        measure_all(todo, rows, options)
    shown = [rows[name] for name in chosen if name in rows]
    print(totals(shown, options.modes))
    lost = [name for name in chosen if name not in rows]
    if lost:
        print(f"not measured: {', '.join(lost)}")
    return int(any(row["error"] for row in shown))


def complete(row: Row | None, modes: Sequence[str]) -> bool:
    """Whether a row of a report has all that a run would measure."""
    return row is not None and not row["error"] and all(mode in row for mode in modes)


def measure_all(todo: list[str], rows: dict[str, Row], options: argparse.Namespace) -> None:
    """Measure ``todo`` in child processes; write and print each row as it comes."""
    until = time.time() + options.budget
    while todo and time.time() < until:
        command = [sys.executable, __file__, "--seconds", str(options.seconds)]
        command += ["--until", str(until), "--modes", *options.modes, "--child", *todo]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for text in process.stdout:
                if not text.startswith("{"):
                    continue
                row = json.loads(text)
                todo.remove(row["name"])
                rows[row["name"]] = row
                write_rows(options.report, rows.values())
                print(line(row, options.modes), flush=True)
        if process.returncode:  # the first one that is missing took the process with it
            name = todo.pop(0)
            rows[name] = {"name": name, "error": f"ended its process ({process.returncode})"}
            write_rows(options.report, rows.values())
            print(line(rows[name], options.modes), flush=True)
        elif todo:
            return  # out of time


# -- one workload after the other, in the child ---------------------------------------------


def child(options: argparse.Namespace) -> None:
    """Check and time workloads; print a row of JSON for each."""
    import torch

    for name in options.child:
        if time.time() > options.until:
            return
        (workload,) = [w for w in WORKLOADS if w.name == name]
        try:
            row = measure(workload, options)
        except torch.AcceleratorError:
            raise  # the device's context is lost
        except Exception as problem:
            words = str(problem).splitlines() or [""]
            row = {"name": name, "error": f"{type(problem).__name__}: {words[0][:200]}"}
        print(json.dumps(row), flush=True)
        torch.cuda.empty_cache()


def measure(workload: Workload, options: argparse.Namespace) -> Row:
    """Return one row: microseconds, kernels, errors."""
    import torch

    import fusec

    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = make_inputs(workload, "cuda")
    fused = fusec.compile(workload.function, tuned=False)
    functions = {"eager": workload.function, "fusec": fused}
    for mode in options.modes:
        functions[mode] = torch.compile(
            workload.function, mode=None if mode == "default" else mode, dynamic=False
        )
    with torch.set_grad_enabled(workload.backward):
        call = caller(workload.function, inputs, workload.backward)
        first, errors, wrong = check(workload, functions, inputs)
        results = call(workload.function)
        moved = workload.moved(inputs, results) if workload.moved else None
        if moved is None:
            moved = total_bytes(flat(inputs)) * (1 + workload.backward) + total_bytes(results)
        del results
        calls = {name: _bound(call, function) for name, function in functions.items()}
        source = torch.empty(max(moved // 2, 1), dtype=torch.int8, device="cuda")
        target = torch.empty_like(source)
        calls["copy"] = lambda: target.copy_(source)
        times = interleave(calls, options.seconds)
    quartiles = {name: statistics.quantiles(t, n=4) for name, t in times.items()}
    return {
        "name": workload.name,
        "bound": workload.bound,
        "bytes": moved,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "kernels": {k.name: k.generated.summary for k in fused.kernels.values()},
        "externs": [e.name for graph in fused.graphs for e in graph.externs],
        "error": wrong or ("fell back" if fused.fallbacks else ""),
        "first_s": first,
        "errors": errors,
        "samples": len(times["copy"]),
        **{name: median for name, (_, median, _) in quartiles.items()},
        **{f"{name}_spread": [low, high] for name, (low, _, high) in quartiles.items()},
    }


def make_inputs(
    workload: Workload, device: str, size: Callable[..., int] = full_size
) -> tuple[Any, ...]:
    """Return a workload's inputs on ``device``; with gradients where it has a backward."""
    import torch

    with torch.device(device):
        inputs = workload.inputs(size)
    if workload.backward:
        inputs = tuple(t.requires_grad_() if t.is_floating_point() else t for t in inputs)
    return inputs


def _bound(call: Callable[[Any], object], function: Any) -> Callable[[], object]:
    return lambda: call(function)


# -- right or wrong -------------------------------------------------------------------------


def check(
    workload: Workload, functions: Mapping[str, Any], inputs: tuple[Any, ...]
) -> tuple[dict[str, float], dict[str, float], str]:
    """Run each function once, and compare its results with float64.

    Returns:
        Seconds of each first call; each function's largest error relative to the largest value;
        what is wrong with fusec's results, or nothing.
    """
    import torch

    gradient = None
    if workload.backward:
        gradient = torch.randn_like(workload.function(*inputs).detach())

    def run(function: Any, given: tuple[Any, ...], gradient: Any) -> list[Any]:
        given = copy.deepcopy(given) if workload.changes else given
        results = caller(workload.function, given, workload.backward, gradient)(function)
        return [*results, *flat(list(given))] if workload.changes else results

    wide = tuple(_widened(t) for t in inputs)
    wanted = run(workload.function, wide, None if gradient is None else gradient.double())
    wanted = [t.detach() for t in wanted]
    del wide
    first, gaps = {}, {}
    scales: list[float] = []
    for name, function in functions.items():
        started = time.perf_counter()
        results = run(function, inputs, gradient)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        first[name] = time.perf_counter() - started
        gaps[name] = [gap(a, b) for a, b in zip(results, wanted, strict=True)]
        scales = scales or [rounding(a, b) for a, b in zip(results, wanted, strict=True)]
        del results
    wrong = ""
    for number, (own, eager) in enumerate(zip(gaps["fusec"], gaps["eager"], strict=True)):
        if not own <= 2 * eager + scales[number]:
            wrong = f"result {number} is off by {own:.2g} of its largest value (eager: {eager:.2g})"
    return first, {name: max(found) for name, found in gaps.items()}, wrong


def _widened(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_widened(each) for each in value]
    if not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def gap(result: Any, wanted: Any) -> float:
    """Return the largest difference, relative to the largest wanted value."""
    import torch

    a, b = result.detach().double(), wanted.double()
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, (a - b).abs())
    if difference.numel() == 0:
        return 0.0
    worst = float(difference.max())
    return math.inf if math.isnan(worst) else worst / max(float(largest(b)), 1e-30)


def largest(values: Any) -> Any:
    """Return the largest finite magnitude."""
    import torch

    return torch.where(values.isfinite(), values.abs(), 0.0).max()


def rounding(result: Any, wanted: Any) -> float:
    """Return what one step of the result's type may differ by: a quantized value may round up."""
    import torch

    if result.dtype.is_floating_point:
        return float(torch.finfo(result.dtype).eps)
    return 1 / max(float(largest(wanted.double())), 1.0) if result.dtype == torch.int8 else 0.0


# -- timing ---------------------------------------------------------------------------------


def interleave(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Return the microseconds of each call's runs on the device, taken in random turns."""
    import torch

    flush = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    busy = {}
    for name, call in calls.items():
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        busy[name] = int(1.5 * (time.perf_counter() - started) * CLOCK)
        torch.cuda.synchronize()
    pairs: dict[str, list[Any]] = {name: [] for name in calls}
    order = list(calls)
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(pairs[order[0]]) < 7:
        random.shuffle(order)
        for name in order:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(busy[name])
            flush.zero_()
            start.record()
            calls[name]()
            end.record()
            pairs[name].append((start, end))
        torch.cuda.synchronize()
    return {
        name: [start.elapsed_time(end) * 1e3 for start, end in each] for name, each in pairs.items()
    }


# -- printing -------------------------------------------------------------------------------

_SHORT = {"default": "inductor", "max-autotune-no-cudagraphs": "autotune", MODES[2]: "graphs"}


def head(modes: Sequence[str]) -> str:
    """Return the first line of the table."""
    peers = "".join(f"{_SHORT[mode]:>10}" for mode in modes)
    ratios = "".join(f"{'x ' + _SHORT[mode][:6]:>9}" for mode in modes)
    return (
        f"{'workload, microseconds':<42}{'copy':>9}{'fusec':>9}{'eager':>9}{peers}"
        f"{'of copy':>9}{'x eager':>9}{ratios}"
    )


def line(row: Row, modes: Sequence[str]) -> str:
    """Return one row as text."""
    if "fusec" not in row:
        return f"{row['name']:<42}  failed: {row['error']}"
    own = row["fusec"]
    peers = "".join(f"{row[m]:>10.1f}" if m in row else f"{'-':>10}" for m in modes)
    ratios = "".join(f"{row[m] / own:>9.2f}" if m in row else f"{'-':>9}" for m in modes)
    return (
        f"{row['name']:<42}{row['copy']:>9.1f}{own:>9.1f}{row['eager']:>9.1f}{peers}"
        f"{row['copy'] / own:>9.2f}{row['eager'] / own:>9.2f}{ratios}"
        f"{'  ' + row['error'] if row['error'] else ''}"
    )


def totals(rows: Sequence[Row], modes: Sequence[str]) -> str:
    """Return geometric means and the worst rows."""
    rows = [row for row in rows if "fusec" in row]
    memory = [row for row in rows if row["bound"] == "memory"]
    texts = []
    if memory:
        shares = {row["name"]: row["copy"] / row["fusec"] for row in memory}
        under = [name for name, share in shares.items() if share < LEAST]
        texts.append(
            f"memory-bound ({len(memory)}): {geometric_mean(list(shares.values())):.3f} of a "
            f"copy's speed in geometric mean; under {LEAST}: {', '.join(under) or 'none'}"
        )
    for peer in ("eager", *modes):
        having = [row for row in rows if peer in row]
        if not having:
            continue
        ratios = {row["name"]: row[peer] / row["fusec"] for row in having}
        worst = sorted(ratios, key=ratios.__getitem__)[:5]
        mean = geometric_mean(list(ratios.values()))
        only = geometric_mean([ratios[r["name"]] for r in having if r["bound"] == "memory"])
        named = ", ".join(f"{name} {ratios[name]:.2f}" for name in worst)
        texts.append(f"over {peer}: {mean:.2f}x ({only:.2f}x memory-bound); least: {named}")
        shares = [row["copy"] / row[peer] for row in having if row["bound"] == "memory"]
        texts.append(f"  {peer} itself: {geometric_mean(shares):.3f} of a copy's speed")
    slower = [row["name"] for row in rows if any(_slower(row, mode) for mode in modes)]
    texts.append(f"slower than TorchInductor beyond the spread: {', '.join(slower) or 'none'}")
    return "\n".join(texts)


def _slower(row: Row, peer: str) -> bool:
    """Whether fusec is slower than a peer by more than both series' quartiles."""
    return peer in row and bool(row["fusec_spread"][0] > row[f"{peer}_spread"][1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
