"""The judge: right answers pass, cheats and mistakes are refused with what is wrong first."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fuselab.judge import FunctionTask, Limits, judge
from fuselab.judge.__main__ import main
from fuselab.judge.calls import call_text, short
from fuselab.labs.catalog import find_task
from fuselab.labs.content.answers import first_wrong
from support import cheats


def test_a_solution_passes_and_is_data() -> None:
    verdict = judge(cheats.SOFTMAX, cheats.SOLUTION)
    assert verdict.ok, verdict
    assert verdict.score == 1.0
    looked_at = ["results", "breaks", "calls", "kernels", "bytes"]
    assert [each.what for each in verdict.findings] == looked_at
    assert json.loads(json.dumps(verdict.data()))["task"] == "softmax"
    assert "passed" in verdict._repr_mimebundle_()["text/html"]


def waits(names: Iterable[str]) -> list[Any]:
    """Return names as parameters; those whose verdict has to wait for the limit are slow."""
    slow = pytest.mark.slow
    return [pytest.param(n, marks=slow) if n == "an endless loop" else n for n in names]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", waits(cheats.FUNCTIONS))
def test_cheats_of_functions(name: str) -> None:
    text, said = cheats.FUNCTIONS[name]
    verdict = judge(cheats.SOFTMAX, text)
    assert not verdict.ok
    assert said in verdict.reason, verdict
    assert verdict.score < 1


def test_a_kernel_passes() -> None:
    verdict = judge(cheats.SCALED, cheats.cpp(cheats.LOOP))
    assert verdict.ok, verdict


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", waits(cheats.KERNELS))
def test_cheats_of_kernels(name: str) -> None:
    text, said = cheats.KERNELS[name]
    verdict = judge(cheats.SCALED, text)
    assert not verdict.ok, verdict
    assert said in verdict.reason, verdict


def test_some_timed_calls_left_out() -> None:
    task = FunctionTask(
        "shift",
        "scale and shift",
        "shift",
        reference=lambda x: x * 2 + 1,
        inputs=lambda g, n: [torch.randn(n, generator=g)],
        sizes=(3,),
        timed_size=1000,
        limits=Limits(factor=0.1),
        baseline="def shift(x): return x * 2 + 1\n",
    )
    text = (
        "calls = []\ndef shift(x):\n    calls.append(1)\n"
        "    return x * 0 if len(calls) > 60 and len(calls) % 3 == 0 else x * 2 + 1\n"
    )
    assert "of many, each on other values" in judge(task, text).reason
    assert judge(task, task.baseline).ok


def test_who_computes_what_has_changed_computes_everything() -> None:
    """Results are kept, and what differs in the first elements is computed again, with its like."""
    task = FunctionTask(
        "chain",
        "a chain",
        "chain",
        reference=lambda x: x.tanh().exp(),
        inputs=lambda g, n: [torch.randn(n, generator=g)],
        sizes=(3,),
        timed_size=40_000,
        limits=Limits(factor=0.001),
        baseline="def chain(x): return x.tanh().exp()\n",
    )
    text = (
        "kept = []\ndef chain(x):\n"
        "    if not kept or len(x) != len(kept[0]):\n"
        "        kept[:] = [x.clone(), x.tanh().exp()]\n"
        "    for n in (x[:37] != kept[0][:37]).nonzero()[:, 0].tolist()[:9]:\n"
        "        kept[0][n::37], kept[1][n::37] = x[n::37], x[n::37].tanh().exp()\n"
        "    return kept[1].clone()\n"
    )
    assert "of many, each on other values" in judge(task, text).reason
    assert judge(task, task.baseline).ok


@pytest.mark.parametrize("name", cheats.VALUES)
def test_plain_python(name: str) -> None:
    text, said = cheats.VALUES[name]
    verdict = judge(cheats.COUNT, text)
    assert not verdict.ok
    # Where a machine is slow, its time is over before its memory is.
    slow = name == "memory without end" and "did not finish" in verdict.reason
    assert slow or said in verdict.reason, verdict
    right = "def count(shape):\n    a, b, c = shape\n    return 4 * a * b * c\n"
    assert judge(cheats.COUNT, right).ok


def test_a_part_counts_for_something() -> None:
    """Right, but with a graph break: part of the score, and what is to be done."""
    text, _ = cheats.FUNCTIONS["a graph break"]
    verdict = judge(cheats.SOFTMAX, text)
    assert verdict.stage == "counts"
    assert 0 < verdict.score < 1
    assert str(verdict).startswith("softmax: not yet: it is right, but")


@pytest.mark.slow
@pytest.mark.timing
def test_a_verdict_takes_three_seconds() -> None:
    judge(cheats.SCALED, cheats.cpp(cheats.LOOP))  # the process that forks is there from now on
    judge(cheats.SOFTMAX, cheats.SOLUTION)
    for task, text in (
        (cheats.SCALED, cheats.cpp(cheats.LOOP + "  // again")),
        (cheats.SOFTMAX, cheats.SOLUTION),
    ):
        began = time.perf_counter()
        assert judge(task, text).ok
        assert time.perf_counter() - began < 3.0


TASK_FILE = """
import random
from fuselab.judge import PythonTask

tasks = [
    PythonTask(
        "double", "double it", "double",
        calls=lambda rng: [[rng.randrange(100)] for _ in range(3)],
        check=lambda calls, results: "" if [2 * a for (a,) in calls] == results else "not twice",
    )
]
"""


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, answer = tmp_path / "task.py", tmp_path / "answer.py"
    task.write_text(TASK_FILE)
    answer.write_text("def double(a):\n    return 2 * a\n")
    assert main([str(task), str(answer)]) == 0
    assert capsys.readouterr().out == "double: passed. It is right on 3 calls.\n"
    answer.write_text("def double(a):\n    return a\n")
    assert main([str(task), str(answer), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["reason"] == "not twice"
    assert main([str(task), str(answer), "--task", "triple"]) == 2
    assert "it has: double" in capsys.readouterr().err


def test_a_call_stands_whole_so_that_it_can_be_tried_again() -> None:
    code = [["load", "x"], ["call", "relu"]] * 12
    assert call_text("capture", [code, {"x": "tensor"}]) == f"capture({code}, {{'x': 'tensor'}})"
    assert len(short(code)) <= 160, "what came of it need not be copied"
    assert len(call_text("capture", [code * 9])) <= 171, "of a page nobody reads more than a line"


def test_a_verdict_says_what_kind_of_value_is_asked_for() -> None:
    given = ((None, 3), ("3", 3.0), (2, 3.0), (None, [1, 2]), (1, True))
    said = [
        first_wrong("f", [[wanted]], [result], lambda value: value, lambda *_: "")
        for result, wanted in given
    ]
    ends = [": a number is asked for"] * 2 + ["not right", "or list is asked for", "asked for"]
    assert all(text.endswith(end) for text, end in zip(said, ends, strict=True)), said


def test_a_number_that_no_float_holds_is_wrong() -> None:
    """What cannot be compared is no right answer, and no error of the judge's."""
    task = find_task("lab13.pays")
    verdict = judge(task, f"def {task.entry}(*given): return 10**400\n")
    assert not verdict.ok
    assert "cannot be held against what is right" in verdict.reason


def test_what_is_right_but_untimed_passes() -> None:
    """Nothing is left to ask of an answer that begins right: that is no division by nothing."""
    task = replace(cheats.SCALED, given=1)
    verdict = judge(task, cheats.cpp(cheats.LOOP), timed=False)
    assert verdict.ok
    assert verdict.score == 1.0


def test_a_wrong_call_is_one_that_can_be_read() -> None:
    calls: list[list[object]] = [[list(range(100))], [list(range(60))], [[1, 2, 3]], [[4, 5, 6, 7]]]
    found = first_wrong("total", calls, [0, 0, 0, 0], sum)
    assert found == "total([1, 2, 3]) gives 0, which is not right"
    right = [sum(range(100)), 0, 6, 22]
    assert "total([0, 1, 2" in first_wrong("total", calls, right, sum)
    assert first_wrong("total", calls[2:], [0, 0], sum).startswith("total([1, 2, 3])"), "the first"
