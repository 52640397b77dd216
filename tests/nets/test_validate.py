"""Translation validation: a mistake is put down to the stage that made it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import fusec
from fusec.ir.node import Load, Op, op
from fusec.ir.program import Compute, Program
from fusec.kernel_source import KernelSource
from programs.check import problems
from programs.generate import write
from support.validate import Validation, validated, validating


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")


def centered(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x - y) / x.exp().sum(-1, keepdim=True)


def run(function: Callable[..., Any] = centered) -> Validation:
    torch._dynamo.reset()
    inputs = [torch.randn(5, 7), torch.randn(5, 7)]
    with validating() as found:
        fusec.compile(function)(*inputs)
    return found


def turned(program: Program) -> Program:
    """Return the program with every subtraction of what is loaded turned round."""

    def swap(node: Any) -> Any:
        if isinstance(node, Op) and node.name == "sub":
            left, right = node.args
            if isinstance(left, Load) and isinstance(right, Load):
                return op("sub", (right, left), node.dtype)
        return None

    def steps() -> Any:
        for step in program.steps:
            if isinstance(step, Compute):
                body = step.body
                step = replace(step, body=body.moved(body.axes, body.reduce_axes, {}, swap))
            yield step

    return replace(program, steps=tuple(steps()))


def test_what_is_right_is_validated() -> None:
    found = run()
    assert not found.problems
    assert not found.skipped
    assert (found.calls, found.kernels) == (1, 1)


@pytest.mark.parametrize("seed", [3, 4])
def test_random_programs_with_gradients(seed: int) -> None:
    total = Validation()
    with validated(True, total) as texts:
        assert not problems(write(seed, train=True))
    assert not texts
    assert total.calls >= 2
    assert total.kernels >= 2


def test_the_lowering_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusec.pipeline import lower_graph

    monkeypatch.setattr("fusec.pipeline.lower_graph", lambda *a, **k: turned(lower_graph(*a, **k)))
    (problem,) = run().problems
    assert problem.startswith("inference: lowering")
    assert "div" in problem  # the step that writes the output
    assert "35 of 35 elements differ" in problem


def test_the_schedule_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusec.pipeline import schedule_program

    def wrong(*args: Any, **kwargs: Any) -> Any:
        made = schedule_program(*args, **kwargs)
        return replace(made, program=turned(made.program))

    monkeypatch.setattr("fusec.pipeline.schedule_program", wrong)
    (problem,) = run().problems
    assert problem.startswith("inference: schedule")
    assert "exp + sum + sub + div" in problem


def test_the_kernel_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusec.pipeline import emit_kernel

    def wrong(*args: Any) -> KernelSource:
        made = emit_kernel(*args)
        text = made.text.replace("- y", "+ y")
        assert text != made.text
        return replace(made, text=text)

    monkeypatch.setattr("fusec.pipeline.emit_kernel", wrong)
    (problem,) = run().problems  # that the host program returns it is not said as well
    assert problem.startswith("inference: kernel sum_sub_div")
    assert "35 of 35 elements differ" in problem


def test_the_host_program_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusec.compiled.part import CompiledPart

    entry = CompiledPart.entry

    def wrong(part: CompiledPart) -> Callable[[list[Any]], list[Any]]:
        run = entry(part)
        return lambda inputs: [output + 1 for output in run(inputs)]

    monkeypatch.setattr(CompiledPart, "entry", wrong)
    (problem,) = run().problems
    assert problem.startswith("inference: host program")


def test_large_loops_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.validate.MOST_POINTS", 30)
    found = run()
    assert (found.calls, len(found.skipped)) == (0, 1)
    assert "35 points" in found.skipped[0]
