"""Tuning on a GPU: what ten seconds of it find, beside a search of everything.

Run from the repository root on a machine with a GPU::

    python tests/bench/gpu_tuning.py [WORDS] --report tuning.jsonl

For each kernel of each workload of ``gpu_workloads`` whose name has one of the words: the time of
the settings that it is generated with, of those that tuning finds within its budget, and of the
best of a search that nothing is left out of, whose budget is ``--thorough`` seconds (where the
space is larger than fits into those, it goes from near settings to far ones, and the report says
how many of how many it saw).  The three are then timed against each other.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Row, caller, geometric_mean, write_rows
from gpu import make_inputs
from gpu_workloads import WORKLOADS, Workload

FINAL_SECONDS = 0.4


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(prog="gpu_tuning.py", description=__doc__)
    parser.add_argument("only", nargs="*", help="words of names; all by default")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of tuning a kernel")
    parser.add_argument("--thorough", type=float, default=40.0, help="seconds of the other search")
    parser.add_argument("--least", type=float, default=6.0, help="microseconds a kernel takes")
    parser.add_argument("--until", type=float, default=3600.0, help="seconds of the whole run")
    parser.add_argument("--share", default="0/1", help="I/N: each N-th workload, from the I-th")
    parser.add_argument("--report", type=Path, default=Path("build/gpu_tuning.jsonl"))
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run; returns 1 if a kernel's tuning found less than 95 % of the best."""
    options = parse(arguments)
    first, count = map(int, options.share.split("/"))
    chosen = [w for w in WORKLOADS if not options.only or any(x in w.name for x in options.only)]
    rows: list[Row] = []
    until = time.time() + options.until
    for workload in chosen[first::count]:
        if time.time() > until:
            break
        try:
            for row in tune(workload, options, until):
                rows.append(row)
                print(line(row), flush=True)
                write_rows(options.report, rows)
        except Exception as problem:
            print(f"{workload.name}: {type(problem).__name__}: {str(problem)[:200]}", flush=True)
    if rows:
        print(totals(rows))
    return int(any(row["share"] < 0.95 for row in rows))


def tune(workload: Workload, options: argparse.Namespace, until: float) -> Any:
    """Yield a row for each kernel of a workload that has something to tune."""
    import torch

    import fusec

    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = make_inputs(workload, "cuda")
    fused = fusec.compile(workload.function, tuned=False, keep_inputs=True)
    with torch.set_grad_enabled(workload.backward):
        caller(workload.function, inputs, workload.backward)(fused)
        for graph in fused.graphs:
            for kernel in graph.kernels:
                if kernel.tunables and time.time() < until:
                    row = row_of(workload, graph, kernel, options)
                    if row is not None:
                        yield row


def row_of(workload: Workload, graph: Any, kernel: Any, options: argparse.Namespace) -> Row | None:
    """Tune one kernel in both ways and time what was found; None where it takes next to nothing."""
    from fusec.cache import CacheStore
    from fusec.timing.measure import interleave
    from fusec.tunables import set_tunables
    from fusec.tune.run import tune_in_graph
    from fusec.verify.timing import fresh_tensors

    part = next(p for p in graph.parts if kernel.name in p.kernels)
    tensors, sizes = part.kernel_inputs(kernel.name, part.last_inputs)
    start = kernel.source
    given = fresh_tensors(kernel.signature, tensors)
    alone = interleave(
        {"start": lambda: kernel.runnable()(given, sizes)},
        seconds=0.02,
        device="cuda",
        flush_l2=True,
    )
    if alone["start"].median * 1e6 < options.least:
        return None
    texts, runs = {"start": start}, {}
    for name, budget in (("tuned", options.budget), ("best", options.thorough)):
        kernel.use(start)
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            run = tune_in_graph(
                graph,
                kernel,
                tensors,
                sizes,
                budget=budget,
                store=CacheStore(Path(folder)),
                thorough=name == "best",
            )
            runs[name] = {
                "seconds": time.perf_counter() - began,
                "tried": len(run.trials),
                "timed": sum(t.timing is not None and not t.note for t in run.trials),
                "left out": sum(t.timing is None and not t.error for t in run.trials),
                "equal": sum(t.timing is not None and bool(t.note) for t in run.trials),
                "failed": sum(bool(t.error) for t in run.trials),
                "total": run.total,
                "stopped": run.stopped,
                "checked": run.checked,
            }
        texts[name] = kernel.source
    calls = {}
    for name, text in texts.items():
        runnable = graph.build(kernel, text)
        calls[name] = lambda runnable=runnable: runnable(given, sizes)
    kernel.use(start)
    times = interleave(calls, seconds=FINAL_SECONDS, device="cuda", flush_l2=True)
    settings = {
        name: {t.name: t.value for t in kernel_tunables(text)} for name, text in texts.items()
    }
    assert set_tunables(start, settings["start"]) == start
    micros = {name: timing.median * 1e6 for name, timing in times.items()}
    return {
        "name": workload.name,
        "kernel": kernel.name,
        **micros,
        "share": min(micros.values()) / micros["tuned"],
        "settings": settings,
        "runs": runs,
    }


def kernel_tunables(text: str) -> Any:
    """Return the tunables of a text."""
    from fusec.tunables import read_tunables

    return read_tunables(text)


def line(row: Row) -> str:
    """Return one row as text."""
    tuned, best = row["runs"]["tuned"], row["runs"]["best"]
    changed = {
        name: f"{row['settings']['start'][name]}->{value}"
        for name, value in row["settings"]["best"].items()
        if value != row["settings"]["start"][name]
    }
    return (
        f"{row['name'][:38]:<38} {row['kernel'][:28]:<28} start {row['start']:7.1f}  tuned "
        f"{row['tuned']:7.1f}  best {row['best']:7.1f}  {row['share']:.2f}  "
        f"({tuned['timed']}+{tuned['equal']}={tuned['left out']}-{tuned['failed']}! in "
        f"{tuned['seconds']:.0f} s {tuned['stopped']}; {best['tried']}/{best['total']} in "
        f"{best['seconds']:.0f} s)  {' '.join(f'{k} {v}' for k, v in changed.items())}"
    )


def totals(rows: Sequence[Row]) -> str:
    """Return geometric means and the worst rows."""
    worst = sorted(rows, key=lambda row: row["share"])[:5]
    names = ", ".join(f"{r['name']} {r['kernel']} {r['share']:.2f}" for r in worst)
    gain = geometric_mean([row["start"] / row["tuned"] for row in rows])
    took = statistics.mean(row["runs"]["tuned"]["seconds"] for row in rows)
    return (
        f"{len(rows)} kernels: tuning reaches {geometric_mean([r['share'] for r in rows]):.3f} of "
        f"the best in {took:.1f} s; {sum(r['share'] >= 0.95 for r in rows)} at 0.95 or more; "
        f"least: {names}; {gain:.3f} times as fast as generated"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
