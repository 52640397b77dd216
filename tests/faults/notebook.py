"""A process that stands for a notebook: it gets edits, one a line, and does with them as users do.

Each is checked; what passes is put in use and called, and whatever a notebook would notice is
looked at afterwards: results, processes, threads, the folder, the environment, signals, the
processor's modes.  Run by ``faults``; it speaks JSON lines.
"""

from __future__ import annotations

import json
import os
import re
import string
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch

import fusec
from faults.edits import FAULTS, Fault
from fusec.call import native
from fusec.kernel import Kernel
from fusec.verify.isolation import sandbox

CALLS = 200
# In the environment of this notebook and of all that it starts, so that nobody else's is taken for
# its own.
MARK = "FUSEC_FAULTS_NOTEBOOK"
NAMES = ("x", "w", "b", "out", "n", "threads")


def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What every edit has to compute."""
    return (x * w + b).relu()


def edited(kernel: Kernel, fault: Fault) -> str:
    """Return a kernel's text with a fault in it."""
    text = kernel.generated.text
    arguments = [argument.name for argument in kernel.signature.arguments]
    names = dict(zip(("x", "w", "b", "out"), arguments, strict=True))
    names |= {"n": "int64_t(4096)", "threads": "threads"}
    code, top = (string.Template(part).substitute(names) for part in (fault.code, fault.top))
    head, entry, rest = text.partition('extern "C"')
    before, brace, body = rest.partition("\n{\n")
    if fault.instead:
        body = "}\n" if code.rstrip().endswith("return 0;") else body
    return head + top + entry + before + brace + "    " + code + "\n" + body


def processes() -> set[int]:
    """Return this process's children, less the worker and its own, and those given away."""
    me, worker = os.getpid(), sandbox.worker().pid
    found = set()
    for process in psutil.process_iter(["ppid", "cmdline", "status"]):
        parent, command = process.info["ppid"], process.info["cmdline"] or ()
        # The worker's own children are its business; what it has lost belongs to nobody.
        programs = {"fusec.verify.isolation.worker", "faults.notebook"}
        lost = parent == 1 and not programs.isdisjoint(command)
        lost = lost and _is_ours(process)
        if process.info["status"] == psutil.STATUS_ZOMBIE or process.pid in (me, worker):
            continue
        if (parent == me or lost) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.add(process.pid)
    return found


def _is_ours(process: psutil.Process) -> bool:
    try:
        return process.environ().get(MARK) == str(os.getpid())
    except psutil.Error:
        return False


def survey() -> dict[str, Any]:
    """Return what a kernel must leave as it is, as far as the system says it."""
    file = Path("/proc/self/status")
    text = file.read_text() if file.is_file() else ""
    status = dict(re.findall(r"^(\w+):\s*(.*)$", text, re.MULTILINE))
    processors = getattr(os, "sched_getaffinity", lambda process: ())
    tiny = torch.full((1 << 17,), 1e-40) * 0.5
    return {
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "signals": [status.get(name) for name in ("SigIgn", "SigCgt", "SigBlk")],
        "umask": status.get("Umask"),
        "threads": torch.get_num_threads(),
        "denormals": bool((tiny != 0).all()),
        "priority": os.nice(0),
        "processors": sorted(processors(0)),
    }


def attempt(fault: Fault, kernel: Kernel, call: Any, given: tuple[torch.Tensor, ...]) -> Any:
    """Check an edit, use it where it passes, and return what a user saw of it."""
    before, started = survey(), time.monotonic()
    verdict = kernel.keep(edited(kernel, fault))
    took = time.monotonic() - started
    wrong = 0
    if verdict.ok:
        print(json.dumps({"kept": fault.name}), flush=True)
        for number in range(CALLS):
            given[0].copy_(torch.randn(64, 64, generator=torch.Generator().manual_seed(number)))
            wrong += not torch.equal(call(*given), function(*given))
        if any(name in fault.name for name in ("thread", "async")):
            time.sleep(0.3)
        kernel.revert()
    after = survey()
    left = sorted(processes())
    for pid in left:
        psutil.Process(pid).kill()
    return {
        "fault": fault.name,
        "ok": verdict.ok,
        "stage": verdict.stage,
        "reason": verdict.reason,
        "line": verdict.line,
        "seconds": took,
        "wrong": wrong,
        "changed": [name for name in before if before[name] != after[name]],
        "processes": len(left),
    }


def main() -> None:
    """Answer the names on standard input."""
    os.environ[MARK] = str(os.getpid())
    # What kernels print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdout = answers
    sandbox.prestart()
    target = sys.argv[1] if len(sys.argv) > 1 else "cpp"
    call = fusec.compile(function, keep_inputs=True, target=target)
    given = torch.randn(64, 64), torch.randn(64), torch.randn(64)
    call(*given)
    (kernel,) = call.kernels.values()
    # Its compiler, which runs in the background, must not be taken for what an edit left behind.
    native.types(wait=True)
    known = {fault.name: fault for fault in FAULTS}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(attempt(known[line.strip()], kernel, call, given)), flush=True)


if __name__ == "__main__":
    main()
