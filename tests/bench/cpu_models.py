"""``make bench-models``: whole models on the CPU, beside eager and TorchInductor.

A case is a model, inference (no gradients) or a training step (forward, backward, optimizer), in
float32 or bfloat16: weights and inputs in bfloat16 for inference, autocast for training.  The
optimizer's step is compiled by the compiler that compiles the model.  Every case runs in a process
of its own: results, gradients and buffers are compared with float64, beside eager's own error, and
the updated parameters with eager's update; then steps are timed in turns.  Times are medians.  The
report (JSON lines) is written after each case, so that a run can be stopped and taken up again.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

Row = dict[str, Any]
BACKENDS = ("eager", "inductor", "fusec")
# Beside twice eager's own error: a few roundings, relative to a result's largest value.
FLOOR = {"float32": 2e-5, "bfloat16": 8e-3}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(prog="make bench-models", description=__doc__)
    parser.add_argument("only", nargs="*", help="words; cases whose name has all of them")
    parser.add_argument("--rounds", type=int, default=11, help="timed steps of each")
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own number")
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--report", type=Path, default=Path("build/bench_models.jsonl"))
    parser.add_argument("--again", action="store_true", help="also what the report has already")
    parser.add_argument("--show", action="store_true", help="only print the report")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a case")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; returns 1 if a result was wrong or a case failed."""
    options = parse(arguments)
    if options.child:
        print(json.dumps(measure(options.child, options)), file=sys.__stdout__, flush=True)
        return 0
    from cpu_model_cases import MODES, PRECISIONS, TASKS

    names = [f"{task} {mode} {p}" for task in TASKS for mode in MODES for p in PRECISIONS]
    chosen = [name for name in names if all(word in name.split() for word in options.only)]
    rows = read(options.report)
    print(HEAD)
    for name in chosen:
        if not options.show and (options.again or name not in rows):
            rows[name] = _run(name, options)
            write(options.report, rows.values())
        if name in rows:
            print(line(rows[name]), flush=True)
    shown = [rows[name] for name in chosen if name in rows]
    print(totals(shown))
    return int(any(row["error"] for row in shown))


def read(path: Path) -> dict[str, Row]:
    """Return the rows of a report by name; none if there is no report."""
    if not path.exists():
        return {}
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    return {row["name"]: row for row in rows}


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write a report, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    part.replace(path)


def _run(name: str, options: argparse.Namespace) -> Row:
    """Run a case in a fresh process on fresh caches."""
    command = [sys.executable, __file__, "--child", name, "--rounds", str(options.rounds)]
    command += ["--threads", str(options.threads)]
    if options.no_inductor:
        command.append("--no-inductor")
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "FUSEC_STRICT": "1",
            "FUSEC_CACHE_DIR": f"{cache}/fusec",
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            "HF_HUB_OFFLINE": "1",
        }
        try:
            done = subprocess.run(
                command,
                check=False,
                capture_output=True,
                text=True,
                timeout=options.timeout,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            return {"name": name, "error": f"more than {options.timeout:.0f} s"}
    rows = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    if rows:
        return rows[-1]
    last = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
    return {"name": name, "error": last[0]}


# -- one case, in the child ---------------------------------------------------------------


class Contender:
    """A model with its optimizer, compiled by one of the backends.

    The contenders of a case share the weights: only one copy is in memory.
    """

    def __init__(self, task: Any, backend: str, optimizer: Any, autocast: bool) -> None:
        import torch
        from cpu_model_cases import Loss

        self.task, self.autocast, self.training = task, autocast, optimizer is not None
        self.module = Loss(task) if self.training else task.module
        self.call = _compile(self.module, backend)
        self.update: Callable[[], object] = lambda: None
        if optimizer is not None:
            plain = optimizer.step
            self.update = plain if backend == "eager" else _compile_step(plain, backend)
        self.parameters = list(task.module.parameters())
        self.torch = torch

    def forward_backward(self) -> Any:
        """Run the model, and backward in training; return its result."""
        torch = self.torch
        for parameter in self.parameters:
            parameter.grad = None
        with (
            torch.set_grad_enabled(self.training),
            torch.autocast("cpu", torch.bfloat16, enabled=self.autocast),
        ):
            result = self.call(**self.task.batch)
        if self.training:
            result.backward()
        return result

    def step(self) -> tuple[float, float]:
        """Run a step; return the seconds of the model and of the optimizer."""
        started = time.perf_counter()
        self.forward_backward()
        middle = time.perf_counter()
        self.update()
        return middle - started, time.perf_counter() - middle


def _compile(function: Any, backend: str) -> Any:
    import torch

    if backend == "eager":
        return function
    if backend == "fusec":
        import fusec

        return fusec.compile(function)
    return torch.compile(function, backend=backend)


def _compile_step(step: Callable[[], object], backend: str) -> Callable[[], object]:
    import torch

    def update() -> None:
        step()

    return torch.compile(update, backend=backend)


def measure(name: str, options: argparse.Namespace) -> Row:
    """Check and time one case; return its row: milliseconds, first calls, errors."""
    import torch
    from cpu_model_cases import build, in_bfloat16, in_double, tensors_of

    import fusec  # noqa: F401  (registers the backend)

    sys.stdout = sys.stderr  # only the row goes to the real one
    kind, mode, precision = name.split()
    if options.threads:
        torch.set_num_threads(options.threads)
    training = mode == "training"
    task = build(kind, mode)
    exact = in_double(task)
    one = Contender(
        exact, "eager", exact.optimizer([*exact.module.parameters()]) if training else None, False
    )
    truth = tensors_of(exact.module, one.forward_backward())
    del exact, one
    if precision == "bfloat16" and not training:
        task = in_bfloat16(task)
    optimizer = task.optimizer([*task.module.parameters()]) if training else None
    autocast = precision == "bfloat16" and training
    initial = copy.deepcopy(task.module.state_dict())
    backends = [b for b in BACKENDS if b != "inductor" or not options.no_inductor]
    row: Row = {"name": name, "what": task.what, "error": "", "threads": torch.get_num_threads()}
    contenders, own, updated = {}, {}, {}
    for backend in backends:
        task.module.load_state_dict(initial)
        torch._dynamo.utils.counters.clear()
        contenders[backend] = each = Contender(task, backend, optimizer, autocast)
        started = time.perf_counter()
        result = each.forward_backward()
        row[f"{backend}_first_s"] = time.perf_counter() - started
        found = tensors_of(task.module, result)
        if backend == "eager":
            own = found
        else:
            worst = judge(found, own, truth, FLOOR[precision])
            row[f"{backend}_errors"] = worst
            over = not worst[0] <= 2 * worst[1] + FLOOR[precision]
            if over and backend == "fusec" and training and precision == "float32":
                unsure = moved_by_rounding(kind, mode, truth)
                row["moved_by_rounding"] = unsure[worst[2]]
                over = any(
                    not error <= 2 * max(mine, unsure[name]) + FLOOR[precision]
                    for name, (error, mine) in errors_of(found, own, truth).items()
                )
            if over and backend == "fusec":
                row["error"] = f"wrong: {worst}"
        if training:
            change = _updated(each, own, optimizer)
            if backend == "eager":
                updated = change
            else:
                off = max(_distance(change[n], updated[n]) for n in updated)
                row[f"{backend}_update_off"] = off
                if not off <= 1e-6 and backend == "fusec":
                    row["error"] = f"the optimizer's step differs by {off:.1e}"
        del found
    del own, truth, updated
    row |= _counts(contenders["fusec"].call)
    row |= _times(contenders, options.rounds)
    return row


def _updated(contender: Contender, own: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """Return the parameters after an optimizer's step on eager's gradients, from a fresh state."""
    module = contender.task.module
    for name, parameter in module.named_parameters():
        parameter.grad = own[f"grad of {name}"].clone()
    for state in optimizer.state.values():
        for value in state.values():
            if hasattr(value, "zero_"):
                value.zero_()
    contender.update()
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def judge(
    found: dict[str, Any], own: dict[str, Any], truth: dict[str, Any], floor: float
) -> tuple[float, float, str]:
    """Return the worst result's error, eager's of the same result, and its name.

    Errors are the largest difference from float64, relative to the result's largest value; the
    worst is the one that is furthest above what is allowed.
    """
    worst = (-math.inf, 0.0, 0.0, "")
    for name, errors in errors_of(found, own, truth).items():
        over = errors[0] - 2 * errors[1] - floor
        if not over <= worst[0]:
            worst = (over, *errors, name)
    return worst[1:]


def errors_of(
    found: dict[str, Any], own: dict[str, Any], truth: dict[str, Any]
) -> dict[str, tuple[float, float]]:
    """Return each result's error and eager's, as ``judge`` measures them."""
    errors = {}
    for name, exact in truth.items():
        if not exact.is_floating_point():
            same = bool((found[name] == own[name]).all())
            errors[name] = (0.0 if same else math.inf, 0.0)
            continue
        scale = max(exact.abs().max().item(), 1e-3)
        first, second = (_distance(each[name], exact) / scale for each in (found, own))
        errors[name] = first, second
    return errors


def moved_by_rounding(kind: str, mode: str, truth: dict[str, Any]) -> dict[str, float]:
    """Return how far eager's own results spread, where another rounding is as right as its first.

    That is its parameters rounded otherwise, computed in float64 and, three times, in float32, and
    its convolutions computed in another order (channels innermost).  ResNet-50's gradients at a
    batch of four move by two to three percent in the median and by ten to twenty in the worst
    tensor: no float32 computation is better, and one sample of eager's error says little of one
    tensor.
    """
    import torch
    from cpu_model_cases import build, in_double, tensors_of

    spread: dict[str, float] = {}
    for exact, turned in ((True, False), *[(False, False)] * 3, (False, True)):
        task = in_double(build(kind, mode)) if exact else build(kind, mode)
        parameters = [*task.module.parameters()]
        if turned:
            task.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        else:
            with torch.no_grad():
                for parameter in parameters:  # by a unit in the last place of float32 at most
                    parameter.mul_(1 + 2.0**-23 * (2 * torch.rand_like(parameter) - 1))
        moved = Contender(task, "eager", task.optimizer(parameters), False)
        found = tensors_of(task.module, moved.forward_backward())
        for name, (error, _) in errors_of(found, truth, truth).items():
            spread[name] = max(error, spread.get(name, 0.0))
    return spread


def _distance(value: Any, truth: Any) -> float:
    difference = (value.double() - truth.double()).abs().max().item()
    return math.inf if math.isnan(difference) else difference


def _times(contenders: dict[str, Contender], rounds: int) -> Row:
    parts: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for turn in range(rounds + 2):
        for name, each in contenders.items():
            seconds = each.step()
            if turn >= 2:
                parts[name].append(seconds)
    row: Row = {}
    for name, found in parts.items():
        whole = [1e3 * (a + b) for a, b in found]
        row[name] = statistics.median(whole)
        row[f"{name}_spread"] = [min(whole), max(whole)]
        row[f"{name}_model"] = 1e3 * statistics.median(a for a, _ in found)
        row[f"{name}_optimizer"] = 1e3 * statistics.median(b for _, b in found)
    return row


def _counts(compiled: Any) -> Row:
    graphs = compiled.graphs
    return {
        "graphs": len(graphs),
        "kernels": sum(len(g.kernels) for g in graphs),
        "externs": sum(len(g.externs) for g in graphs),
        "in_eager": sum(bool(g.fallback) for g in graphs),
    }


# -- printing -----------------------------------------------------------------------------

HEAD = (
    f"{'case':<30}{'eager ms':>10}{'inductor':>10}{'fusec':>10}{'x eager':>9}{'x induct.':>10}"
    f"{'first s: inductor':>19}{'fusec':>7}  size"
)


def line(row: Row) -> str:
    """Return one row as text."""
    if "fusec" not in row:
        return f"{row['name']:<30}  failed: {row['error']}"
    peer, over, first = "-", "-", "-"
    if "inductor" in row:
        peer, over = f"{row['inductor']:.1f}", f"{row['inductor'] / row['fusec']:.2f}"
        first = f"{row['inductor_first_s']:.1f}"
    return (
        f"{row['name']:<30}{row['eager']:>10.1f}{peer:>10}{row['fusec']:>10.1f}"
        f"{row['eager'] / row['fusec']:>9.2f}{over:>10}{first:>19}{row['fusec_first_s']:>7.1f}"
        f"  {row['what']}{'  ' + row['error'] if row['error'] else ''}"
    )


def totals(rows: Sequence[Row]) -> str:
    """Return geometric means and the worst cases."""
    texts = []
    rows = [row for row in rows if "fusec" in row]
    for peer in ("eager", "inductor"):
        ratios = {row["name"]: row[peer] / row["fusec"] for row in rows if peer in row}
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
            least = min(ratios, key=lambda name: ratios[name])
            texts.append(
                f"over {peer}: {mean:.2f}x in geometric mean of {len(ratios)}; "
                f"least: {least} {ratios[least]:.2f}x"
            )
    slower = [row["name"] for row in rows if row["eager"] < row["fusec"]]
    texts.append(f"slower than eager: {', '.join(slower) or 'none'}")
    return "\n".join(texts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
