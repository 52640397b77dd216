"""How fast an answer is: in turns with its baseline, each in a process of its own."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch

from fusec.systems import this_system
from fusec.timing.measure import PRECISION, interleave
from fusec.verify.isolation.layout import Case
from fuselab.judge import cases as judge_cases
from fuselab.judge.answer_worker import (
    CLOCK,
    POKES,
    SEEN,
    SHIFTS,
    WATCHED,
    change,
    factors_for,
    places_in,
    worked,
)
from fuselab.judge.cases import Asked
from fuselab.judge.task import TensorTask
from fuselab.judge.trial import AnswerOutcome, AnswerProgram, is_busy, named, run_patiently

_ROUNDS = 3
_FASTEST = 10  # copies that no kernel is faster than
_COPYING = 0.03  # seconds of copies in a round
_COPIES = 12  # of which is looked at what threads work
_CLEAR_ROUNDS = 2  # where these say the same, and by far
_FAR = 1.3
_SECONDS = 0.06  # of calls in a round
_UNEXPLAINED = 0.35  # seconds a process may take beside what its calls take
_MOST_CALLS = 200
_LONGEST_ROUND = 8.0  # seconds
_BETWEEN = 1e-3  # seconds that may go by between two calls: inputs change, results are noted
_LOOKED_AT = 12  # calls of a round whose results are compared, besides the last
_LOOKING = 0.15  # seconds that may take
_MOST_ROUNDS = 9  # where the first ones do not agree
_HIDDEN = (
    "its process took {:.1f} s beyond the calls that it counts: work is done elsewhere, or the "
    "clock was changed"
)


@dataclass(frozen=True)
class Speed:
    """What was measured.

    Attributes:
        seconds: Of a call of the answer: the best of the rounds' quickest quarters.
        baseline: Of a call of the baseline; None where there is none.
        share: Of the speed of a copy of the same bytes.
        problem: Why it does not count; empty if it does.
        worked: Whether times are what threads worked, without their waiting for processors.
    """

    seconds: float
    baseline: float | None
    share: float
    problem: str = ""
    worked: bool = False

    @property
    def factor(self) -> float:
        """How many times as fast as the baseline."""
        return self.baseline / self.seconds if self.baseline and self.seconds else math.inf


def measure(
    task: TensorTask, answer: AnswerProgram, baseline: AnswerProgram | None, threads: int
) -> Speed:
    """Time an answer.

    Args:
        task: What is asked.
        answer: The answer; its results are looked at once more.
        baseline: What it is compared with, in turns.
        threads: With which both run.
    """
    inputs = judge_cases.made(task, task.timed_size)
    results = [torch.empty_like(each).contiguous() for each in task.results(*inputs)]
    moved = sum(t.nbytes for t in (*inputs, *results))
    own: list[float] = []
    theirs: list[float] = []
    copies: list[float] = []
    beyond: list[float] = []
    # The same three as what their threads worked.
    own_work: list[float] = []
    their_work: list[float] = []
    copy_work: list[float] = []
    asked = [
        (times, limit)
        for times, limit in ((theirs, baseline and task.limits.factor), (copies, task.limits.share))
        if limit
    ]
    while not _enough(own, asked, shared=bool(task.limits.share)):
        for program, times, work in ((answer, own, own_work), (baseline, theirs, their_work)):
            if program is None:
                continue
            pokes = _pokes(_MOST_CALLS)
            outcome, times_of = _round(task, program, inputs, results, pokes, threads)
            pokes, total = pokes[: len(times_of)], float(times_of[:, 0].sum())
            # Threads that need several processors at once seldom have them while others want them.
            quick, least = _quick(times_of, 0 if task.limits.share and is_busy() else 4)
            if program is baseline and outcome.finding is not None:
                raise RuntimeError(f"the baseline: {outcome.finding.reason}")
            if program is answer:
                problem = _problem(task, outcome, inputs, pokes, times_of)
                if problem:
                    return Speed(quick or 1.0, None, 0.0, problem)
                beyond.append(_unexplained(outcome, inputs, total, len(times_of)))
            times.append(quick)
            work.append(least)
        copies.append(_copy(moved))
        if task.limits.share and is_busy():
            copy_work.append(_copy_work(moved, threads))
    # A busy machine makes a round slow; who hides work or changes the clock does so in each.
    if min(beyond) > 0:
        return Speed(min(own) or 1.0, None, 0.0, _HIDDEN.format(min(beyond)))
    seconds = min(own)
    for _ in range(_MOST_ROUNDS):  # copies that had to wait say nothing about the answer
        if min(copies) <= _FASTEST * seconds:
            break
        copies.append(_copy(moved))
    share = min(copies) / seconds if seconds else math.inf
    if share > _FASTEST:
        return Speed(seconds, None, share, "it is faster than its inputs can be read")
    found = Speed(seconds, min(theirs) if theirs else None, share)
    if min(copy_work, default=0.0) and min(own_work) and not reaches(task, found):
        # A call that needs several processors at once had to wait for them, one that needs one did
        # not: it would be refused for that.
        least, copy = min(own_work), min(copy_work)
        working = Speed(least, min(their_work) if theirs else None, copy / least, worked=True)
        if reaches(task, working) and working.share <= _FASTEST:
            return working
    return found


def reaches(task: TensorTask, speed: Speed) -> bool:
    """Whether an answer is as fast as it has to be."""
    limits = task.limits
    return speed.share >= (limits.share or 0.0) and speed.factor >= (limits.factor or 0.0)


def _quick(times: torch.Tensor, part: int) -> tuple[float, float]:
    """Return the seconds that a call takes, and those that it works.

    Args:
        times: Of calls.
        part: 4 for the end of the quickest quarter, 0 for the quickest of all.
    """
    if not len(times):
        return 0.0, 0.0
    seconds, work = times.sort(0).values[len(times) // part if part else 0].tolist()
    return seconds, work


def _pokes(calls: int) -> torch.Tensor:
    """Return what inputs are made of before each call, and what is looked at after it.

    The seed of factors, where in them to begin; then places in results, as shares of their length.
    """
    chosen = random.SystemRandom()
    seed = chosen.getrandbits(31)
    rows = [
        [seed, shift, *(chosen.random() for _ in range(WATCHED))]
        for shift in chosen.sample(range(SHIFTS), calls)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _round(
    task: TensorTask,
    program: AnswerProgram,
    inputs: tuple[torch.Tensor, ...],
    outputs: Sequence[torch.Tensor],
    pokes: torch.Tensor,
    threads: int,
) -> tuple[AnswerOutcome, torch.Tensor]:
    """Return what came of it, and of each call that was made its seconds and those worked."""
    clock = torch.zeros(len(pokes), 2, dtype=torch.float64)
    seen = torch.zeros(len(pokes), len(outputs), WATCHED, dtype=torch.float64)
    operands = named(
        [*(f"input {n}" for n in range(len(inputs))), POKES],
        [*(f"output {n}" for n in range(len(outputs))), SEEN, CLOCK],
    )
    sizes = task.numbers(*inputs) if hasattr(task, "numbers") else ()
    case = Case((*inputs, pokes, *outputs, seen, clock), sizes)
    more = {"budget": _SECONDS}
    plan = [(True, threads)]
    outcome = run_patiently(
        program, "time", operands, [case], plan=plan, timeout=_LONGEST_ROUND, more=more
    )
    if not outcome.runs:
        return outcome, clock[:0]
    times = outcome.runs[0][0].outputs[-1]
    return outcome, times[times[:, 0] > 0]


def _copy(moved: int) -> float:
    """Return the seconds of a copy that moves so many bytes.

    By all threads, or by one if that is quicker: on a busy machine threads wait for processors.
    """
    source = torch.zeros(max(moved // 8, 1))
    target = torch.empty_like(source)
    one, other = source.numpy(), target.numpy()
    ways = {"threads": lambda: target.copy_(source), "one": lambda: numpy.copyto(other, one)}
    times = interleave(ways, seconds=2 * _COPYING, device="cpu", precision=PRECISION)
    return min(each.low for each in times.values())


def _copy_work(moved: int, threads: int) -> float:
    """Return the seconds of such a copy as what its threads work; 0 where that is unknown."""
    source = torch.zeros(max(moved // 8, 1))
    target = torch.empty_like(source)
    target.copy_(source)
    found = []
    for _ in range(_COPIES):
        before = this_system().thread_times()
        target.copy_(source)
        if before:
            found.append(worked(before, this_system().thread_times(), threads))
    return sorted(found)[len(found) // 4] if found else 0.0


def _enough(
    own: Sequence[float], asked: Sequence[tuple[Sequence[float], float]], *, shared: bool
) -> bool:
    """Whether the rounds so far say enough.

    Args:
        own: Of each round, the answer's seconds.
        asked: Others' seconds likewise, with how many times as fast as they the answer has to be.
        shared: Whether it has to share its work among threads.
    """
    rounds = len(own)
    if rounds < _CLEAR_ROUNDS or rounds >= _MOST_ROUNDS:
        return rounds >= _MOST_ROUNDS
    # Threads that wait for a processor say nothing; in another round there may be one for each.
    if shared and is_busy() and any(min(times) < limit * min(own) for times, limit in asked):
        return False
    if rounds < _ROUNDS:
        return bool(asked) and all(_clear(own, *each) for each in asked)
    return not any(_unsure(own, *each) for each in asked)


def _unsure(own: Sequence[float], others: Sequence[float], limit: float) -> bool:
    """Whether rounds say different things about the limit."""
    said = {other >= limit * mine for mine, other in zip(own, others, strict=True)}
    return len(said) > 1 or (min(others) >= limit * min(own)) not in said


def _clear(own: Sequence[float], others: Sequence[float], limit: float) -> bool:
    """Whether every round is far from the limit, on the same side of it."""
    ratios = [other / mine / limit for mine, other in zip(own, others, strict=True)]
    return min(ratios) > _FAR or max(ratios) < 1 / _FAR


def _unexplained(
    outcome: AnswerOutcome, inputs: Sequence[torch.Tensor], total: float, calls: int
) -> float:
    """Return the seconds that a process took beyond its calls and what starting it may take.

    Others may keep it waiting, and threads wait by turning round: neither is work.
    """
    allowed = _UNEXPLAINED + 0.5 * total + _BETWEEN * calls
    # Factors are made once, and multiplied with before each call.
    allowed += sum(t.nbytes for t in inputs) * (1 / 2e8 + calls / 2e9)
    extra = min(outcome.seconds, outcome.processor) - total
    return extra if extra > allowed else 0.0


def _problem(
    task: TensorTask,
    outcome: AnswerOutcome,
    inputs: tuple[torch.Tensor, ...],
    pokes: torch.Tensor,
    times: torch.Tensor,
) -> str:
    if outcome.finding is not None:
        return outcome.finding.reason
    *outputs, seen, _ = outcome.runs[0][0].outputs
    changed = tuple(tensor.clone() for tensor in inputs)
    factors = factors_for(inputs, int(pokes[0, 0]))
    last = len(pokes) - 1
    looked_at = {*random.SystemRandom().sample(range(len(pokes)), min(_LOOKED_AT, last)), last}
    sure = {last, int(times[:, 0].argmin())}  # the quickest call may be the one that counts
    looked_at |= sure
    began = time.perf_counter()
    for number, (_, shift, *shares) in enumerate(pokes.tolist()):
        over = time.perf_counter() - began > _LOOKING
        if number not in looked_at or (over and number not in sure):
            continue
        for tensor, first, each in zip(changed, inputs, factors, strict=True):
            change(tensor, first, each, int(shift))
        now: Asked = judge_cases.asked(task, changed, "", task.timed_size)
        places = [places_in(each, shares) for each in outputs]
        found = list(seen[number]) if all(len(at) for at in places) else []
        wrong = now.wrong_in(places, found) if found else ""
        if number == last:
            wrong = wrong or now.wrong(tuple(outputs))
        if wrong:
            return f"in call {number + 1} of many, each on other values, {wrong}"
    return ""


__all__ = ["Speed", "measure", "reaches"]
