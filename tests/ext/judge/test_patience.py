"""A machine that leaves an answer no time costs nobody points."""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from fusec.verify.isolation.process import WorkerError
from fusec.verify.words import Finding
from fuselab.errors import NotJudged
from fuselab.judge import Limits, engine, judge, trial
from fuselab.judge.engine import judge_for_points
from fuselab.judge.trial import AnswerOutcome
from fuselab.judge.verdict import AnswerFinding, AnswerVerdict
from fuselab.labs import grading, progress
from fuselab.labs.grading import as_csv, grade_file
from support import cheats

RIGHT = "def count(shape):\n    a, b, c = shape\n    return 4 * a * b * c\n"
LOOP = "def count(shape):\n    while True: pass\n"


def late(processor: float, seconds: float) -> AnswerOutcome:
    finding = Finding("timeout", f"it did not finish within {seconds:.1f} s")
    return AnswerOutcome((), (), finding, seconds, processor)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let answers wait for a processor as often as is said; note the limits that they are given."""
    found: list[float] = []
    monkeypatch.setattr(trial, "is_busy", lambda: False)
    return found


def waiting(monkeypatch: pytest.MonkeyPatch, limits: list[float], often: int) -> None:
    run = trial.run

    def starved(*args: object, timeout: float, **more: object) -> AnswerOutcome:
        limits.append(timeout)
        if len(limits) <= often:
            return late(0.1, timeout)
        return run(*args, timeout=timeout, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(trial, "run", starved)


@pytest.mark.parametrize("often", [0, 1, 2])
def test_who_had_no_processor_gets_more_time(
    often: int, limits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting(monkeypatch, limits, often)
    assert judge(cheats.COUNT, RIGHT).ok
    assert limits == [2.5, 7.5, 25.0][: often + 1]


def test_who_never_had_one_is_not_judged(
    limits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting(monkeypatch, limits, 99)
    with pytest.raises(NotJudged, match=r"had a processor for 0\.1 s of 25.*judge it again"):
        judge(cheats.COUNT, RIGHT)


def test_an_endless_loop_is_late_by_itself(
    limits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "run", lambda *args, timeout, **more: late(timeout, timeout))
    verdict = judge(cheats.COUNT, LOOP)
    assert not verdict.ok
    assert "did not finish within 2.5 s" in verdict.reason


def test_a_process_that_does_not_answer_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*args: object, **more: object) -> AnswerOutcome:
        raise WorkerError("the checking process gave no answer in 60 s")

    monkeypatch.setattr(trial, "run", silent)
    with pytest.raises(NotJudged, match="gave no answer"):
        judge(cheats.COUNT, RIGHT)


def verdict(score: float, stage: str) -> AnswerVerdict:
    return AnswerVerdict("t", score == 1.0, stage, "slow", score)


@pytest.mark.parametrize(
    ("busy", "found", "score"),
    [
        (True, [verdict(0.5, "speed"), None, verdict(1.0, "passed")], 1.0),
        (True, [None, None, verdict(0.5, "speed")], 0.5),
        (True, [verdict(0.5, "speed"), None, None], 0.5),
        (True, [verdict(0.0, "right"), verdict(1.0, "passed")], 0.0),
        (False, [verdict(0.5, "speed"), verdict(1.0, "passed")], 0.5),
        (False, [None, None, None, verdict(1.0, "passed")], None),
    ],
)
def test_points_are_judged_again_where_the_clock_refused(
    busy: bool,
    found: list[AnswerVerdict | None],
    score: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = list(found)

    def judged(*args: object, **more: object) -> AnswerVerdict:
        now = left.pop(0)
        if now is None:
            raise NotJudged("the machine is busy")
        return now

    monkeypatch.setattr(engine, "judge", judged)
    monkeypatch.setattr(engine, "is_busy", lambda: busy)
    if score is None:
        with pytest.raises(NotJudged):
            judge_for_points(cheats.COUNT, RIGHT)
    else:
        assert judge_for_points(cheats.COUNT, RIGHT).score == score


@pytest.mark.parametrize(
    ("busy", "factor", "judged"), [(True, 1.57, False), (True, 1.1, True), (False, 1.57, True)]
)
def test_a_near_miss_on_a_busy_machine_costs_no_points(
    busy: bool, factor: float, judged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right answer came to 1.57 of 2 times while every processor had more to do."""
    right = AnswerFinding("results", "as eager", "the same", True)
    slow = AnswerFinding("speed", f"{factor} times", "at least 2 times", False, factor)
    found = AnswerVerdict("t", False, "speed", "slow", 0.0, None, (right, slow))
    monkeypatch.setattr(engine, "judge", lambda *args, **more: found)
    monkeypatch.setattr(engine, "is_busy", lambda: busy)
    task = replace(cheats.SCALED, limits=Limits(factor=2.0))
    if judged:
        assert judge_for_points(task, "x") is found
    else:
        with pytest.raises(NotJudged, match=r"1\.57 times, where at least 2 times is asked"):
            judge_for_points(task, "x")


def test_what_was_not_judged_is_no_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **more: object) -> AnswerVerdict:
        raise NotJudged("the machine is busy")

    monkeypatch.setattr(grading, "judge_for_points", refused)
    tasks = {"lab01.bytes": {"best": "def bytes_moved(n, k): return 8 * n * k, 8 * n\n"}}
    path = tmp_path / "ada.json"
    path.write_text(json.dumps({"format": 1, "student": "Ada", "tasks": tasks}))
    head, row = as_csv([grade_file(path)]).splitlines()
    assert row.split(",")[head.split(",").index("lab01.bytes")] == ""
    assert "not judged, grade it again: lab01.bytes" in row


def test_graders_see_nothing_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """nbgrader gives no points for a cell that has written there."""

    def loud(*args: object, **more: object) -> AnswerVerdict:
        warnings.warn("a warning", stacklevel=1)
        print("by Python", file=sys.stderr)
        os.write(2, b"by a library\n")
        return verdict(0.5, "speed")

    monkeypatch.setattr(progress, "judge_for_points", loud)
    monkeypatch.setattr(progress, "_progress", progress.LabProgress())
    progress.progress().state("lab13.pays").best = "x"
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert progress.points("lab13.pays") == 0.5
    out, error = capfd.readouterr()
    assert error == ""
    assert out == "t: not yet: slow\n"


def test_who_is_interrupted_can_still_hand_it_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **more: object) -> AnswerVerdict:
        raise KeyboardInterrupt

    monkeypatch.setattr(progress, "judge", interrupted)
    mine = progress.LabProgress()
    with pytest.raises(KeyboardInterrupt):
        mine.judge("lab13.pays", "an answer")
    assert mine.state("lab13.pays").best == "an answer"
