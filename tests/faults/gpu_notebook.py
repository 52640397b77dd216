"""A process that stands for a notebook with a GPU: see ``notebook``.

Run by ``faults``; it speaks JSON lines.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch

import fusec
from faults.gpu_edits import GPU_FAULTS, GpuFault
from faults.notebook import MARK, function
from fusec.kernel import Kernel
from fusec.verify.isolation import sandbox, state

CALLS = 100


def _is_right(call: Any, given: tuple[torch.Tensor, ...]) -> bool:
    """Whether a result is eager's but for how a GPU rounds: it multiplies and adds in one."""
    return torch.allclose(call(*given), function(*given), rtol=1e-5, atol=1e-5)


def attempt(
    fault: GpuFault, kernel: Kernel, call: Any, given: tuple[torch.Tensor, ...], *, trust: bool
) -> Any:
    """Check an edit, use it where it passes, and return what a user saw of it."""
    before, started = dict(state.of_torch()), time.monotonic()
    # These are drawn from below.
    del before["torch's random numbers"]
    verdict = kernel.keep(fault.edited(kernel.generated.text), trust=trust)
    took = time.monotonic() - started
    wrong = 0
    if verdict.ok:
        print(json.dumps({"kept": fault.name}), flush=True)
        for number in range(CALLS):
            given[0].copy_(torch.randn(64, 64, generator=torch.Generator().manual_seed(number)))
            wrong += not _is_right(call, given)
        kernel.revert()
    # The notebook's own context answers, and what is in use is right.
    wrong += not _is_right(call, given)
    after = state.of_torch()
    return {
        "fault": fault.name,
        "ok": verdict.ok,
        "stage": verdict.stage,
        "reason": verdict.reason,
        "line": verdict.line,
        "seconds": took,
        "wrong": wrong,
        "changed": [name for name in before if before[name] != after[name]],
        "processes": 0,
    }


def main() -> None:
    """Answer the names on standard input."""
    os.environ[MARK] = str(os.getpid())
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdout = answers
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sandbox.prestart(device)
    call = fusec.compile(function, keep_inputs=True, target="triton")
    given = tuple(torch.randn(*shape, device=device) for shape in ((64, 64), (64,), (64,)))
    call(*given)
    (kernel,) = call.kernels.values()
    known = {fault.name: fault for fault in GPU_FAULTS}
    trust = "--trust" in sys.argv
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        fault = known[line.strip()]
        print(json.dumps(attempt(fault, kernel, call, given, trust=trust)), flush=True)


if __name__ == "__main__":
    main()
