"""What is checked: a text in place of a kernel's, and what its check may ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fusec.devices import CPU
from fusec.kernel import Kernel
from fusec.kernel_source import Runnable
from fusec.report import Verdict
from fusec.target_api.registry import find_target
from fusec.verify.isolation import sandbox
from fusec.verify.isolation.layout import Case
from fusec.verify.isolation.sandbox import RunResult
from fusec.verify.trials.other_orders import Reorder
from fusec.verify.trials.references import Interpret, ReferencedCase
from fusec.verify.trials.variations import evaluated

Build = Callable[[str], Path | None]

# What a run may take at least; then so many times what eager takes, a byte at the slowest rate
# that is not a mistake, and an element in Triton's interpreter.
_TIMEOUT = 3.0
_SLOWER = 20.0
_SLOWEST = 50e6
_INTERPRETER_SECONDS = 1e-4
# The same in seconds of processors, which are few where it computes and many in an endless loop,
# whatever else the machine does; and what a point of its loops may take.
_BUSY = 0.25
_POINT = 5e-9


class Refused(Exception):  # it carries a verdict out of the steps, no news
    """Ends a check."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(verdict.reason)


@dataclass(frozen=True)
class Candidate:
    """A text in place of a kernel's source; the fields are as for ``check_kernel``."""

    kernel: Kernel
    text: str
    build: Build
    interpret: Interpret
    generated: Runnable | None
    timeout: float | None
    threads: int | None
    reorder: Reorder | None = None

    @property
    def names(self) -> list[str]:
        """The arguments that it writes."""
        return [a.name for a in self.kernel.signature.arguments if a.role != "in"]

    def has_lost(self, word: str) -> bool:
        """Whether a word of the generated text is in fewer places of this one."""
        return self.text.count(word) < self.kernel.generated.text.count(word)

    def is_interpreted(self, case: Case) -> bool:
        """Whether an interpreter stands in for a GPU; its speed means nothing."""
        interprets = find_target(self.kernel.target).interprets
        return bool(interprets) and all(t.device.type in interprets for t in case.tensors)

    def limit(self, trial: ReferencedCase) -> float:
        """Return the seconds that a run on a case may take."""
        case = trial.case
        if self.timeout is not None:
            return self.timeout
        if self.is_interpreted(case):
            return _TIMEOUT + _INTERPRETER_SECONDS * sum(t.numel() for t in case.tensors)
        return _TIMEOUT + _SLOWER * trial.references.seconds + case.nbytes / _SLOWEST

    def busy(self, trial: ReferencedCase, calls: float = 1.0) -> float | None:
        """Return the seconds of processors that a run may use up; None where only time counts.

        Args:
            trial: The case.
            calls: How many runs there are.
        """
        case = trial.case
        on_cpu = all(tensor.device.type == CPU for tensor in case.tensors)
        if self.timeout is not None or self.is_interpreted(case) or not on_cpu:
            return None
        threads = self.threads or max(2, torch.get_num_threads())
        eager = _SLOWER * threads * trial.references.processor
        return _BUSY + calls * (eager + case.nbytes / _SLOWEST + _POINT * self.points(case))

    def points(self, case: Case) -> int:
        """Return how often the kernel's innermost loop runs; 0 where nothing says so."""
        body, signature = self.kernel.body, self.kernel.signature
        if not body or any(not isinstance(size, int) for size in case.sizes):
            return 0
        loops = [axis.size for axis in (*body.axes, *body.reduce_axes) if axis.size is not None]
        named = dict(zip(signature.sizes, case.sizes, strict=True))
        return math.prod(evaluated(loops, named) or (0,))

    def run(
        self, text: str, library: Path | None, trials: Sequence[ReferencedCase]
    ) -> Sequence[RunResult]:
        """Run a text in a worker: as many of the cases as one process survives, at least one."""
        return sandbox.run_cases(
            target=self.kernel.target,
            text=text,
            entry=self.kernel.generated.entry,
            signature=self.kernel.signature,
            library=library,
            cases=[trial.case for trial in trials],
            timeout=max(map(self.limit, trials)),
            busy=max((self.busy(trial) or 0.0 for trial in trials), default=0.0) or None,
            threads=self.threads,
        )


__all__ = ["Build", "Candidate", "Refused"]
