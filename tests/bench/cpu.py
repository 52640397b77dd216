"""``make bench-cpu``: eager, TorchInductor and fusec on the CPU, interleaved in one run.

Every workload runs in a process of its own, with each number of threads: fusec is checked against
eager and float64 on real and on fresh inputs, then all are timed in turns, and with them a copy
that moves as many bytes as the workload reads and writes, once each.  Times are medians.  The
report (JSON lines) is written after each row, so that a run can be stopped and taken up again.

``--isa avx2`` or ``sse2`` holds everybody to an older processor's instructions: fusec, ATen,
TorchInductor, oneDNN and MKL.  ``--jobs`` runs several workloads at once, each on cores of its own:
where there are many, a table takes minutes, and what is compared still shares its cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from common import Row, caller, geometric_mean, read_rows, total_bytes, write_rows
from cpu_workloads import WORKLOADS, Workload

# What holds each library to the instructions of an older processor.
ISAS = {
    "avx2": {
        "FUSEC_ISA": "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "TORCHINDUCTOR_CPP_MARCH": "x86-64-v3",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "sse2": {
        "FUSEC_ISA": "sse2",
        "ATEN_CPU_CAPABILITY": "default",
        "TORCHINDUCTOR_CPP_MARCH": "x86-64",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(prog="make bench-cpu", description=__doc__)
    parser.add_argument("only", nargs="*", help="words; workloads whose name has one of them")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing a row")
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--isa", choices=list(ISAS), help="an older processor's instructions")
    parser.add_argument("--jobs", type=int, default=1, help="workloads at once, on cores apart")
    parser.add_argument("--report", type=Path, default=Path("build/bench_cpu.jsonl"))
    parser.add_argument("--again", action="store_true", help="also what the report has already")
    parser.add_argument("--show", action="store_true", help="only print the report")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; returns 1 if a result was wrong or a row failed."""
    options = parse(arguments)
    if options.child:
        child(options)
        return 0
    rows = {} if options.again else read_rows(options.report, "name", "threads")
    chosen = [
        w for w in WORKLOADS if not options.only or any(word in w.name for word in options.only)
    ]
    print(HEAD)
    lock = Lock()
    cores: SimpleQueue[set[int]] = SimpleQueue()
    for own in _cores_apart(options.jobs):
        cores.put(own)

    def lines_of(workload: Workload) -> list[str]:
        missing = [t for t in options.threads if (workload.name, t) not in rows]
        if missing and not options.show:
            own = cores.get()
            found = _run(workload, missing, options, own)
            cores.put(own)
            with lock:
                rows.update({(row["name"], row["threads"]): row for row in found})
                write_rows(options.report, rows.values())
        known = [rows[workload.name, t] for t in options.threads if (workload.name, t) in rows]
        return [line(row) for row in known]

    with ThreadPoolExecutor(options.jobs) as pool:
        for lines in pool.map(lines_of, chosen):
            for text in lines:
                print(text, flush=True)
    shown = [rows[w.name, t] for w in chosen for t in options.threads if (w.name, t) in rows]
    print(totals(shown))
    return int(any(row["error"] for row in shown))


def _cores_apart(jobs: int) -> list[set[int]]:
    """Return the cores of each job: as many for each, none in two."""
    if jobs == 1:
        return [set()]  # all of them
    there = sorted(os.sched_getaffinity(0))
    share = len(there) // jobs
    if not share:
        raise SystemExit(f"{jobs} jobs need {jobs} cores; there are {len(there)}")
    return [set(there[i * share : (i + 1) * share]) for i in range(jobs)]


def _run(
    workload: Workload, threads: list[int], options: argparse.Namespace, cores: set[int]
) -> list[Row]:
    command = [sys.executable, __file__, "--child", workload.name]
    command += ["--seconds", str(options.seconds), "--threads", *map(str, threads)]
    if options.no_inductor:
        command.append("--no-inductor")
    if cores:
        command = ["taskset", "--cpu-list", ",".join(map(str, sorted(cores))), *command]
    # Threads that spin between the kernels of one candidate would slow the next one down.
    environment = {**os.environ, "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
    # Nor is what TorchInductor has compiled for one thread to be found again for two.
    environment |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"} | ISAS.get(options.isa, {})
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=600, env=environment
    )
    rows = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    lost = [t for t in threads if t not in {row["threads"] for row in rows}]
    why = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
    return rows + [{"name": workload.name, "threads": t, "error": why[0]} for t in lost]


# -- one workload, in the child -----------------------------------------------------------


def child(options: argparse.Namespace) -> None:
    """Check and time one workload with each number of threads; print a row of JSON for each."""
    (workload,) = [w for w in WORKLOADS if w.name == options.child]
    for threads in options.threads:
        print(json.dumps(measure(workload, threads, options)), flush=True)


def measure(workload: Workload, threads: int, options: argparse.Namespace) -> Row:
    """Return one row: milliseconds, kernels, whether the results are right."""
    import torch

    import fusec
    from fusec.call import native
    from fusec.timing.measure import interleave

    native.types(wait=True)  # large pages come with it: a process this short would end before
    torch._dynamo.reset()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    inputs = workload.inputs()
    if workload.backward:
        inputs = tuple(t.requires_grad_() if t.is_floating_point() else t for t in inputs)
    compiled = fusec.compile(workload.function, keep_inputs=True)
    call = caller(workload.function, inputs, workload.backward)
    with torch.set_grad_enabled(workload.backward):
        started = time.perf_counter()
        results = call(compiled)
        first = time.perf_counter() - started
        verdict = compiled.graphs[0].verify()
        checked = fusec.compile(workload.function)  # keeping inputs is not part of a call's cost
        calls = {
            "eager": lambda: call(workload.function),
            "fusec": lambda: call(checked),
        }
        if not options.no_inductor:
            peer = torch.compile(workload.function)
            calls["inductor"] = lambda: call(peer)
        moved = workload.moved or total_bytes([*inputs, *results])
        source = torch.ones(max(moved // 8, 1))
        target = torch.empty_like(source)
        calls["copy"] = lambda: target.copy_(source)
        for each in calls.values():
            for _ in range(3):
                each()
        timings = interleave(calls, seconds=options.seconds, device="cpu")
    return {
        "name": workload.name,
        "bound": workload.bound,
        "threads": threads,
        "bytes": moved,
        "kernels": list(compiled.kernels),
        "externs": len(compiled.graphs[0].externs),
        "first_s": first,
        "error": "" if verdict.ok and not compiled.fallbacks else verdict.reason or "fell back",
        **{name: timing.milliseconds for name, timing in timings.items()},
        **{f"{name}_spread": [t.low * 1e3, t.high * 1e3] for name, t in timings.items()},
    }


# -- printing -----------------------------------------------------------------------------

HEAD = (
    f"{'workload':<26}{'threads':>8}{'eager ms':>10}{'inductor':>10}{'fusec':>9}{'copy':>8}"
    f"{'x eager':>9}{'x induct.':>10}{'of copy':>9}"
)


def line(row: Row) -> str:
    """Return one row as text."""
    if "fusec" not in row:
        return f"{row['name']:<26}{row['threads']:>8}  failed: {row['error']}"
    peer = f"{row['inductor']:.3f}" if "inductor" in row else "-"
    over = f"{row['inductor'] / row['fusec']:.2f}" if "inductor" in row else "-"
    return (
        f"{row['name']:<26}{row['threads']:>8}{row['eager']:>10.3f}{peer:>10}{row['fusec']:>9.3f}"
        f"{row['copy']:>8.3f}{row['eager'] / row['fusec']:>9.2f}{over:>10}"
        f"{row['copy'] / row['fusec']:>9.2f}{'  ' + row['error'] if row['error'] else ''}"
    )


def totals(rows: Sequence[Row]) -> str:
    """Return geometric means and the worst rows."""
    rows = [row for row in rows if "fusec" in row]
    texts = []
    for peer in ("eager", "inductor"):
        having = [row for row in rows if peer in row]
        if having:
            mean = geometric_mean([row[peer] / row["fusec"] for row in having])
            worst = sorted(having, key=lambda row: float(row[peer] / row["fusec"]))[:5]
            names = ", ".join(
                f"{r['name']} ({r['threads']}) {r[peer] / r['fusec']:.2f}" for r in worst
            )
            texts.append(f"over {peer}: {mean:.2f}x in geometric mean; least: {names}")
    memory = [row for row in rows if row["bound"] == "memory"]
    if memory:
        mean = geometric_mean([row["copy"] / row["fusec"] for row in memory])
        under = sum(row["copy"] / row["fusec"] < 0.85 for row in memory)
        texts.append(
            f"memory-bound: {mean:.2f} of a copy's speed in geometric mean; {under} of "
            f"{len(memory)} rows under 0.85"
        )
    slower = [
        f"{row['name']} ({row['threads']})"
        for row in rows
        if min(row["eager"], row.get("inductor", math.inf)) < row["fusec"]
    ]
    texts.append(f"slower than the faster of the two: {', '.join(slower) or 'none'}")
    return "\n".join(texts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
