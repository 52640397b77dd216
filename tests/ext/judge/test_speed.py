"""Speed on a machine that others have: an answer is not refused for waiting for processors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fuselab.judge import Limits, speed
from fuselab.judge.answer_worker import worked
from fuselab.judge.trial import AnswerOutcome, AnswerProgram
from support import cheats

TASK = replace(cheats.SCALED, limits=Limits(share=0.5, factor=3.0))
ANSWER, BASELINE = AnswerProgram("scaled"), AnswerProgram("baseline")


def test_what_threads_worked() -> None:
    """The busiest thread counts, and no less than what all of them would have had to do."""
    assert worked({1: 1.0, 2: 5.0}, {1: 1.25, 2: 5.5}, 2) == 0.5
    assert worked({1: 1.0}, {1: 1.25, 2: 0.75}, 2) == 0.75  # a thread that is new
    eight = dict.fromkeys(range(8), 0.5)
    assert worked({}, eight, 2) == 2.0  # more threads than were given


@pytest.mark.parametrize(
    ("busy", "work", "counted"),
    [(True, 1e-3, True), (False, 1e-3, False), (True, 9e-3, False), (True, 0.0, False)],
    ids=["waited", "nobody else is there", "slow anyway", "unknown"],
)
def test_an_answer_that_waited(
    busy: bool, work: float, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(task: Any, program: AnswerProgram, *rest: Any) -> Any:
        seconds = [20e-3, work] if program is ANSWER else [4e-3, 4e-3]
        times = torch.tensor([seconds] * 8, dtype=torch.float64)
        return AnswerOutcome((), (), None, 0.1, 0.1), times

    monkeypatch.setattr(speed, "_round", made)
    monkeypatch.setattr(speed, "_problem", lambda *rest: "")
    monkeypatch.setattr(speed, "_copy", lambda moved: 1.5e-3)
    monkeypatch.setattr(speed, "_copy_work", lambda moved, threads: 1e-3 if work else 0.0)
    monkeypatch.setattr(speed, "is_busy", lambda: busy)
    found = speed.measure(TASK, ANSWER, BASELINE, 2)
    assert found.worked is counted
    assert math.isclose(found.seconds, 1e-3 if counted else 20e-3)
    assert (found.share >= 0.5 and found.factor >= 3.0) is counted
