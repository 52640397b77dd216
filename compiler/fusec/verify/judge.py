"""Runs a candidate on its cases and judges what it returns.

Every result has to agree with the reference; where made-up inputs are hard for everyone, the
generated kernel is asked.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from fusec.devices import CPU
from fusec.kernel_source import Runnable
from fusec.report import OutputError, Verdict
from fusec.verify.comparison.compare import signed_zero_differences
from fusec.verify.comparison.words import describe
from fusec.verify.isolation import sandbox
from fusec.verify.isolation.sandbox import Endured, KernelText, RunResult
from fusec.verify.timing import copied_bytes, fresh_tensors, too_good, traffic, written
from fusec.verify.trials.candidate import Candidate, Refused
from fusec.verify.trials.conditioning import explained_by_rounding
from fusec.verify.trials.made_trials import generated_takes, teams
from fusec.verify.trials.references import ReferencedCase, References, no_memory

# Below this, one process runs all cases.
_ONE_PROCESS = 128 << 20
# Nor does judging keep another process waiting, which counts as its silence.
_QUICKLY_JUDGED = 64 << 20
# How often a kernel is called in the worker before the notebook does, and how many times what a
# single run may take that takes at the very most.
_CALLS = 6000
_ENDURANCE = 3.0
# Between two signs of life there are no more calls than this, or a tenth of a second of them.
_FEW_CALLS = 6.0

# Inputs that have values which are no numbers.
_NONFINITE = frozenset({"nonfinite", "nan", "one nan", "many nonfinite"})

# What a load of Triton's says of the lanes that its mask keeps away.
_OTHER = "other="
_UNDEFINED = "what a mask keeps from being loaded is nothing to rely on unless `other=` says what"

Ran = Sequence[tuple[ReferencedCase, RunResult]]


class Judge:
    """Runs a candidate on one case after the other and keeps the figures."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.notes: list[str] = []
        self.figures: list[tuple[OutputError, ...]] = []
        self.judged = 0

    def run(self, trials: Sequence[ReferencedCase], library: Path | None) -> Ran:
        """Run them all; the first failure that counts ends it.

        Returns:
            What ran last and is not judged yet.
        """
        waiting = list(trials)
        ran: Ran = ()
        while waiting:
            self.judge_all(ran)
            count = 1
            if sum(trial.case.nbytes for trial in waiting) <= _ONE_PROCESS:
                count = len(waiting)
            results = self.candidate.run(self.candidate.text, library, waiting[:count])
            ran = tuple(zip(waiting, results, strict=False))
            waiting = waiting[len(results) :]
        return ran

    def judge_all(self, ran: Ran) -> None:
        """Compare what ran with its references; the first failure that counts ends it."""
        for trial, result in ran:
            self.judge(trial, result)
            self.judged += 1

    @contextlib.contextmanager
    def _beside(self, ran: Ran) -> Iterator[int | None]:
        """Judge what ran while something else is done; its failure comes before any of that.

        Yields:
            A pipe that gives a byte once all of it is right, and ends where it is not; None where
            nothing is left to judge.
        """
        on_cpu = all(t.device.type == CPU for trial, _ in ran for t in trial.case.tensors)
        quick = sum(trial.case.nbytes for trial, _ in ran) <= _QUICKLY_JUDGED
        if not (on_cpu and quick and all(result.ok for _, result in ran)) or self._asks(ran):
            self.judge_all(ran)
            ran = ()
        if not ran:
            yield None
            return
        gate, opener = os.pipe()
        records = torch.is_grad_enabled()

        def judge() -> None:
            try:
                with torch.set_grad_enabled(records):  # each thread has its own
                    self.judge_all(ran)
                os.write(opener, b".")
            finally:
                os.close(opener)

        try:
            with ThreadPoolExecutor(1, "fusec-judge") as pool:
                judged = pool.submit(judge)
                try:
                    yield gate
                finally:
                    judged.result()
        finally:
            os.close(gate)

    def _asks(self, ran: Ran) -> bool:
        """Whether judging would ask the worker, which has to wait for what is done meanwhile."""
        return any(
            not all(
                figure.ok
                for figure in trial.references.compare(
                    self.candidate.names, result.outputs, figures=False
                )
            )
            for trial, result in ran
            if trial.doubtful
        )

    def endure(
        self,
        trials: Sequence[ReferencedCase],
        library: Path | None,
        generated: KernelText | None,
        seconds: float,
        ran: Ran = (),
    ) -> Endured:
        """Call it many times in the worker, timed beside the generated kernel if that is given.

        The last call gets other values at the same addresses. What ran before is judged meanwhile,
        until it is timed.

        Raises:
            TooGoodToBeTrue: It is faster than its memory traffic can be.
        """
        trial = trials[0]
        like = next((t for t in trials[1:] if t.kind == "similar" and _alike(t, trial)), trial)
        moved = traffic(self.candidate.kernel, trial.case.tensors)
        copied = copied_bytes(moved)
        with self._beside(ran) as gate:
            found = sandbox.endure(
                target=self.candidate.kernel.target,
                entry=self.candidate.kernel.generated.entry,
                signature=self.candidate.kernel.signature,
                text=self.candidate.text,
                library=library,
                cases=[trial.case] if like is trial else [trial.case, like.case],
                # Some dozen calls, and the timing.
                timeout=_ENDURANCE * self.candidate.limit(trial) + seconds,
                busy=self.candidate.busy(trial, _FEW_CALLS),
                threads=self.candidate.threads,
                generated=generated,
                seconds=seconds,
                calls=_CALLS,
                copied=copied,
                teams=teams(self.candidate),
                gate=gate,
            )
        if not found.result.ok:
            raise Refused(self.refused(found.result, "in many calls"))
        calls = f"after {found.calls} calls"
        for label, outputs in (
            *((calls, each) for each in (found.result.outputs, *found.result.others)),
            *found.elsewhere,
        ):
            figures = like.references.compare(self.candidate.names, outputs, figures=False)
            if not all(figure.ok for figure in figures) and not explained_by_rounding(
                self.candidate, like, outputs
            ):
                result = replace(found.result, outputs=outputs)
                raise Refused(self.wrong(figures, result, label))
        if found.times is not None:
            too_good(found.times, moved, 2 * copied)
        return found

    def judge(self, trial: ReferencedCase, result: RunResult) -> None:
        """Compare one result; raises where it is wrong and the generated kernel is not."""
        label = trial.case.label
        if trial.case.refused:
            if not result.ok:
                raise Refused(self.refused(result, label))
            return
        if result.ok:
            figures = self.compare(result, trial.references)
            if all(figure.ok for figure in figures):
                self.figures.append(figures)
                self.notes += [result.details] if result.details else []
                return
            verdict = self.wrong(figures, result, label)
        else:
            verdict = self.refused(result, label)
        if trial.doubtful and not generated_takes(self.candidate, trial):
            return  # nobody says that such a call can be made
        made_up = trial.kind not in (None, "similar")
        if result.ok and explained_by_rounding(self.candidate, trial, result.outputs):
            return
        if (
            made_up
            and verdict.stage == "wrong"
            and self.generated_differs(trial)
            and not self.hides_nan(trial, result)
        ):
            self.notes.append(f"differs from eager {label}, as the generated kernel does")
            return
        raise Refused(verdict)

    def generated_differs(self, trial: ReferencedCase) -> bool:
        """Whether the generated kernel, too, is off on these inputs."""
        if self.candidate.text == self.candidate.kernel.generated.text:
            return True
        if self.candidate.generated is None:
            return False
        references = trial.references
        if references.hard is None:
            outputs = self.run_generated(self.candidate.generated, trial)
            references.hard = outputs is None or not all(
                figure.ok
                for figure in references.compare(self.candidate.names, outputs, figures=False)
            )
            if outputs is not None and trial.kind in _NONFINITE:
                both = zip(references.eager, outputs, strict=True)
                references.missing = tuple(_missing(a) & _missing(b) for a, b in both)
        return references.hard

    @staticmethod
    def hides_nan(trial: ReferencedCase, result: RunResult) -> bool:
        """Whether a result is a number where eager's and the generated kernel's both are NaN.

        However hard a case is, both cannot be NaN there by how they round.
        """
        missing = trial.references.missing
        return bool(missing) and any(
            bool((wanted & ~_missing(mine)).any())
            for wanted, mine in zip(missing, result.outputs, strict=True)
        )

    def run_generated(
        self, generated: Runnable, trial: ReferencedCase
    ) -> Sequence[torch.Tensor] | None:
        """Run the generated kernel on a trial's inputs; None where it does not take them."""
        try:
            tensors = fresh_tensors(self.candidate.kernel.signature, trial.case.tensors)
            generated(tensors, trial.case.sizes)
        except (ArithmeticError, LookupError, ValueError, RuntimeError, MemoryError) as error:
            if no_memory(error):
                reason = f"could not be checked {trial.case.label}: there is not enough memory"
                raise Refused(Verdict(False, "crash", reason)) from None
            return None
        return written(self.candidate.kernel.signature, tensors)

    def compare(self, result: RunResult, references: References) -> tuple[OutputError, ...]:
        """Return how far a run's results are from the references."""
        # Only the first case's figures are shown.
        shown = not self.figures
        figures = references.compare(self.candidate.names, result.outputs, figures=shown)
        for other in result.others:
            # Every run has to be right, not only the one that is shown.
            again = references.compare(self.candidate.names, other, figures=shown)
            if all(f.ok for f in figures) and not all(f.ok for f in again):
                figures = again
        zeros = sum(map(signed_zero_differences, result.outputs, references.eager))
        if zeros:
            self.notes.append(f"{zeros} zeros have another sign than eager's")
        return figures

    def worst(self) -> tuple[OutputError, ...]:
        """Return the figures of the real inputs, the first case."""
        return self.figures[0] if self.figures else ()

    def refused(self, result: RunResult, label: str) -> Verdict:
        """Return the verdict on a run that did not end well."""
        reason = f"{result.reason} {label}".strip()
        return Verdict(
            False, result.stage, reason, result.line, self.worst(), details=result.details
        )

    def wrong(self, figures: tuple[OutputError, ...], result: RunResult, label: str) -> Verdict:
        """Return the verdict on results that are off."""
        bad = next(figure for figure in figures if not figure.ok)
        position = self.candidate.names.index(bad.name)
        references = self.candidate.kernel.signature.arguments
        shape = [a for a in references if a.role != "in"][position]
        reason = f"{describe(bad, shape.dtype)} {label}".strip()
        if self.candidate.has_lost(_OTHER):
            reason += f"; {_UNDEFINED}"
        return Verdict(
            False,
            "wrong",
            reason,
            outputs=figures,
            details=result.details,
        )


def _missing(values: torch.Tensor) -> torch.Tensor:
    """Where values are NaN; of integers none is."""
    return (values.float() if values.dtype.itemsize == 1 else values).isnan()


def _alike(trial: ReferencedCase, other: ReferencedCase) -> bool:
    """Whether two cases lie in memory alike."""
    return trial.case.sizes == other.case.sizes and all(
        a.shape == b.shape and a.stride() == b.stride()
        for a, b in zip(trial.case.tensors, other.case.tensors, strict=True)
    )


__all__ = ["Judge"]
