"""What the hardware counts while a kernel runs: beside its time, why it takes that long.

On a CPU it is what the system lets everybody count, on one thread.  On a GPU it is what CUPTI
records of each start, which torch's profiler asks, and what Nsight Compute counts, if it is there.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fusec.devices import is_gpu
from fusec.kernel import Kernel
from fusec.random import generators_kept
from fusec.systems import this_system
from fusec.timing import nsight
from fusec.timing.line_counts import LineCounts, line_counts_on_cpu
from fusec.timing.step_times import TimedGraph, kernel_launches, step_calls
from fusec.timing.threads import one_thread

# What CUPTI records of a start, in the profiler's words.
_RECORDED = {
    "registers per thread": "registers a thread",
    "shared memory": "bytes of shared memory",
    "warps per SM": "warps that start, a multiprocessor",
    "est. achieved occupancy %": "occupancy by what it takes, %",
}


@dataclass(frozen=True)
class Counted:
    """What was counted of one kernel.

    Attributes:
        name: The kernel's.
        events: An execution's counts, by what they are called.
        calls: In how many executions.
        missing: Why something could not be counted, in words; else empty.
    """

    name: str
    events: Mapping[str, float]
    calls: int
    missing: str = ""

    @property
    def vector_share(self) -> float | None:
        """The share of floating-point instructions that compute several numbers; None: unknown."""
        scalar, vector = self.events.get("scalar"), self.events.get("vector")
        if scalar is None or vector is None or not scalar + vector:
            return None
        return vector / (scalar + vector)


def count_kernels(*graphs: TimedGraph, seconds: float = 0.05) -> tuple[Counted, ...]:
    """Run each kernel of graphs alone, on its inputs of the latest call, and count.

    Args:
        graphs: A part of one that has not run with its inputs kept is left out.
        seconds: For each kernel, about.
    """
    found: list[Counted] = []
    on_gpus: dict[int, nsight.KernelRun] = {}  # by where their counts are in what was found
    for graph in graphs:
        # Calls have their number of threads once they are made.
        with graph.lock, torch.no_grad(), generators_kept(), one_thread():
            for part in graph.parts:
                if part.last_inputs is None:
                    continue
                for step, call, tensors in step_calls(part):
                    assert isinstance(step, str)
                    if any(is_gpu(tensor.device.type) for tensor in tensors):
                        kernel = part.kernels[step]
                        on_gpus[len(found)] = nsight.KernelRun.of(kernel, tensors, call.args[1])
                        found.append(_recorded(kernel, call))
                    else:
                        found.append(_on_cpu(step, call, seconds))
    # Nsight Compute takes ten seconds to start: once for all.
    counts = nsight.count(list(on_gpus.values())) if on_gpus else []
    for place, (events, missing) in zip(on_gpus, counts, strict=True):
        recorded = found[place]
        found[place] = replace(recorded, events={**recorded.events, **events}, missing=missing)
    return tuple(found)


def count_lines(graph: TimedGraph, name: str, seconds: float = 0.3) -> LineCounts:
    """Run one kernel alone, on its inputs of the latest call; see at which of its lines it is.

    Args:
        graph: The kernel's.
        name: The kernel's.
        seconds: How long to look, on a CPU.

    Raises:
        FusecError: Its text cannot be built with notes for debuggers.
    """
    with graph.lock, torch.no_grad(), generators_kept(), one_thread():
        for part in graph.parts:
            if name not in part.kernels or part.last_inputs is None:
                continue
            kernel = part.kernels[name]
            tensors, sizes = kernel_launches(part)[name]
            if any(is_gpu(tensor.device.type) for tensor in tensors):
                return nsight.line_counts(kernel, tensors, sizes)
            return line_counts_on_cpu(kernel, tensors, sizes, seconds)
    text = next((part.kernels[name].source for part in graph.parts if name in part.kernels), "")
    return LineCounts(text, missing="it has not run yet: run the cell again")


def _on_cpu(name: str, call: Callable[[], object], seconds: float) -> Counted:
    started = time.perf_counter()
    call()
    calls = max(1, min(1000, int(seconds / max(time.perf_counter() - started, 1e-6))))

    def run() -> None:
        for _ in range(calls):
            call()

    counts = this_system().count(run)
    events = {name: count / calls for name, count in counts.events.items()}
    return Counted(name, events, calls, counts.missing)


def _recorded(kernel: Kernel, call: partial[Any]) -> Counted:
    """Return what CUPTI records of an execution."""
    call()
    events: dict[str, float] = {}
    for event in _profiled(call):
        if event.get("cat") == "kernel":
            events["starts"] = events.get("starts", 0) + 1
            for key, label in _RECORDED.items():
                value = event.get("args", {}).get(key)
                if isinstance(value, (int, float)):
                    events[label] = max(events.get(label, 0.0), value)
    return Counted(kernel.name, events, 1)


def _profiled(call: Callable[[], object]) -> list[dict[str, Any]]:
    """Run something under torch's profiler; return its records, none where it refuses."""
    from torch.profiler import ProfilerActivity, profile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        try:
            with profile(activities=[ProfilerActivity.CUDA]) as found:
                call()
                torch.cuda.synchronize()
            found.export_chrome_trace(str(path))
            records = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        except (RuntimeError, OSError, ValueError, KeyError):
            return []
    return [record for record in records if isinstance(record, dict)]


__all__ = ["Counted", "count_kernels", "count_lines"]
