"""Tuning a kernel: compile candidates a few ahead, time each against the best, believe no luck.

Each candidate is timed interleaved with the incumbent, so that a machine that slows down slows
both; one that is far behind at first sight is not looked at for longer.  The winner of many noisy
measurements is partly the luckiest one, so it is measured again against the start, and used only
if it is faster then, and right.

A candidate is a plan of the kernel's loops, as its target offers it
(``KernelSource.alternatives``), with values of the tunables that the text under that plan has.

What cannot win by a model of the device (``prospects``) is left out, before it is compiled or
before it is timed, and what is the same machine code as another candidate has its time.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from typing import Any, Protocol

from fusec.kernel import Kernel
from fusec.kernel_source import KernelSource
from fusec.report import Timing, Verdict
from fusec.timing.measure import Call, Series, judge
from fusec.tunables import read_tunables, set_tunables
from fusec.tune import records
from fusec.tune.candidate_builds import Builds, CandidateBuild
from fusec.tune.knobs import Knobs
from fusec.tune.plan_search import PlanSearch, Point
from fusec.tune.prospects import Prospect
from fusec.tune.records import RecordStore
from fusec.tuning_report import Trial, TriedPlan, TuningRun

BuildText = Callable[[str], Call]
Check = Callable[[str], Verdict]
Progress = Callable[[TuningRun], None]

_TRIAL_SECONDS = 0.04
# A first look at a candidate, and how many times slower than the best ends it there.
_LOOK_SECONDS = 0.003
_FAR_BEHIND = 1.5
_FINAL_SECONDS = 0.3
# A candidate that takes this many times the best's time at least, by a model that says "at least",
# is not timed.
_HOPELESS = 1.2
# How many of the fastest are measured again at the end.
_FINALISTS = 3


class Measure(Protocol):
    """``measure.interleave_series`` with all but the time filled in."""

    def __call__(self, candidates: Mapping[str, Call], *, seconds: float) -> dict[str, Series]:
        """Time the calls against each other."""


class Foresight(Protocol):
    """What is known of candidates before they are timed: see ``prospects``."""

    def before(self, text: str) -> Prospect:
        """Look at a text before it is compiled; called from several threads at once."""

    def after(self, call: Call) -> Prospect:
        """Look at a candidate that has run once."""


class _LeftOut(Exception):
    """A candidate that need not be compiled."""


def tune_kernel(
    kernel: Kernel,
    *,
    build_text: BuildText,
    measure: Measure,
    check: Check | None = None,
    check_each: Check | None = None,
    check_plan: Check | None = None,
    budget: float = 10.0,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    store: RecordStore | None = None,
    key: Mapping[str, Any] | None = None,
    description: Mapping[str, Any] | None = None,
    eager: Call | None = None,
    eager_is_whole: bool = False,
    foresight: Foresight | None = None,
    builds: int = 0,
    overlap: bool = False,
    thorough: bool = False,
    seed: int | None = None,
) -> TuningRun:
    """Search a kernel's plans and their tunables, and put the best in use.

    Of a kernel that somebody has edited only the tunables are searched: it has one text. Everything
    but the compilers runs in the calling thread.

    Args:
        kernel: The kernel; its text in use is where the search starts.
        build_text: Builds a text and returns a call without arguments that runs it on the
            inputs to tune for. Called from several threads at once; raises what went wrong.
        measure: Times calls against each other.
        check: Checks the winner's text before it is used.
        check_each: Checks each text before it is timed in this process: for edited kernels,
            whose other configurations nobody has looked at yet.
        check_plan: Checks the first text of each other plan likewise.
        budget: Seconds for the search; settling on the winner comes on top.
        progress: Called after each trial, between measurements, with the run so far.
        stop: Set it to end the search; so does an interrupt. The best so far is kept.
        store: Where the record goes; None keeps none.
        key: What the record is filed under; see ``records.tuning_key``.
        description: The machine, for the record.
        eager: The same work in eager, or the whole graph's, timed for comparison.
        eager_is_whole: Whether it is the whole graph's.
        foresight: Looks at candidates before they are timed; without one all are.
        builds: Candidates that are built side by side; 0 for what the processors allow.
        overlap: Whether candidates are timed while others are built, which must not disturb
            (processes of their own, a device of its own). Else all wait for each other.
        thorough: Try every configuration, near ones first, each for as long as the others and
            whatever the foresight.
        seed: Of the search's random part; by default one that the text decides, so that equal
            kernels are searched alike.

    Returns:
        The run; ``best`` is the trial whose values are in use now.
    """
    run = _Run(kernel, build_text, measure, check, check_each, budget, progress, stop, eager)
    run.check_plan = check_plan
    run.eager_is_whole = eager_is_whole
    run.foresight = None if thorough else foresight
    run.looks = not thorough
    run.depth, run.overlap = builds, overlap
    if seed is None:
        seed = int.from_bytes(hashlib.sha256(run.base.encode()).digest()[:4], "big")
    run.search = PlanSearch(
        {name: Knobs(read_tunables(text)) for name, text in run.texts.items()},
        seed=seed,
        whole=thorough,
    )
    result = run.go()
    if store is not None and key is not None and result.best is not None:
        records.save(store, key, result, description or {})
    return result


class _Run:
    """One tuning run."""

    def __init__(
        self,
        kernel: Kernel,
        build_text: BuildText,
        measure: Measure,
        check: Check | None,
        check_each: Check | None,
        budget: float,
        progress: Progress | None,
        stop: threading.Event | None,
        eager: Call | None,
    ) -> None:
        self.kernel = kernel
        self.build_text = build_text
        self.measure = measure
        self.check = check
        self.check_each = check_each
        self.progress = progress
        self.stop = stop or threading.Event()
        self.eager = eager
        self.eager_is_whole = False
        self.started = time.perf_counter()
        self.deadline = self.started + budget
        self.base = kernel.source
        self.sources = plans_of(kernel)
        # of each plan, the text that the search of its tunables starts from
        self.texts = {name: source.text for name, source in self.sources.items()}
        self.texts[kernel.plan] = self.base
        self.check_plan: Check | None = None
        self.search = PlanSearch({n: Knobs(read_tunables(t)) for n, t in self.texts.items()})
        self.foresight: Foresight | None = None
        self.looks = True
        self.depth, self.overlap = 0, False
        self.checked = ""
        self.binaries: dict[str, int] = {}  # the first trial of each machine code
        self.twins: dict[int, int] = {}
        self.trials: list[Trial] = []
        self.calls: dict[int, Call] = {}
        self.scores: dict[int, float] = {}
        self.best: int | None = None
        self.eager_timing: Timing | None = None

    def go(self) -> TuningRun:
        """Search, finish, and put the winner in use."""
        try:
            reason = self.explore()
        except KeyboardInterrupt:
            reason = "stopped"
        try:
            self.finish(reason)
        except KeyboardInterrupt:
            # Not settled: what was in use stays in use.
            reason = "stopped"
            self.best = 0 if self.scores else None
        return self.report(reason)

    def report(self, stopped: str = "") -> TuningRun:
        """Return the run so far."""
        return TuningRun(
            kernel=self.kernel.name,
            trials=tuple(self.trials),
            best=self.best,
            total=max(self.search.total, len(self.trials)),
            eager=self.eager_timing,
            stopped=stopped,
            seconds=time.perf_counter() - self.started,
            eager_is_whole=self.eager_is_whole,
            budget=self.deadline - self.started,
            checked=self.checked,
            plans=tuple(
                TriedPlan(name, records.text_digest(source.text), tuple(source.plan.splitlines()))
                for name, source in self.sources.items()
            ),
        )

    def text(self, point: Point) -> str:
        """Return the text of what is tried."""
        return set_tunables(self.texts[point.plan], dict(point.values))

    # -- searching ----------------------------------------------------------------------------

    def explore(self) -> str:
        """Try one configuration after the other; return why it ended."""
        with Builds(
            self.search,
            self.text,
            self.build,
            depth=self.depth,
            overlap=self.overlap,
        ) as builds:
            while True:
                ready = builds.ready(self.over)
                if isinstance(ready, str):
                    return ready
                for candidate in ready:
                    if reason := self.over():
                        return reason
                    self.attempt(candidate)
                    if self.progress is not None:
                        self.progress(self.report())

    def build(self, text: str) -> Call:
        """Build a candidate, in a thread of the pool, unless there is no point."""
        if self.foresight is not None and text != self.base:
            prospect = self.foresight.before(text)
            if reason := self.hopeless(prospect):
                raise _LeftOut(reason)
        return self.build_text(text)

    def hopeless(self, prospect: Prospect) -> str:
        """Return why a candidate cannot be the fastest; empty where it may be."""
        if prospect.hopeless:
            return prospect.hopeless
        best = math.inf if self.best is None else self.scores[self.best]
        if prospect.least > _HOPELESS * best:
            times = prospect.least / best
            return f"takes at least {times:.1f} times as long as the best, by a model of the device"
        return ""

    def over(self) -> str:
        """Return why the search has to end now; empty while it may go on."""
        if self.stop.is_set():
            return "stopped"
        if self.trials and time.perf_counter() >= self.deadline:
            return "budget"
        return ""

    def attempt(self, candidate: CandidateBuild) -> None:
        """Time a candidate, or take note of why not."""
        number = len(self.trials)
        timing: Timing | None = None
        error = note = ""
        try:
            call = candidate.call.result()
            error = self.refusal(candidate)
            if not error:
                note = self.known(number, call)
            if not error and not note:
                timing = self.time(number, call)
            elif number in self.scores:  # of an equal one
                timing = self.trials[self.twins[number]].timing
        except _LeftOut as reason:
            note = str(reason)
        except Exception as failure:
            # A configuration that does not compile or run is a trial that failed, no more.
            error = str(failure).partition("\n")[0] or type(failure).__name__
        point = candidate.point
        self.trials.append(Trial(point.values, timing, error, note, point.plan))
        self.search.tell(point, self.scores.get(number))
        if number in self.scores and (
            self.best is None or self.scores[number] < self.scores[self.best]
        ):
            self.best = number

    def known(self, number: int, call: Call) -> str:
        """Return why a candidate need not be timed; the score of an equal one is its own."""
        if self.foresight is None:
            return ""
        if self.overlap:
            call()  # nobody has run it yet
        prospect = self.foresight.after(call)
        if number and (reason := self.hopeless(prospect)):
            return reason
        equal = self.binaries.setdefault(prospect.binary, number) if prospect.binary else number
        if equal == number or equal not in self.scores:
            return ""
        self.twins[number] = equal
        self.scores[number] = self.scores[equal]
        return f"the same machine code as configuration {equal + 1}"

    def refusal(self, candidate: CandidateBuild) -> str:
        """Return why a text is not run in this process; empty where it may be."""
        first = candidate.text == self.texts[candidate.point.plan] != self.base
        check = self.check_each or (self.check_plan if first else None)
        if check is None:
            return ""
        verdict = check(candidate.text)
        return "" if verdict.ok else verdict.reason

    def time(self, number: int, call: Call) -> Timing:
        """Time a candidate against the best so far."""
        calls: dict[str, Call] = {"candidate": call}
        if self.best is not None:
            calls["best"] = self.calls[self.best]
        elif self.eager is not None:
            calls["eager"] = self.eager
        if self.looks and self.best is not None:
            measured = self.measure(calls, seconds=_LOOK_SECONDS)
            behind = median(measured["candidate"].samples) / median(measured["best"].samples)
            if behind > _FAR_BEHIND:
                self.calls[number] = call
                self.scores[number] = behind * self.scores[self.best]
                return measured["candidate"].timing()
        measured = self.measure(calls, seconds=_TRIAL_SECONDS * len(calls))
        timing = measured["candidate"].timing()
        self.calls[number] = call
        score = timing.median
        if self.best is not None:
            # Relative to the incumbent, so that a slower spell of the machine cancels out.
            score = judge(measured["candidate"], measured["best"])[1] * self.scores[self.best]
        if "eager" in measured:
            self.eager_timing = measured["eager"].timing()
        self.scores[number] = score
        return timing

    # -- the winner ------------------------------------------------------------------------------

    def finish(self, reason: str) -> None:
        """Measure the leaders again against the start, check the winner, and use it."""
        if self.best is None or self.trials[0].timing is None:
            if self.best is not None:
                # The text in use does not run at all: whatever does is better.
                self.adopt(self.best)
            return
        ranked = sorted(self.scores, key=lambda number: self.scores[number])
        leaders = [n for n in ranked if n != 0 and n not in self.twins][:_FINALISTS]
        if not leaders:
            self.best = 0
            return
        calls = {str(number): self.calls[number] for number in (0, *leaders)}
        if self.eager is not None:
            calls["eager"] = self.eager
        measured = self.measure(calls, seconds=_FINAL_SECONDS)
        for number in (0, *leaders):
            self.trials[number] = replace(
                self.trials[number], timing=measured[str(number)].timing()
            )
        if "eager" in measured:
            self.eager_timing = measured["eager"].timing()
        start = measured["0"]
        self.rescale(start.timing().median, {0, *leaders})
        faster = []
        for number in leaders:
            judgment, ratio = judge(measured[str(number)], start)
            if judgment == "FASTER":
                faster.append((ratio, number))
        self.best = 0
        for _, number in sorted(faster):
            if self.adopt(number):
                return

    def rescale(self, start: float, final: set[int]) -> None:
        """Bring the times of earlier spells of the machine to the scale of the final round.

        Each was measured beside the best of its time, so its score holds; seconds do not.

        Args:
            start: Median of the first configuration in the final round.
            final: The trials that were measured in it.
        """
        for number, score in self.scores.items():
            timing = self.trials[number].timing
            if number in final or timing is None or not timing.median or not self.scores[0]:
                continue
            factor = score * start / self.scores[0] / timing.median
            self.trials[number] = replace(
                self.trials[number],
                timing=replace(
                    timing,
                    median=timing.median * factor,
                    low=timing.low * factor,
                    high=timing.high * factor,
                    method=f"{timing.method}, scaled to the final round",
                ),
            )

    def adopt(self, number: int) -> bool:
        """Use a trial's values if its text passes the check."""
        trial = self.trials[number]
        text = self.text(Point(trial.plan, trial.values))
        if self.check is not None:
            verdict = self.check(text)
            self.checked = verdict.reason if verdict.ok else ""
            if not verdict.ok:
                self.trials[number] = replace(
                    self.trials[number], timing=None, error=verdict.reason
                )
                self.best = 0 if self.trials[0].timing is not None else None
                return False
        self.kernel.use_trial(trial)
        self.best = number
        return True


def plans_of(kernel: Kernel) -> dict[str, KernelSource]:
    """Return a kernel's source under each plan that makes another text, the one in use first.

    An edited kernel has the text that somebody wrote, and no other.
    """
    found = {kernel.plan: kernel.generated}
    texts = {kernel.generated.text}
    for plan in ("", *kernel.plans) if kernel.plans else ():
        if plan in found:
            continue
        source = kernel.variant(plan)
        same = source.signature == kernel.signature and source.entry == kernel.generated.entry
        if same and source.text not in texts:
            found[plan] = source
            texts.add(source.text)
    return found
