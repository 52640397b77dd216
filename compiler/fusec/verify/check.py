"""The check that every edited kernel passes before it is used.

In this order, and the first failure ends it: there is a text; its entry point is unchanged; it
compiles; its library asks nothing of the process that a kernel may not (``binary``); it survives
guarded runs in a worker on the real inputs, on fresh random ones, and on adversarial ones; its
results agree with the reference every time; and, timed against the generated kernel, it takes no
less time than its memory traffic can.  Nothing here puts a kernel in use, so any failure leaves
the previous one as it was.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from fusec.devices import CPU
from fusec.errors import CompileError, FusecError
from fusec.kernel import Kernel, Runnable
from fusec.report import OutputError, Verdict
from fusec.target_api.base import LibraryTarget, PythonTarget
from fusec.target_api.registry import find_target
from fusec.verify import binary, device_sanitize, probation, python_text, sandbox
from fusec.verify.compare import describe, praise, signed_zero_differences
from fusec.verify.graph_outputs import check_graph
from fusec.verify.inputs import Kind, fresh_inputs
from fusec.verify.layout import Case
from fusec.verify.process import WorkerError
from fusec.verify.sandbox import Endured, KernelText, RunResult
from fusec.verify.sanitize import sanitized
from fusec.verify.timing import (
    TooGoodToBeTrue,
    copied_bytes,
    fresh_tensors,
    too_good,
    traffic,
    written,
)
from fusec.verify.trials import Interpret, KeptTrials, References, Trial
from fusec.verify.variations import repeated, resized
from fusec.verify.words import Finding

__all__ = ["Case", "check_graph", "check_kernel"]

KINDS: tuple[Kind, ...] = ("similar", "adversarial", "nonfinite", "magnitudes")

Build = Callable[[str], Path | None]
Judgeable = Sequence[tuple[Trial, RunResult]]

# Above this, the copies for further kinds of input cost more than they find.
_LARGE = 512 << 20
_LARGE_INTERPRETED = 1 << 16
# What a run may take at least; then so many times what eager takes, a byte at the slowest rate
# that is not a mistake, and an element in Triton's interpreter.
_TIMEOUT = 4.0
_SLOWER = 20.0
_SLOWEST = 50e6
_INTERPRETER_SECONDS = 1e-4
# How often a kernel is called in the worker before the notebook does, and how many times what a
# single run may take that takes at the very most.
_CALLS = 6000
_ENDURANCE = 3.0
# How many times longer a run takes that sanitizers watch.
_SANITIZED_SLOWER = 10.0
# Half of a pair of UTF-16, and what ends a string in C: no file of a text holds them.
_ODD = re.compile("[\0\ud800-\udfff]")
# Below this, one process runs all cases.
_TOGETHER = 128 << 20
# A check that took this long so far leaves out the adversarial inputs.
_PATIENCE = 5.0


class _Failure(Exception):  # it carries a verdict out of the steps, no news
    """Ends a check."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(verdict.reason)


def check_kernel(
    kernel: Kernel,
    text: str,
    *,
    cases: Sequence[Case],
    build: Build,
    interpret: Interpret,
    generated: Runnable | None = None,
    kinds: Sequence[Kind] = KINDS,
    timed: bool = True,
    timeout: float | None = None,
    seconds: float = 0.1,
    threads: int | None = None,
    kept: KeptTrials | None = None,
    trust: bool = False,
    sanitize: bool = False,
    meanwhile: Callable[[], object] | None = None,
) -> Verdict:
    """Check ``text`` in place of ``kernel``'s source.

    Args:
        kernel: The kernel that it is to replace; not changed.
        text: The whole kernel file.
        cases: The real inputs; the first also seeds the fresh ones and the timing.
        build: Builds a text; a library, or None where Python loads it. Raises CompileError.
        interpret: Runs the kernel's own loop-level IR by eager torch operators on the given
            tensors, in their own dtypes or all in float64, and returns its ``out`` and ``inout``
            tensors; changes none of the given ones.
        generated: The generated kernel, to time against and to tell apart what is hard for
            everyone; None where it cannot run in this process.
        kinds: The kinds of fresh input to add.
        timed: Whether to time it.
        timeout: Seconds for the guarded runs on each case; enough for its size by default.
        seconds: Seconds for the timing.
        threads: The most threads to check with.
        kept: Trials of an earlier check, used again where they are the same; changed.
        trust: Whether it may ask of the process what a kernel may not: see ``binary``.
        sanitize: Whether the sanitizers that there are shall look at it, too: see ``sanitize``.
        meanwhile: What else the caller has to do while the compiler runs.
    """
    started = time.perf_counter()
    try:
        verdict = _check(
            kernel,
            text,
            cases,
            build,
            interpret,
            generated,
            kinds,
            timed,
            timeout,
            seconds,
            threads,
            started,
            kept or KeptTrials(),
            trust,
            sanitize,
            meanwhile,
        )
    except _Failure as failure:
        verdict = failure.verdict
    except WorkerError as error:
        # What cannot be checked is not used.
        verdict = Verdict(False, "crash", f"could not be checked: {error}")
    return replace(verdict, seconds=time.perf_counter() - started)


def _check(
    kernel: Kernel,
    text: str,
    cases: Sequence[Case],
    build: Build,
    interpret: Interpret,
    generated: Runnable | None,
    kinds: Sequence[Kind],
    timed: bool,
    timeout: float | None,
    seconds: float,
    threads: int | None,
    started: float,
    kept: KeptTrials,
    trust: bool,
    sanitize: bool,
    meanwhile: Callable[[], object] | None,
) -> Verdict:
    source = kernel.generated
    if not text.strip():
        return Verdict(False, "empty", "the kernel is empty; the one in use stays")
    odd = _ODD.search(text)
    if odd is not None:
        line = text.count("\n", 0, odd.start()) + 1
        return Verdict(False, "compile", f"U+{ord(odd.group()):04X} cannot stand in a text", line)
    target = find_target(kernel.target)
    wrong = target.entry_problem(text, source.entry, source.text)
    if wrong is not None:
        return Verdict(False, wrong.stage, wrong.reason, wrong.line)
    own = text != source.text and not trust
    if trust:
        probation.forgive(text)
    if own and isinstance(target, LibraryTarget):
        _refuse(probation.crash(text))
        _refuse(binary.source_problem(text, source.text))
    if own and isinstance(target, PythonTarget):
        _refuse(python_text.problem(text))
    sandbox.prestart(cases[0].tensors[0].device.type if cases and cases[0].tensors else "cpu")
    checker = _Checker(kernel, text, build, interpret, generated, timeout, threads)
    # The compiler is a process of its own; meanwhile this one works out the references.
    with ThreadPoolExecutor(1, "fusec-check") as pool:
        building = pool.submit(build, text)
        trials = []
        known = kept.find(kernel, cases, kinds)
        for trial in known[0] if known else checker.trials(cases, kinds, started):
            if building.done() and building.exception() is not None:
                break
            trials.append(trial)
        if meanwhile is not None and not building.done():
            meanwhile()
        library = _built(building)
    if own and library is not None:
        assert isinstance(target, LibraryTarget)
        _refuse(binary.problem(sandbox.read_library(library), text, target.instruction_line))
    if known:
        checker.notes += known[1]
    else:
        kept.keep(kernel, cases, kinds, trials, checker.notes)
    looked = checker.sanitize(trials) if sanitize else ""
    unjudged = checker.run(trials, library)
    timing = base = None
    calls = 0
    wanted = timed and generated is not None
    try:
        if trials and not _is_interpreted(kernel, cases[0]):
            other = KernelText(source.text, build(source.text)) if wanted else None
            with checker.judging(unjudged) as gate:
                found = checker.endure(trials, library, other, seconds, gate)
            calls = found.calls
            if found.times is not None:
                timing, base = found.times["candidate"], found.times["generated"]
        else:
            checker.judge_all(unjudged)
    except TooGoodToBeTrue as finding:
        return Verdict(
            False,
            "wrong",
            str(finding),
            outputs=checker.worst(),
            timing=finding.timing,
            generated=finding.generated,
        )
    outputs = checker.worst()
    return Verdict(
        True,
        "passed",
        "; ".join(filter(None, [praise(outputs, timing, base), looked])),
        outputs=outputs,
        timing=timing,
        generated=base,
        details="\n".join(dict.fromkeys(checker.notes)),
        calls=calls,
    )


_LABELS: dict[Kind, str] = {
    "similar": "fresh random inputs",
    "magnitudes": "inputs of very different magnitudes",
    "adversarial": "inputs with zeros of both signs, denormals and large values",
    "nonfinite": "inputs with NaN and infinities",
}


def _is_interpreted(kernel: Kernel, case: Case) -> bool:
    """Whether an interpreter stands in for a GPU; its speed means nothing."""
    interprets = find_target(kernel.target).interprets
    return bool(interprets) and all(t.device.type in interprets for t in case.tensors)


def _alike(trial: Trial, other: Trial) -> bool:
    """Whether two cases lie in memory alike."""
    return trial.case.sizes == other.case.sizes and all(
        a.shape == b.shape and a.stride() == b.stride()
        for a, b in zip(trial.case.tensors, other.case.tensors, strict=True)
    )


def _refuse(found: Finding | None) -> None:
    if found is not None:
        raise _Failure(Verdict(False, found.stage, found.reason, found.line))


def _built(building: Future[Path | None]) -> Path | None:
    try:
        return building.result()
    except FusecError as error:
        raise _Failure(_not_built(error)) from None


def _not_built(error: FusecError) -> Verdict:
    if not isinstance(error, CompileError):
        return Verdict(False, "compile", str(error))
    first = next((d for d in error.diagnostics if d.severity == "error"), None)
    if first is None:
        return Verdict(False, "compile", error.message, details=error.output)
    return Verdict(
        False, "compile", error.message, first.line, details=error.output, bare=first.message
    )


class _Checker:
    """Runs the candidate on one case after the other and keeps the figures."""

    def __init__(
        self,
        kernel: Kernel,
        text: str,
        build: Build,
        interpret: Interpret,
        generated: Runnable | None,
        timeout: float | None,
        threads: int | None,
    ) -> None:
        self.kernel = kernel
        self.text = text
        self.build = build
        self.interpret = interpret
        self.generated = generated
        self.timeout = timeout
        self.threads = threads
        self.notes: list[str] = []
        self.figures: list[tuple[OutputError, ...]] = []

    @property
    def names(self) -> list[str]:
        return [a.name for a in self.kernel.signature.arguments if a.role != "in"]

    def trials(
        self, cases: Sequence[Case], kinds: Sequence[Kind], started: float
    ) -> Iterator[Trial]:
        """Yield the cases with their references, then the fresh ones."""
        for index, case in enumerate(cases):
            references = References(case, self.interpret)
            if index == 0:
                # These figures are shown.
                _ = references.float64
            yield Trial(case, references)
        for kind in kinds if cases else ():
            label = f"on {_LABELS[kind]}"
            elapsed = time.perf_counter() - started
            large = cases[0].nbytes > _LARGE or (
                _is_interpreted(self.kernel, cases[0])
                and sum(t.numel() for t in cases[0].tensors) > _LARGE_INTERPRETED
            )
            if kind != "similar" and (large or elapsed > _PATIENCE):
                self.notes.append(f"not checked {label}: the inputs are large")
                continue
            case = self.fresh(cases[0], kind, label)
            try:
                references = References(case, self.interpret)
            except (RuntimeError, IndexError, ValueError):
                # The cell itself does not accept such inputs.
                self.notes.append(f"not checked {label}: eager refuses them")
                continue
            yield Trial(case, references, kind)
        if cases and kinds:
            yield from self.variations(cases[0])

    def variations(self, case: Case) -> Iterator[Trial]:
        """Yield cases of other sizes, and one in which a tensor is passed twice."""
        signature = self.kernel.signature
        if case.nbytes > _LARGE or _is_interpreted(self.kernel, case):
            return
        made = {
            "with one tensor in two places": repeated(case, signature),
            "at larger sizes": resized(case, signature, larger=True),
            "at smaller sizes": resized(case, signature, larger=False),
        }
        for label, other in made.items():
            if other is None:
                continue
            other = replace(other, label=label)
            try:
                trial = Trial(other, References(other, self.interpret), "similar")
            except (RuntimeError, IndexError, ValueError):
                continue  # no such call can be made
            if other.sizes == case.sizes or self.generated_takes(trial):
                yield trial

    def generated_takes(self, trial: Trial) -> bool:
        """Whether the generated kernel is right on a case that nobody says it has to take.

        What a graph was compiled for may be certain sizes alone: its guards stand before all of
        its kernels, and none of these knows them.
        """
        source = self.kernel.generated
        try:
            library = self.build(source.text)
        except FusecError:
            return False
        (result,) = sandbox.run_cases(
            target=self.kernel.target,
            text=source.text,
            entry=source.entry,
            signature=self.kernel.signature,
            library=library,
            cases=[trial.case],
            timeout=self.limit(trial),
            threads=self.threads,
        )
        if not result.ok:
            return False
        figures = trial.references.compare(self.names, result.outputs, figures=False)
        return all(figure.ok for figure in figures)

    def limit(self, trial: Trial) -> float:
        """Return the seconds that a run on a case may take."""
        case = trial.case
        if self.timeout is not None:
            return self.timeout
        if _is_interpreted(self.kernel, case):
            return _TIMEOUT + _INTERPRETER_SECONDS * sum(t.numel() for t in case.tensors)
        return _TIMEOUT + _SLOWER * trial.references.seconds + case.nbytes / _SLOWEST

    def fresh(self, like: Case, kind: Kind, label: str) -> Case:
        """Return a case with other values; what is only written stays as it is."""
        roles = [a.role for a in self.kernel.signature.arguments]
        read = [t for role, t in zip(roles, like.tensors, strict=True) if role != "out"]
        made = iter(fresh_inputs(read, kind=kind))
        tensors = [
            t if role == "out" else next(made) for role, t in zip(roles, like.tensors, strict=True)
        ]
        return Case(tuple(tensors), like.sizes, label)

    def sanitize(self, trials: Sequence[Trial]) -> str:
        """Let the sanitizers look at it; return what they are, in words."""
        if not trials:
            return ""
        first = trials[0]
        others = [trial for trial in trials if trial.case.sizes != first.case.sizes]
        words = ""
        for trial in [first, *others[:1]]:
            threads = self.threads or max(2, torch.get_num_threads())
            seconds = _SANITIZED_SLOWER * self.limit(trial)
            if not isinstance(find_target(self.kernel.target), LibraryTarget):
                found, words = device_sanitize.sanitized(
                    self.kernel, self.text, trial.case, seconds
                )
            else:
                try:
                    found, words = sanitized(
                        self.text,
                        self.kernel.generated.entry,
                        self.kernel.signature,
                        trial.case,
                        threads=threads,
                        seconds=seconds,
                    )
                except FusecError as error:
                    raise _Failure(_not_built(error)) from None
            if found is not None:
                reason = f"{found.reason} {trial.case.label}".strip()
                verdict = Verdict(False, found.stage, reason, found.line, details=found.details)
                raise _Failure(verdict)
        return words

    def run(self, trials: Sequence[Trial], library: Path | None) -> Judgeable:
        """Run them all; the first failure that counts ends it.

        Returns:
            What ran last and is not judged yet.
        """
        waiting = list(trials)
        ran: Judgeable = []
        while waiting:
            self.judge_all(ran)
            together = 1
            if sum(trial.case.nbytes for trial in waiting) <= _TOGETHER:
                together = len(waiting)
            results = sandbox.run_cases(
                target=self.kernel.target,
                text=self.text,
                entry=self.kernel.generated.entry,
                signature=self.kernel.signature,
                library=library,
                cases=[trial.case for trial in waiting[:together]],
                timeout=max(map(self.limit, waiting[:together])),
                threads=self.threads,
            )
            ran = list(zip(waiting, results, strict=False))
            waiting = waiting[len(results) :]
        return ran

    def judge_all(self, ran: Judgeable) -> None:
        """Compare what ran with its references; the first failure that counts ends it."""
        for trial, result in ran:
            self.judge(trial, result)

    @contextlib.contextmanager
    def judging(self, ran: Judgeable) -> Iterator[int | None]:
        """Judge what ran beside what is done within; its failure comes before any there.

        Yields:
            A pipe that gives a byte once all of it is right, and ends where it is not; None where
            nothing is left to judge.
        """
        on_cpu = all(t.device.type == CPU for trial, _ in ran for t in trial.case.tensors)
        if not on_cpu or not all(result.ok for _, result in ran):
            self.judge_all(ran)
            ran = []
        if not ran:
            yield None
            return
        gate, opener = os.pipe()
        recorded = torch.is_grad_enabled()

        def judge() -> None:
            try:
                with torch.set_grad_enabled(recorded):  # each thread has its own
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

    def endure(
        self,
        trials: Sequence[Trial],
        library: Path | None,
        generated: KernelText | None,
        seconds: float,
        gate: int | None,
    ) -> Endured:
        """Call it many times in the worker, timed beside the generated kernel if that is given.

        The last call gets other values at the same addresses. It is timed once the gate is open.

        Raises:
            TooGoodToBeTrue: It is faster than its memory traffic can be.
        """
        trial = trials[0]
        like = next((t for t in trials[1:] if t.kind == "similar" and _alike(t, trial)), trial)
        moved = traffic(self.kernel, trial.case.tensors)
        copied = copied_bytes(moved)
        found = sandbox.endure(
            target=self.kernel.target,
            entry=self.kernel.generated.entry,
            signature=self.kernel.signature,
            text=self.text,
            library=library,
            cases=[trial.case] if like is trial else [trial.case, like.case],
            # Some dozen calls, and the timing.
            timeout=_ENDURANCE * self.limit(trial) + seconds,
            threads=self.threads,
            generated=generated,
            seconds=seconds,
            calls=_CALLS,
            copied=copied,
            gate=gate,
        )
        if not found.result.ok:
            raise _Failure(self.refused(found.result, "in many calls"))
        figures = like.references.compare(self.names, found.result.outputs, figures=False)
        if not all(figure.ok for figure in figures):
            label = f"after {found.calls} calls"
            raise _Failure(self.wrong(figures, found.result, label))
        if found.times is not None:
            too_good(found.times, moved, 2 * copied)
        return found

    def judge(self, trial: Trial, result: RunResult) -> None:
        """Compare one result; raises where it is wrong and the generated kernel is not."""
        label = trial.case.label
        if result.ok:
            figures = self.compare(result, trial.references)
            if all(figure.ok for figure in figures):
                self.figures.append(figures)
                self.notes += [result.details] if result.details else []
                return
            verdict = self.wrong(figures, result, label)
        else:
            verdict = self.refused(result, label)
        made_up = trial.kind not in (None, "similar")
        if made_up and verdict.stage == "wrong" and self.generated_differs(trial):
            self.notes.append(f"differs from eager {label}, as the generated kernel does")
            return
        raise _Failure(verdict)

    def generated_differs(self, trial: Trial) -> bool:
        """Whether the generated kernel, too, is off on these inputs."""
        if self.text == self.kernel.generated.text:
            return True
        if self.generated is None:
            return False
        if trial.references.hard is None:
            trial.references.hard = self.run_generated(self.generated, trial)
        return trial.references.hard

    def run_generated(self, generated: Runnable, trial: Trial) -> bool:
        """Run the generated kernel on a trial's inputs; return whether it is off."""
        tensors = fresh_tensors(self.kernel.signature, trial.case.tensors)
        try:
            generated(tensors, trial.case.sizes)
        except (ArithmeticError, LookupError, ValueError, RuntimeError):
            return True
        outputs = written(self.kernel.signature, tensors)
        figures = trial.references.compare(self.names, outputs, figures=False)
        return not all(figure.ok for figure in figures)

    def compare(self, result: RunResult, references: References) -> tuple[OutputError, ...]:
        # Only the first case's figures are shown.
        shown = not self.figures
        figures = references.compare(self.names, result.outputs, figures=shown)
        for other in result.others:
            # Every run has to be right, not only the one that is shown.
            again = references.compare(self.names, other, figures=shown)
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
        reason = f"{result.reason} {label}".strip()
        return Verdict(
            False, result.stage, reason, result.line, self.worst(), details=result.details
        )

    def wrong(self, figures: tuple[OutputError, ...], result: RunResult, label: str) -> Verdict:
        bad = next(figure for figure in figures if not figure.ok)
        position = self.names.index(bad.name)
        references = self.kernel.signature.arguments
        shape = [a for a in references if a.role != "in"][position]
        return Verdict(
            False,
            "wrong",
            f"{describe(bad, shape.dtype)} {label}".strip(),
            outputs=figures,
            details=result.details,
        )
