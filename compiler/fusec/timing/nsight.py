"""What NVIDIA's Nsight Compute counts of a kernel, where its ``ncu`` is installed.

It watches a process of its own, which runs the kernel's file on tensors of the same shapes.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
_SECONDS_MORE = 10.0  # for each kernel after the first
NOT_HERE = "Nsight Compute is not installed here"
# What torch starts before each kernel of several: what ncu says after it is of that kernel.
_MARK = "spin_kernel"
_CHILD = """\
import importlib.util, json, sys, torch
every = json.load(open(sys.argv[1]))
for given, path in zip(every, sys.argv[2:]):
    spec = importlib.util.spec_from_file_location("kernel", path)
    kernel = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernel)
    tensors = []
    for shape, strides, name in given["tensors"]:
        dtype = getattr(torch, name)
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if all(shape) else 0
        tensor = torch.zeros(extent, dtype=dtype, device="cuda").as_strided(shape, strides)
        random = dtype.is_floating_point and dtype.itemsize > 1
        tensors.append(tensor.normal_() if random else tensor)
    start = getattr(kernel, given["entry"])
    for _ in range(3):
        start(*tensors, *given["sizes"])
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    if len(every) > 1:
        torch.cuda._sleep(1)
    start(*tensors, *given["sizes"])
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
"""


@dataclass(frozen=True)
class KernelRun:
    """A kernel's file, and what it is called with.

    Attributes:
        text: The file.
        entry: The function to call.
        tensors: Their shapes, strides and types; their values do not count.
        sizes: The symbolic sizes.
    """

    text: str
    entry: str
    tensors: tuple[tuple[tuple[int, ...], tuple[int, ...], str], ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, kernel: Kernel, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> KernelRun:
        """Return a kernel whose text in use is to be called with such tensors."""
        described = tuple(
            (tuple(t.shape), t.stride(), str(t.dtype).removeprefix("torch.")) for t in tensors
        )
        numbers = tuple(int(size) for size in sizes)
        return cls(kernel.source, kernel.generated.entry, described, numbers)


def find() -> str | None:
    """Return where ``ncu`` is, if it is anywhere."""
    found = shutil.which("ncu")
    return found or next((place for place in _PLACES if Path(place).exists()), None)


def count(kernels: Sequence[KernelRun]) -> list[tuple[dict[str, float], str]]:
    """Run kernels' files under Nsight Compute, all of them in one process.

    Where one ends that process the rest run in another.

    Returns:
        Of each what was counted of all that it starts, and why nothing was; else empty.
    """
    if find() is None:
        return [({}, f"{NOT_HERE}: ncu would count bytes and instructions")] * len(kernels)
    options = ["--csv", "--page", "raw", "--print-units", "base"]
    options += ["--metrics", ",".join(METRICS)]
    found: list[tuple[dict[str, float], str]] = []
    while rest := kernels[len(found) :]:
        with _child(rest) as child:
            patience = _SECONDS + _SECONDS_MORE * (len(rest) - 1)
            said = _run([*options, *child], seconds=patience)
        counted = read(said, several=len(rest) > 1)[: len(rest)]
        while counted and not counted[-1]:
            counted.pop()
        found += [_numbers(events) if events else ({}, _nothing(said)) for events in counted]
        if len(counted) == len(rest):
            break
        # Nothing at all is nobody's fault but ncu's: it may not count here.
        lost = 1 if counted else len(rest)
        found += [({}, _nothing(said))] * lost
    return found


def _numbers(events: Mapping[str, float]) -> tuple[dict[str, float], str]:
    """Return the counts that are numbers, and what was not counted, in words; else empty."""
    counted = {label: value for label, value in events.items() if not math.isnan(value)}
    lost = [label for label in events if label not in counted]
    if not lost:
        return counted, ""
    what = "nothing" if not counted else "only a part"
    return counted, (
        f"Nsight Compute counted {what} (something else may use the GPU's counters); "
        f"not counted: {'; '.join(lost)}"
    )


def _nothing(said: str) -> str:
    return f"Nsight Compute counted nothing: {_problem(said)}"


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
    with _child([KernelRun.of(kernel, tensors, sizes)]) as child:
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
def _child(kernels: Sequence[KernelRun]) -> Iterator[list[str]]:
    """Write down what the watched process does; yield its command, the kernels' files last."""
    given = [
        {"tensors": kernel.tensors, "entry": kernel.entry, "sizes": kernel.sizes}
        for kernel in kernels
    ]
    with tempfile.TemporaryDirectory(prefix="fusec-ncu-") as folder:
        child, asked = Path(folder, "child.py"), Path(folder, "given.json")
        child.write_text(_CHILD, encoding="utf-8")
        asked.write_text(json.dumps(given), encoding="utf-8")
        files = []
        for number, kernel in enumerate(kernels):
            files.append(Path(folder, f"kernel{number or ''}.py"))
            files[-1].write_text(kernel.text, encoding="utf-8")
        yield [sys.executable, *(str(path) for path in (child, asked, *files))]


def _run(
    arguments: Sequence[str],
    more: Mapping[str, str] | None = None,
    *,
    watched: bool = True,
    seconds: float = _SECONDS,
) -> str:
    """Run ``ncu`` and return what it says.

    Args:
        arguments: Its options, and the command to watch.
        more: What that has in its environment beside this process's.
        watched: Whether there is such a command.
        seconds: How long it may take.
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
            timeout=seconds,
            check=False,
            env={**os.environ, **(more or {})},
        )
    except subprocess.TimeoutExpired as error:
        before: object = error.stdout
        text = before.decode(errors="replace") if isinstance(before, bytes) else str(before or "")
        return f"{text}\n==ERROR== it took longer than {seconds:.0f} s"
    except OSError as error:
        return f"==ERROR== {type(error).__name__}"
    return done.stdout


def _problem(said: str) -> str:
    problem = next((x for x in said.splitlines() if "ERROR" in x), "it said nothing")
    return problem.strip("= ")


def read(said: str, *, several: bool = False) -> list[dict[str, float]]:
    """Return what ``ncu --csv --page raw --print-units base`` says, of all starts together.

    Args:
        said: Its table, in the order in which kernels were started.
        several: Whether a mark was started before each kernel of several; else it is one.
    """
    lines = [line for line in said.splitlines() if line.startswith('"')]
    found: list[dict[str, float]] = [] if several else [{}]
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        if not (row.get("ID") or "").isdigit():
            continue  # the line of units
        if several and _MARK in (row.get("Kernel Name") or ""):
            found.append({})
        elif found:
            _add(row, found[-1])
    return found


def _add(row: Mapping[str, str], events: dict[str, float]) -> None:
    """Add what was counted of one start: sums are added, shares are the highest.

    Where ``ncu`` has NaN, nothing was counted.
    """
    for metric, label in METRICS.items():
        try:
            value = float((row.get(metric) or "").replace(",", ""))
        except ValueError:
            continue
        before = events.get(label, 0.0)
        if math.isnan(before + value):  # of one start is of all: max() would take it for a 0
            events[label] = math.nan
        else:
            events[label] = before + value if metric.endswith(_ADDED) else max(before, value)


__all__ = ["METRICS", "KernelRun", "count", "find", "line_counts", "read"]
