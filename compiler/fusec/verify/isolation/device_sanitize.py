"""What NVIDIA's compute-sanitizer says of an edit for a GPU, in words and with the kernel's line.

It comes with CUDA's toolkit, watches every access of a kernel to the device's memory, and makes it
some hundred times slower.  A worker of its own runs under it, once.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from fusec.devices import CPU
from fusec.kernel import Kernel
from fusec.verify.isolation import sandbox
from fusec.verify.isolation.layout import Case
from fusec.verify.isolation.process import Worker, WorkerError
from fusec.verify.words import Finding

NAME = "compute-sanitizer"
_USUAL = "/usr/local/cuda/bin"
_INVALID = re.compile(r"=+ (Invalid [^\n]*|Misaligned [^\n]*|Race [^\n]*)")
_LINE = re.compile(r"=+\s+at [^\n]*? in (?:\S*/)?([^\s/:]+):(\d+)")
_SUMMARY = "ERROR SUMMARY"
# Bytes behind each allocation that are nobody's: the next one would be somebody's.
_PADDING = 1 << 20
_WORDS = (
    (re.compile(r"Invalid __\w+__ write of size (\d+)"), "writes memory that is not its own"),
    (re.compile(r"Invalid __\w+__ read of size (\d+)"), "reads memory that is not its own"),
    (re.compile(r"Invalid __\w+__ atomic"), "updates memory that is not its own"),
)


def find() -> str:
    """Return where compute-sanitizer is; empty where it is not installed."""
    folders = [os.environ.get("PATH", os.defpath)]
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if name in os.environ:
            folders.append(os.path.join(os.environ[name], "bin"))
    return shutil.which(NAME, path=os.pathsep.join([*folders, _USUAL])) or ""


def sanitized(kernel: Kernel, text: str, case: Case, seconds: float) -> tuple[Finding | None, str]:
    """Run an edit under compute-sanitizer.

    Returns:
        What is wrong, and what looked, in words.
    """
    if all(tensor.device.type == CPU for tensor in case.tensors):
        return None, "not looked at by sanitizers: an interpreter stands in for the GPU"
    tool = find()
    if not tool:
        return None, f"not looked at by sanitizers: {NAME} of CUDA's toolkit is not installed"
    worker = Worker(
        "fusec.verify.isolation.device_worker",
        {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        (tool, "--tool", "memcheck", "--print-limit", "5", "--padding", str(_PADDING)),
    )
    try:
        sandbox.run_cases(
            target=kernel.target,
            text=text,
            entry=kernel.generated.entry,
            signature=kernel.signature,
            library=None,
            cases=[case],
            timeout=seconds,
            chosen_worker=worker,
            # Nothing round the operands: what lies there is then not the process's at all.
            margin=0,
        )
        said = worker.end()
    except WorkerError as error:
        return None, f"not looked at by sanitizers: {NAME} did not run ({error})"
    finally:
        worker.close()
    found = finding(said, kernel.generated.entry)
    if found is None and _SUMMARY not in said:
        last = said.strip().rpartition("\n")[2] or "it says nothing"
        return None, f"not looked at by sanitizers: {NAME} did not run to its end ({last})"
    return found, f"nothing found by {NAME}"


def finding(said: str, entry: str) -> Finding | None:
    """Return the first thing that compute-sanitizer found, in words; None where it found nothing.

    Args:
        said: What it printed.
        entry: What the kernel's file is named after.
    """
    found = _INVALID.search(said)
    if found is None:
        return None
    place = _LINE.search(said, found.end())
    line = int(place[2]) if place and Path(place[1]).stem == entry else None
    for pattern, words in _WORDS:
        if pattern.match(found[1]):
            return Finding("bounds", f"{words} ({NAME})", line, said)
    return Finding("bounds", f"{found[1].strip()} ({NAME})", line, said)


__all__ = ["NAME", "find", "finding", "sanitized"]
