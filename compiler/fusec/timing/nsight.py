"""What NVIDIA's Nsight Compute counts of a kernel, where its ``ncu`` is installed.

It watches a process of its own, which runs the kernel's file on tensors of the same shapes.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from fusec.kernel import Kernel
from fusec.target_api.base import PythonTarget
from fusec.target_api.registry import find_target
from fusec.timing.line_counts import LineCounts
from fusec.timing.warp_samples import read_instructions, seen_lines

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
NOT_HERE = "Nsight Compute is not installed here"
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
    if find() is None:
        return {}, f"{NOT_HERE}: ncu would count bytes and instructions"
    options = ["--csv", "--page", "raw", "--print-units", "base"]
    options += ["--metrics", ",".join(METRICS)]
    with _child(text, entry, tensors, sizes) as child:
        said = _run([*options, *child])
    found = read(said)
    return (found, "") if found else ({}, f"Nsight Compute counted nothing: {_problem(said)}")


def line_counts(
    kernel: Kernel, tensors: Sequence[torch.Tensor], sizes: Sequence[int]
) -> LineCounts:
    """Run a kernel under Nsight Compute; see at which lines its warps are, and what they wait for.

    Args:
        kernel: Its text in use runs.
        tensors: Their shapes, strides and types count, not their values.
        sizes: The symbolic sizes.

    Raises:
        FusecError: What was compiled cannot be read.
    """
    text, target = kernel.source, find_target(kernel.target)
    if find() is None:
        return LineCounts(text, missing=f"{NOT_HERE}: its ncu sees at which lines warps are")
    assert isinstance(target, PythonTarget)
    with _child(text, kernel.generated.entry, tensors, sizes) as child:
        folder = Path(child[-1]).parent
        report = str(folder / "report")
        # What is compiled there is looked at afterwards.
        own = {"TRITON_CACHE_DIR": str(folder / "compiled")}
        said = _run(["-f", "-o", report, "--section", "SourceCounters", *child], own)
        shown = ["--import", f"{report}.ncu-rep", "--page", "source", "--print-source", "sass"]
        blocks = read_instructions(_run([*shown, "--csv", "--print-units", "base"], watched=False))
        if not blocks:
            return LineCounts(text, missing=f"Nsight Compute saw nothing: {_problem(said)}")
        binaries = [
            target.machine_lines(
                path.with_suffix(".ptx").read_text(encoding="utf-8"),
                path.read_bytes(),
                Path(child[-1]).name,
            )
            for path in sorted((folder / "compiled").rglob("*.cubin"))
        ]
    return seen_lines(text, blocks, binaries)


@contextlib.contextmanager
def _child(
    text: str, entry: str, tensors: Sequence[torch.Tensor], sizes: Sequence[int]
) -> Iterator[list[str]]:
    """Write down what the watched process does; yield its command, the kernel's file last."""
    given = {
        "tensors": [
            [list(t.shape), list(t.stride()), str(t.dtype).removeprefix("torch.")] for t in tensors
        ],
        "entry": entry,
        "sizes": [int(size) for size in sizes],
    }
    with tempfile.TemporaryDirectory(prefix="fusec-ncu-") as folder:
        files = {name: Path(folder, name) for name in ("child.py", "given.json", "kernel.py")}
        files["child.py"].write_text(_CHILD, encoding="utf-8")
        files["given.json"].write_text(json.dumps(given), encoding="utf-8")
        files["kernel.py"].write_text(text, encoding="utf-8")
        yield [sys.executable, *(str(path) for path in files.values())]


def _run(
    arguments: Sequence[str], more: Mapping[str, str] | None = None, *, watched: bool = True
) -> str:
    """Run ``ncu`` and return what it says.

    Args:
        arguments: Its options, and the command to watch.
        more: What that has in its environment beside this process's.
        watched: Whether there is such a command.
    """
    program = find()
    assert program is not None
    how = ["--clock-control", "none", "--cache-control", "all", "--profile-from-start", "off"]
    command = [program, *(how if watched else ()), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            env={**os.environ, **(more or {})},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"==ERROR== {type(error).__name__}"
    return done.stdout


def _problem(said: str) -> str:
    problem = next((x for x in said.splitlines() if "ERROR" in x), "it said nothing")
    return problem.strip("= ")


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


__all__ = ["METRICS", "count", "find", "line_counts", "read"]
