"""Where the time of a model goes: ``python tests/bench/model_profile.py NAME [forward|train]``.

Prints the longest kernels of a step, eager's and fusec's, as torch's profiler counts them, with
the source of fusec's slowest ones on request.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fusec
from models import zoo
from models.case import MODES, PRECISIONS, Case


def profiled(case: Case, call: Callable[..., Any], module: torch.nn.Module, rows: int) -> list[str]:
    """Print a table of the kernels; return their names, the slowest first."""
    cuda = case.device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with case._context():
        for _ in range(3):
            case._step(call, module, case.inputs, case.kwargs)
        with profile(activities=activities) as found:
            case._step(call, module, case.inputs, case.kwargs)
            case._synchronize()
    key = "self_device_time_total" if cuda else "self_cpu_time_total"
    events = sorted(found.key_averages(), key=lambda e: getattr(e, key), reverse=True)
    events = [e for e in events if getattr(e, key) > 0]
    print(f"{sum(getattr(e, key) for e in events) / 1e3:.2f} ms in {len(events)} kinds of kernel")
    for event in events[:rows]:
        print(f"  {getattr(event, key) / 1e3:8.3f} ms {event.count:5d} x {event.key[:110]}")
    return [event.key for event in events]


def main() -> None:
    """Profile one model, eager beside fusec."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=zoo.names())
    parser.add_argument("mode", choices=MODES, nargs="?", default="train")
    parser.add_argument("--precision", choices=PRECISIONS, default="bfloat16")
    parser.add_argument("--size", choices=zoo.SIZES, default="real")
    parser.add_argument("--rows", type=int, default=15)
    parser.add_argument("--source", type=int, default=0, help="print the N slowest kernels")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    case = Case(options.name, options.mode, options.precision, options.size, device)
    print(f"{options.name} {options.mode} {options.precision}: eager")
    profiled(case, *case._fresh(None), options.rows)
    print("fusec")
    compiled, module = case._fresh(fusec.compile)
    names = profiled(case, compiled, module, options.rows)
    kernels = compiled.kernels  # type: ignore[attr-defined]
    for name in [n for n in names if n in kernels][: options.source]:
        print(f"\n{kernels[name].source}")


if __name__ == "__main__":
    main()
