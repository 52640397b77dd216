"""A process that stands for a notebook with many cells: it gets slips of theirs, one a line.

What ``notebook`` does with edits of one kernel: each is checked, and what passes is put in use and
called on inputs that no check has seen.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch

import fusec
from faults.careless_cells import cells
from faults.careless_edits import SLIPS, Slip
from faults.fuzz_edits import fresh_values
from faults.notebook import MARK, processes, survey
from fusec.call import native
from fusec.kernel import Kernel
from fusec.verify.isolation import sandbox

CALLS = 20


def slipped(text: str, slip: Slip) -> str:
    """Return a text with a slip in it.

    Raises:
        LookupError: What is to be replaced is not there.
    """
    for old, new in slip.changes:
        if old not in text:
            raise LookupError(f"{slip.name}: the kernel has no {old!r}")
        text = text.replace(old, new)
    return text


class Cell:
    """A cell and its kernels."""

    def __init__(self, name: str) -> None:
        self.function, self.given = cells()[name]
        self.call = fusec.compile(self.function, keep_inputs=True, dynamic=name.startswith("any"))
        self.call(*self._copies(self.given))

    @staticmethod
    def _copies(given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.clone() for tensor in given)

    def attempt(self, slip: Slip) -> dict[str, Any]:
        """Check a slip, use it where it passes, and return what a user saw of it."""
        kernel: Kernel = list(self.call.kernels.values())[slip.kernel]
        before, started = survey(), time.monotonic()
        verdict = kernel.keep(slipped(kernel.generated.text, slip))
        took, wrong = time.monotonic() - started, 0
        if verdict.ok:
            print(json.dumps({"kept": slip.name}), flush=True)
            for number in range(CALLS):
                wrong += not self._is_right(number)
            kernel.revert()
        after = survey()
        return {
            "fault": slip.name,
            "ok": verdict.ok,
            "stage": verdict.stage,
            "reason": verdict.reason,
            "line": verdict.line,
            "seconds": took,
            "wrong": wrong,
            "changed": [name for name in before if before[name] != after[name]],
            "processes": len(processes()),
        }

    def _is_right(self, number: int) -> bool:
        given = fresh_values(self.given, number)
        mine, eager = self._copies(given), self._copies(given)
        torch.manual_seed(number)
        results = self.call(*mine)
        torch.manual_seed(number)
        expected = self.function(*eager)
        pairs = zip(_flat(results), _flat(expected), strict=True)
        return all(
            torch.allclose(a.double(), b.double(), rtol=2e-3, atol=2e-4, equal_nan=True)
            for a, b in (*pairs, *zip(mine, eager, strict=True))
        )


def _flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def main() -> None:
    """Answer the names on standard input."""
    os.environ[MARK] = str(os.getpid())
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdout = answers
    sandbox.prestart()
    native.types(wait=True)
    known = {slip.name: slip for slip in SLIPS}
    made: dict[str, Cell] = {}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        slip = known[line.strip()]
        if slip.cell not in made:
            made[slip.cell] = Cell(slip.cell)
        print(json.dumps(made[slip.cell].attempt(slip)), flush=True)


if __name__ == "__main__":
    main()
