"""The check that every edited kernel passes before it is used.

In this order, and the first failure ends it: there is a text; its entry point is unchanged; it
compiles; its library asks nothing of the process that a kernel may not (``binary``); it survives
guarded runs in a worker on the real inputs, on fresh random ones, and on adversarial ones; its
results agree with the reference every time; and, timed against the generated kernel, it takes no
less time than its memory traffic can.  Nothing here puts a kernel in use, so any failure leaves
the previous one as it was.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from fusec.devices import CPU
from fusec.errors import CompileError, FusecError
from fusec.kernel import Kernel
from fusec.kernel_source import Runnable
from fusec.report import Verdict
from fusec.target_api.base import LibraryTarget, PythonTarget
from fusec.target_api.registry import find_target
from fusec.toolchain.children import Children, with_children
from fusec.toolchain.expand import expanded, joins_words
from fusec.verify import probation
from fusec.verify.comparison.graph_outputs import check_graph
from fusec.verify.comparison.words import praise
from fusec.verify.isolation import device_sanitize, sandbox
from fusec.verify.isolation.layout import Case
from fusec.verify.isolation.process import WorkerError
from fusec.verify.isolation.rehearsal import rehearse
from fusec.verify.isolation.sandbox import KernelText
from fusec.verify.isolation.sanitize import sanitized
from fusec.verify.isolation.unseen import seen_by_watching
from fusec.verify.judge import Judge
from fusec.verify.static import binary, cpp_text, python_text
from fusec.verify.static.binary import LibraryFacts
from fusec.verify.timing import TooGoodToBeTrue
from fusec.verify.trials.candidate import Build, Candidate, Refused
from fusec.verify.trials.inputs import Kind
from fusec.verify.trials.made_trials import make_trials, named_trials, unseen
from fusec.verify.trials.other_orders import Reorder
from fusec.verify.trials.patterns import PATTERNS
from fusec.verify.trials.references import Interpret, KeptTrials, LeftOut, ReferencedCase
from fusec.verify.trials.variations import spread_out
from fusec.verify.words import Finding

__all__ = ["KINDS", "Case", "check_graph", "check_kernel"]

KINDS: tuple[Kind, ...] = (
    *("similar", "adversarial", "nonfinite", "magnitudes"),
    *("negative", "positive", "zeros", "ones", "layers", "whole", "padding", "sparse", "unit"),
    *("ordinary", "wide", "every power", "small", "tiny", "far", "nan", "one nan"),
    "many nonfinite",
    *PATTERNS,
)

# How many times longer a run takes that sanitizers watch.
_SANITIZED_SLOWER = 10.0
# Half of a pair of UTF-16, and what ends a string in C: no file of a text holds them.
_ODD = re.compile("[\0\ud800-\udfff]")


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
    reorder: Reorder | None = None,
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
        reorder: Runs that IR in float64 by another evaluator of it, whose sums are off by as much
            as those of another order are (``other_orders``).
    """
    started = time.perf_counter()
    try:
        candidate = Candidate(kernel, text, build, interpret, generated, timeout, threads, reorder)
        _check_text(candidate, trust=trust)
        verdict = _check(
            candidate,
            cases,
            kinds,
            kept or KeptTrials(),
            seconds=seconds if timed else 0.0,
            trust=trust,
            sanitize=sanitize,
            meanwhile=meanwhile,
        )
    except Refused as failure:
        verdict = failure.verdict
    except WorkerError as error:
        # What cannot be checked is not used.
        verdict = Verdict(False, "crash", f"could not be checked: {error}")
    return replace(verdict, seconds=time.perf_counter() - started)


def _check_text(candidate: Candidate, *, trust: bool) -> None:
    """Refuse what is wrong with a text as it stands."""
    text, source = candidate.text, candidate.kernel.generated
    if not text.strip():
        raise Refused(Verdict(False, "empty", "the kernel is empty; the one in use stays"))
    odd = _ODD.search(text)
    if odd is not None:
        line = text.count("\n", 0, odd.start()) + 1
        reason = f"U+{ord(odd.group()):04X} is not allowed in a kernel"
        raise Refused(Verdict(False, "compile", reason, line))
    target = find_target(candidate.kernel.target)
    wrong = target.entry_problem(text, source.entry, source.text)
    if wrong is not None:
        raise Refused(Verdict(False, wrong.stage, wrong.reason, wrong.line))
    if trust:
        probation.forgive(text)
    elif text != source.text and isinstance(target, LibraryTarget):
        _refuse(probation.crash(text))
        _refuse(cpp_text.source_problem(text, source.text))
        if joins_words(text):
            _refuse(cpp_text.source_problem(expanded(text), source.text))
    elif text != source.text and isinstance(target, PythonTarget):
        _refuse(python_text.problem(text, target.permitted))


def _check(
    candidate: Candidate,
    cases: Sequence[Case],
    kinds: Sequence[Kind],
    kept: KeptTrials,
    *,
    seconds: float,
    trust: bool,
    sanitize: bool,
    meanwhile: Callable[[], object] | None,
) -> Verdict:
    """Build it and run it; ``seconds`` is what timing may take, 0.0 for none."""
    kernel, text, source = candidate.kernel, candidate.text, candidate.kernel.generated
    judge = Judge(candidate)
    sandbox.prestart(cases[0].tensors[0].device.type if cases and cases[0].tensors else "cpu")
    target = find_target(kernel.target)
    make = candidate.build
    if cases and text != source.text and isinstance(target, PythonTarget):
        _rehearse(target, kernel, text, cases[0])
        make = _nothing  # its Python runs in this process only once it has passed
    # The compiler is a process of its own; meanwhile this one works out the references.
    children = Children()
    with ThreadPoolExecutor(1, "fusec-check") as pool:
        building = pool.submit(with_children(children, make), text)
        trials: list[ReferencedCase] = []
        known = kept.find(kernel, cases, kinds)
        left = known[1] if known else LeftOut()
        try:
            for trial in known[0] if known else make_trials(candidate, cases, kinds, left):
                if building.done() and building.exception() is not None:
                    break
                trials.append(trial)
            if meanwhile is not None and not building.done():
                meanwhile()
            for trial in trials:
                # Where values are extreme, eager alone rarely decides.
                if trial.kind not in (None, "similar") and not building.done():
                    _ = trial.references.float64
            library = _built(building)
        except BaseException:
            children.stop()  # an interrupt waits for no compiler
            raise
    facts = None
    numbers: list[float] = []
    if library is not None and isinstance(target, LibraryTarget) and text != source.text:
        read = sandbox.read_library(library)
        numbers = _own_numbers(candidate, read)
        if not trust:
            facts = read
            _refuse(binary.problem(facts.at_once, text, target.instruction_line))
    if not known:
        kept.keep(kernel, cases, kinds, trials, left)
    judge.notes += left.notes
    missing = unseen(kinds, trials, left) if cases else None
    if missing is not None:
        raise Refused(missing)
    if kinds and text != source.text:
        trials += named_trials(candidate, cases, numbers, resampled=left.resampled)
    looked = _sanitize(candidate, trials) if sanitize else ""
    verdict = _judged(judge, trials, library, seconds, looked)
    if verdict.ok and trials and text != source.text and isinstance(target, LibraryTarget):
        _refuse(_unseen(candidate, trials))
    if verdict.ok and facts is not None and isinstance(target, LibraryTarget):
        _refuse(binary.problem(facts.unreached, text, target.instruction_line))
    return verdict


def _own_numbers(candidate: Candidate, facts: LibraryFacts) -> list[float]:
    """Return the numbers of an edit's library that the generated kernel's has not."""
    try:
        library = candidate.build(candidate.kernel.generated.text)
    except FusecError:
        return []
    known = set(sandbox.read_library(library).numbers) if library is not None else set()
    return [number for number in facts.numbers if number not in known]


def _judged(
    judge: Judge,
    trials: Sequence[ReferencedCase],
    library: Path | None,
    seconds: float,
    looked: str,
) -> Verdict:
    """Run a candidate that is built; ``looked`` is what the sanitizers say of it."""
    candidate, source = judge.candidate, judge.candidate.kernel.generated
    unjudged = judge.run(trials, library)
    timing = base = None
    calls = 0
    wanted = seconds > 0 and candidate.generated is not None
    try:
        if trials and not candidate.is_interpreted(trials[0].case):
            other = KernelText(source.text, candidate.build(source.text)) if wanted else None
            found = judge.endure(trials, library, other, seconds, unjudged)
            calls = found.calls
            if found.times is not None:
                timing, base = found.times["candidate"], found.times["generated"]
                if other is not None and _same_code(KernelText(candidate.text, library), other):
                    timing = base  # both are of one thing: that they differ is noise
        else:
            judge.judge_all(unjudged)
    except TooGoodToBeTrue as finding:
        return Verdict(
            False,
            "wrong",
            str(finding),
            outputs=judge.worst(),
            timing=finding.timing,
            generated=finding.generated,
        )
    if judge.judged != len(trials):
        raise WorkerError(f"{len(trials) - judge.judged} of its runs are missing")
    outputs = judge.worst()
    return Verdict(
        True,
        "passed",
        "; ".join(filter(None, [praise(outputs, timing, base), looked])),
        outputs=outputs,
        timing=timing,
        generated=base,
        details="\n".join(dict.fromkeys(judge.notes)),
        calls=calls,
    )


def _same_code(one: KernelText, other: KernelText) -> bool:
    """Whether two texts are one program to the machine: the same, or but for comments."""
    if one.text == other.text or one.library is None or other.library is None:
        return one.text == other.text
    return one.library.read_bytes() == other.library.read_bytes()


def _sanitize(candidate: Candidate, trials: Sequence[ReferencedCase]) -> str:
    """Let the sanitizers look at it; return what they are, in words."""
    if not trials:
        return ""
    first = trials[0]
    others = [trial for trial in trials if trial.case.sizes != first.case.sizes]
    words = ""
    for trial in [first, *others[:1]]:
        threads = candidate.threads or max(2, torch.get_num_threads())
        seconds = _SANITIZED_SLOWER * candidate.limit(trial)
        if not isinstance(find_target(candidate.kernel.target), LibraryTarget):
            found, words = device_sanitize.sanitized(
                candidate.kernel, candidate.text, trial.case, seconds
            )
        else:
            try:
                found, words = sanitized(
                    candidate.text,
                    candidate.kernel.generated.entry,
                    candidate.kernel.signature,
                    trial.case,
                    threads=threads,
                    seconds=seconds,
                )
            except FusecError as error:
                raise Refused(_not_built(error)) from None
        if found is not None:
            reason = f"{found.reason} {trial.case.label}".strip()
            verdict = Verdict(False, found.stage, reason, found.line, details=found.details)
            raise Refused(verdict)
    return words


def _unseen(candidate: Candidate, trials: Sequence[ReferencedCase]) -> Finding | None:
    """Return what is wrong with it though all of its results are right."""
    trial = trials[0]
    if any(tensor.device.type != CPU for tensor in trial.case.tensors):
        return None
    # Where all indices are one, threads that share an element meet.
    meeting = [each.case for each in trials if each.kind == "equal integers"]
    spread = spread_out(trial.case, candidate.kernel.signature)
    return seen_by_watching(
        candidate.text,
        candidate.kernel.generated.text,
        candidate.kernel.generated.entry,
        candidate.kernel.signature,
        [spread or trial.case, *meeting[:1]],
        threads=candidate.threads or max(2, torch.get_num_threads()),
        seconds=_SANITIZED_SLOWER * candidate.limit(trial),
    )


def _refuse(found: Finding | None) -> None:
    if found is not None:
        raise Refused(Verdict(False, found.stage, found.reason, found.line))


def _rehearse(target: PythonTarget, kernel: Kernel, text: str, case: Case) -> None:
    try:
        source = kernel.generated
        _refuse(rehearse(target, text, source.text, source.entry, kernel.signature, case))
    except FusecError as error:
        raise Refused(_not_built(error)) from None


def _nothing(text: str) -> Path | None:
    return None


def _built(building: Future[Path | None]) -> Path | None:
    try:
        return building.result()
    except FusecError as error:
        raise Refused(_not_built(error)) from None


def _not_built(error: FusecError) -> Verdict:
    if not isinstance(error, CompileError):
        return Verdict(False, "compile", str(error))
    first = next((d for d in error.diagnostics if d.severity == "error"), None)
    if first is None:
        return Verdict(False, "compile", error.message, details=error.output)
    return Verdict(
        False, "compile", error.message, first.line, details=error.output, bare=first.message
    )
