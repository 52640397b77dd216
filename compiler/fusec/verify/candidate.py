"""What is checked: a text in place of a kernel's, and what its check may ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusec.kernel import Kernel
from fusec.kernel_source import Runnable
from fusec.report import Verdict
from fusec.target_api.registry import find_target
from fusec.verify import sandbox
from fusec.verify.layout import Case
from fusec.verify.sandbox import RunResult
from fusec.verify.trials import Interpret, ReferencedCase

Build = Callable[[str], Path | None]

# What a run may take at least; then so many times what eager takes, a byte at the slowest rate
# that is not a mistake, and an element in Triton's interpreter.
_TIMEOUT = 3.0
_SLOWER = 20.0
_SLOWEST = 50e6
_INTERPRETER_SECONDS = 1e-4


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

    @property
    def names(self) -> list[str]:
        """The arguments that it writes."""
        return [a.name for a in self.kernel.signature.arguments if a.role != "in"]

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
            threads=self.threads,
        )


__all__ = ["Build", "Candidate", "Refused"]
