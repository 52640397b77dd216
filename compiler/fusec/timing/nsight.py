"""What NVIDIA's Nsight Compute counts of a kernel, where its ``ncu`` is installed.

It watches a process of its own, which runs the kernel's file on tensors of the same shapes.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

# What is asked of a GPU's counters, by what people call it.
METRICS = {
    "dram__bytes_read.sum": "bytes read from memory",
    "dram__bytes_write.sum": "bytes written to memory",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "memory busy, %",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "L2 busy, %",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "cycles that issue an instruction, %",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps there, %",
    "smsp__inst_executed.sum": "instructions of warps",
}
_ADDED = (".sum",)
_PLACES = ("/usr/local/cuda/bin/ncu",)
_SECONDS = 120.0
_CHILD = """\
import importlib.util, json, sys, torch
given = json.load(open(sys.argv[1]))
spec = importlib.util.spec_from_file_location("kernel", sys.argv[2])
kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
tensors = []
for shape, strides, name in given["tensors"]:
    dtype = getattr(torch, name)
    tensor = torch.zeros(1 + sum((n - 1) * s for n, s in zip(shape, strides)) if all(shape) else 0,
                         dtype=dtype, device="cuda").as_strided(shape, strides)
    tensors.append(tensor.normal_() if dtype.is_floating_point and dtype.itemsize > 1 else tensor)
start = getattr(kernel, given["entry"])
for _ in range(3):
    start(*tensors, *given["sizes"])
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()
start(*tensors, *given["sizes"])
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
"""


def find() -> str | None:
    """Return where ``ncu`` is, if it is anywhere."""
    found = shutil.which("ncu")
    return found or next((place for place in _PLACES if Path(place).exists()), None)


def count(
    text: str, entry: str, tensors: Sequence[torch.Tensor], sizes: Sequence[int]
) -> tuple[dict[str, float], str]:
    """Run a kernel's file under Nsight Compute.

    Args:
        text: The file.
        entry: The function to call.
        tensors: Their shapes, strides and types count, not their values.
        sizes: The symbolic sizes.

    Returns:
        What was counted of all kernels that it starts, and why nothing was; else empty.
    """
    program = find()
    if program is None:
        return {}, "Nsight Compute is not installed here: ncu would count bytes and instructions"
    given = {
        "tensors": [
            [list(t.shape), list(t.stride()), str(t.dtype).removeprefix("torch.")] for t in tensors
        ],
        "entry": entry,
        "sizes": [int(size) for size in sizes],
    }
    command = [program, "--clock-control", "none", "--cache-control", "all"]
    command += ["--profile-from-start", "off", "--csv", "--page", "raw", "--print-units", "base"]
    command += ["--metrics", ",".join(METRICS)]
    with tempfile.TemporaryDirectory(prefix="fusec-ncu-") as folder:
        files = {name: Path(folder, name) for name in ("child.py", "given.json", "kernel.py")}
        files["child.py"].write_text(_CHILD, encoding="utf-8")
        files["given.json"].write_text(json.dumps(given), encoding="utf-8")
        files["kernel.py"].write_text(text, encoding="utf-8")
        command += [sys.executable, *(str(path) for path in files.values())]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
            said = done.stdout
        except (OSError, subprocess.TimeoutExpired) as error:
            said = f"==ERROR== {type(error).__name__}"
    found = read(said)
    if found:
        return found, ""
    problem = next((x for x in said.splitlines() if "ERROR" in x), "it said nothing")
    return {}, f"Nsight Compute counted nothing: {problem.strip('= ')}"


def read(said: str) -> dict[str, float]:
    """Return what ``ncu --csv --page raw --print-units base`` says, of all kernels together."""
    lines = [line for line in said.splitlines() if line.startswith('"')]
    found: dict[str, float] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        if not (row.get("ID") or "").isdigit():
            continue  # the line of units
        for metric, label in METRICS.items():
            try:
                value = float((row.get(metric) or "").replace(",", ""))
            except ValueError:
                continue
            before = found.get(label, 0.0)
            found[label] = before + value if metric.endswith(_ADDED) else max(before, value)
    return found


__all__ = ["METRICS", "count", "find", "read"]
