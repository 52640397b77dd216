"""What limits a workload's kernels on a GPU: bytes, occupancy, instruction mix, from a profile.

Run from the repository root on a machine with a GPU and Nsight Compute::

    python tests/bench/gpu_profile.py "embedding backward" "softmax dim 0" --report profile.jsonl

Each workload of ``gpu_workloads`` whose name has one of the words runs in a process of its own
under ``ncu``, clocks left as they are and caches emptied before each kernel; without ``ncu``, or
without the right to read the counters, what the machine code alone says is shown.
"""

from __future__ import annotations

import argparse
import collections
import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import caller
from gpu import make_inputs
from gpu_workloads import WORKLOADS, Workload

WORST = ("embedding backward", "group norm backward", "batch norm backward", "interpolate")
WORST += ("softmax dim 0",)
SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "LaunchStats")
SECTIONS += ("WarpStateStats", "SchedulerStats", "InstructionStats", "ComputeWorkloadAnalysis")
SECTIONS += ("MemoryWorkloadAnalysis_Tables",)
SECTOR = 32  # bytes of memory that are moved at once
BUSY = 75.0  # percent of its peak at which a unit is what limits a kernel

# What is kept of a kernel's counters, by a name that says what it is.
COUNTERS = {
    "us": "gpu__time_duration.sum",
    "dram_read": "dram__bytes_read.sum",
    "dram_written": "dram__bytes_write.sum",
    "dram %": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l2 %": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1 %": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "sm %": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue %": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps %": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "occupancy %": "sm__maximum_warps_per_active_cycle_pct",
    "registers": "launch__registers_per_thread",
    "shared": "launch__shared_mem_per_block",
    "threads": "launch__block_size",
    "programs": "launch__grid_size",
    "waves": "launch__waves_per_multiprocessor",
    "instructions": "smsp__inst_executed.sum",
    "load sectors": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "store sectors": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
}
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
PIPE = re.compile(r"sm__inst_executed_pipe_(\w+)\.(?:avg|sum)\.pct_of_peak_sustained_active")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(prog="gpu_profile.py", description=__doc__)
    parser.add_argument("only", nargs="*", default=list(WORST), help="words of names")
    parser.add_argument("--report", type=Path, help="a line of JSON for each kernel")
    parser.add_argument("--timeout", type=float, default=120, help="seconds a workload")
    parser.add_argument("--raw", type=Path, help="a folder for what ncu says, as it says it")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Profile what is asked for; returns 1 if a workload could not be."""
    options = parse(arguments)
    if options.child:
        run_once(find(options.child))
        return 0
    failed = False
    for workload in (w for w in WORKLOADS if any(x in w.name for x in options.only)):
        kernels, problem = counters_of(workload.name, options)
        print(f"\n{workload.name}{': ' + problem if problem else ''}", flush=True)
        failed |= not kernels
        for kernel in kernels:
            print(described(kernel), flush=True)
            if options.report:
                with options.report.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"workload": workload.name, **kernel}) + "\n")
    return int(failed)


def find(name: str) -> Workload:
    """Return the workload of that name."""
    (found,) = [w for w in WORKLOADS if w.name == name]
    return found


def run_once(workload: Workload) -> None:
    """Compile a workload, warm it, and run it once where a profiler looks."""
    import torch

    import fusec

    torch.manual_seed(0)
    inputs = make_inputs(workload, "cuda")
    fused = fusec.compile(workload.function)
    with torch.set_grad_enabled(workload.backward):
        call = caller(workload.function, inputs, workload.backward)
        for _ in range(3):
            call(fused)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        call(fused)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
    print(json.dumps([static_facts(k) for k in fused.kernels.values()]))


def counters_of(name: str, options: argparse.Namespace) -> tuple[list[dict[str, Any]], str]:
    """Return the facts of a workload's kernels, and why they are no counters where they are not."""
    child = [sys.executable, __file__, "--child", name]
    command = ["ncu", "--clock-control", "none", "--cache-control", "all"]
    command += ["--profile-from-start", "off", "--csv", "--page", "raw", "--print-units", "base"]
    for section in SECTIONS:
        command += ["--section", section]
    command += ["--metrics", ",".join(m for m in COUNTERS.values() if "launch" not in m)]
    try:
        done = subprocess.run(
            [*command, *child], capture_output=True, text=True, timeout=options.timeout, check=False
        )
        said = done.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        said = f"==ERROR== {type(error).__name__}"
    if options.raw:
        options.raw.mkdir(parents=True, exist_ok=True)
        (options.raw / f"{name.replace(' ', '_')}.csv").write_text(said)
    found = read_counters(said)
    if found:
        return found, ""
    problem = next((x for x in said.splitlines() if "ERROR" in x), "ncu said nothing")
    done = subprocess.run(
        child, capture_output=True, text=True, timeout=options.timeout, check=False
    )
    lines = [x for x in done.stdout.splitlines() if x.startswith("[")]
    if not lines:
        return [], (done.stderr.strip().splitlines() or [problem])[-1]
    return json.loads(lines[-1]), f"no counters ({problem.strip()})"


def read_counters(said: str) -> list[dict[str, Any]]:
    """Return what ``ncu --csv --page raw --print-units base`` says of each kernel.

    Times in microseconds, sizes in bytes; ``stalls`` are warps waiting for a reason at each issue,
    ``pipes`` percents of each pipe's peak.
    """
    lines = [x for x in said.splitlines() if x.startswith('"')]
    found = []
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        if not (row.get("ID") or "").isdigit():
            continue  # the line of units
        values = {k: _number(v) for k, v in row.items() if k is not None}
        kernel: dict[str, Any] = {"kernel": row.get("Kernel Name", "")}
        for short, long in COUNTERS.items():
            if values.get(long) is not None:
                kernel[short] = values[long]
        if "us" in kernel:
            kernel["us"] /= 1e3  # base units are nanoseconds
        kernel["stalls"] = _matching(STALL, values)
        kernel["pipes"] = _matching(PIPE, values)
        kernel["limited by"] = limit(kernel)
        found.append(kernel)
    return found


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def _matching(pattern: re.Pattern[str], values: Mapping[str, float | None]) -> dict[str, float]:
    """Return what a pattern names, largest first."""
    found = {m[1]: v for k, v in values.items() if (m := pattern.fullmatch(k)) and v}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def limit(kernel: Mapping[str, Any]) -> str:
    """Say in words what a kernel's counters say limits it."""
    units = {"dram %": "memory", "l2 %": "the L2", "l1 %": "the L1", "issue %": "instructions"}
    busy = {name: kernel.get(name, 0.0) for name in units}
    name = max(busy, key=busy.__getitem__)
    if busy[name] >= BUSY:
        return f"{units[name]} ({busy[name]:.0f} % of the peak)"
    reasons = [r for r in kernel.get("stalls", {}) if r not in ("selected", "not_selected")]
    waiting = f", mostly {reasons[0].replace('_', ' ')}" if reasons else ""
    if kernel.get("waves", 9.0) < 1.0:
        return f"too few programs ({kernel['waves']:.2f} waves){waiting}"
    full = kernel.get("warps %", 100.0)
    kind = "occupancy and latency" if full < 50 else "latency"
    return f"{kind} ({full:.0f} % of the warps there{waiting}; {units[name]} {busy[name]:.0f} %)"


def described(kernel: Mapping[str, Any]) -> str:
    """Return a kernel's facts as a few lines."""
    lines = [f"  {kernel['kernel']}: {kernel.get('limited by', '')}"]
    numbers = {k: v for k, v in kernel.items() if isinstance(v, (int, float))}
    moved = [numbers.pop(k, 0.0) / 1e6 for k in ("dram_read", "dram_written")]
    if "us" in numbers and any(moved):
        lines.append(f"    {moved[0]:.1f} MB read, {moved[1]:.1f} MB written")
    lines.append("    " + ", ".join(f"{k} {v:.4g}" for k, v in numbers.items()))
    for name in ("stalls", "pipes", "instruction mix"):
        shares = list(kernel.get(name, {}).items())[:7]
        if shares:
            lines.append(f"    {name}: " + ", ".join(f"{k} {v:.3g}" for k, v in shares))
    return "\n".join(lines)


# -- without counters -----------------------------------------------------------------------

MIX = {
    "global memory": r"(LDG|STG|LDGSTS|UBLKCP|UTMALDG|UTMASTG)\b",
    "atomics": r"(ATOM|ATOMG|RED|REDG)\b",
    "shared memory": r"(LDS|STS|LDSM|STSM|ATOMS)\b",
    "barriers": r"(BAR|SYNCS|DEPBAR)\b",
    "shuffles": r"SHFL\b",
    "special functions": r"MUFU\b",
    "conversions": r"(F2F|F2I|I2F|F2FP|I2FP|HADD2)\b",
    "float": r"(FADD|FMUL|FFMA|FMNMX|FSETP|FSEL|HFMA2|HMUL2|FCHK)\b",
    "integer": r"(IADD3|IMAD|LEA|LOP3|SHF|ISETP|SEL|PRMT|IABS|VIADD|VIMNMX|UIADD3|ULEA)\b",
}


def static_facts(kernel: Any) -> dict[str, Any]:
    """Return what a kernel's machine code says: registers, shared memory, instruction mix."""
    from fusec.targets.triton.toolchain.cross_compile import sass

    facts: dict[str, Any] = {"kernel": kernel.name, "limited by": "not measured"}
    for compiled in kernel.runnable().compiled():
        facts |= {
            "registers": compiled.n_regs,
            "spills": compiled.n_spills,
            "shared": compiled.metadata.shared,
            "threads": 32 * compiled.metadata.num_warps,
            "instruction mix": instruction_mix(sass(compiled.asm["cubin"])),
        }
    return facts


def instruction_mix(text: str) -> dict[str, float]:
    """Return percents of the instructions in a disassembly, by kind, largest first."""
    words = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9.]*)", text)
    kinds = collections.Counter(
        next((kind for kind, form in MIX.items() if re.match(form, word)), "other")
        for word in words
        if not word.startswith("NOP")
    )
    total = max(kinds.total(), 1)
    return {kind: 100 * count / total for kind, count in kinds.most_common()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
