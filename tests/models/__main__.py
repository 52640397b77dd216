"""``make models``: whole models, eager, TorchInductor and fusec side by side.

Every case (a model, forward or a training step, float32 or bfloat16 autocast) runs in a process
of its own, with a time limit. The report is written after each, so that a run can be stopped and
taken up again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from models import report, zoo
from models.case import BACKENDS, MODES, PRECISIONS, run_case


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(
        prog="make models", description="Whole models beside eager and TorchInductor."
    )
    parser.add_argument("models", nargs="*", help=f"of {', '.join(zoo.names())}; all by default")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS[:2])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS[:2])
    parser.add_argument("--size", choices=zoo.SIZES, default="small")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once; times need 1 on a CPU")
    parser.add_argument("--threads", type=int, default=0, help="threads a case; 0: torch's own")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a case")
    parser.add_argument("--report", type=Path, default=Path("build/models.json"))
    parser.add_argument("--again", action="store_true", help="also what the report has already")
    parser.add_argument("--warm", action="store_true", help="also first calls in a second process")
    parser.add_argument("--untimed", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; returns 1 if fusec was wrong or failed anywhere."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.child:
        print(json.dumps(_child(options)), file=sys.__stdout__)
        return 0
    unknown = set(options.models) - set(zoo.names())
    if unknown:
        print(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(zoo.names())}")
        return 2
    wanted = [
        f"{name} {mode} {precision}"
        for name in options.models or zoo.names()
        for mode in options.modes
        for precision in options.precisions
    ]
    key = f"{options.size} {options.device}"
    results = report.read(options.report)
    done = {} if options.again else results.get(key, {})
    todo = [case for case in wanted if not set(options.backends) <= set(done.get(case, ()))]
    with ThreadPoolExecutor(options.jobs) as pool, tempfile.TemporaryDirectory() as settled:
        if todo:
            _settle(settled)
        gpus = itertools.cycle(_gpus(options.device))
        running = {
            pool.submit(_run_child, options, case, next(gpus), settled): case for case in todo
        }
        try:
            for number, future in enumerate(as_completed(running), 1):
                case = running[future]
                results.setdefault(key, {}).setdefault(case, {}).update(future.result())
                report.write(options.report, results)
                print(f"[{number}/{len(todo)}] {report.line(case, results[key][case])}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            print("stopped; the same command goes on from here")
    shown = {case: results.get(key, {}).get(case, {}) for case in wanted}
    text = report.table(shown)
    options.report.with_suffix(".md").write_text(text)
    print(f"\n{text}")
    bad = [case for case, found in shown.items() if found.get("fusec", {}).get("verdict") != "ok"]
    return 1 if bad and "fusec" in options.backends else 0


def _child(options: argparse.Namespace) -> dict[str, Any]:
    import warnings

    import torch

    warnings.filterwarnings("ignore")
    # Only the result goes to the real standard output.
    sys.stdout = sys.stderr
    if options.threads:
        torch.set_num_threads(options.threads)
    name, mode, precision = options.child.split()
    return run_case(
        name,
        mode,
        precision,
        backends=tuple(options.backends),
        size=options.size,
        device=options.device,
        timed=not options.untimed,
    )


def _gpus(device: str) -> list[str]:
    """Return the GPUs that cases are spread over, as ``CUDA_VISIBLE_DEVICES`` has them."""
    import torch

    if device != "cuda":
        return [""]
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(n) for n in range(torch.cuda.device_count())]


def _settle(folder: str) -> None:
    """Have a cache with what fusec builds once a machine: the native part of calls."""
    wait = "from fusec.call import native; native.types(wait=True)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["FUSEC_CACHE_DIR"] = folder
    subprocess.run([sys.executable, "-c", wait], env=environment, check=False)


def _run_child(options: argparse.Namespace, case: str, gpu: str, settled: str) -> dict[str, Any]:
    """Run a case in a fresh process on a cache of its own, in which nothing is compiled."""
    command = [sys.executable, "-m", "models", "--child", case, "--size", options.size]
    command += ["--device", options.device, "--threads", str(options.threads)]
    command += ["--backends", *options.backends]
    with tempfile.TemporaryDirectory() as cache:
        shutil.copytree(settled, f"{cache}/fusec")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "FUSEC_STRICT": "1",
            "FUSEC_CACHE_DIR": f"{cache}/fusec",
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": gpu,
        }
        found = _finished(options, command, environment)
        if options.warm:
            # The caches are as the first process left them. A process each: who comes first
            # waits for imports and libraries that the next one finds there.
            for backend, one in found.items():
                alone = [*command[: command.index("--backends") + 1], backend, "--untimed"]
                again = _finished(options, alone, environment)[backend]
                one["warm"] = again["first"] if again["verdict"] == "ok" else None
    return found


def _finished(
    options: argparse.Namespace, command: Sequence[str], environment: dict[str, str]
) -> dict[str, Any]:
    """Return what a process found, or why it found nothing, by backend."""
    try:
        ended = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=options.timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _failed(options, f"more than {options.timeout:.0f} s")
    try:
        found: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = (ended.stderr.strip().splitlines() or ["no output"])[-1]
        return _failed(options, f"exit {ended.returncode}: {last}")
    return found


def _failed(options: argparse.Namespace, why: str) -> dict[str, Any]:
    return {backend: {"verdict": "error", "detail": why} for backend in options.backends}


if __name__ == "__main__":
    sys.exit(main())
