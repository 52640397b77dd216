"""What Triton answers cost: counted as their programs run in the interpreter, timed on a GPU."""

from __future__ import annotations

import torch

from fusec.devices import GPU
from fusec.verify.isolation.layout import Case
from fuselab.judge import cases as judge_cases
from fuselab.judge.answer_worker import CLOCK, REPORT
from fuselab.judge.task import TritonTask
from fuselab.judge.trial import AnswerProgram, named, read_text, run, run_patiently, text_area
from fuselab.judge.verdict import SHARE, AnswerFinding

_TIMEOUT = 8.0
_ON_A_GPU = "on this machine's GPU"


def more_findings(task: TritonTask, program: AnswerProgram, timed: bool) -> list[AnswerFinding]:
    """Return what is found out about a right answer beyond that it is right.

    Args:
        task: What is asked.
        program: The answer.
        timed: Whether to time it, where there is a GPU.
    """
    findings = _counts(task, program) if task.limits.counted else []
    if torch.cuda.is_available():
        findings += on_gpu(task, program, timed)
    return findings


def _counts(task: TritonTask, program: AnswerProgram) -> list[AnswerFinding]:
    case = judge_cases.asked(task, judge_cases.made(task, task.timed_size), "", task.timed_size)
    inputs = len(case.inputs)
    given = Case((*case.case.tensors, text_area(1 << 12)))
    operands = [*named(task.arguments[:inputs], [*task.arguments[inputs:], REPORT])]
    plan = [(True, 1)]
    outcome = run_patiently(program, "count", operands, [given], plan=plan, timeout=_TIMEOUT)
    if outcome.finding is not None:
        return [AnswerFinding("kernels", outcome.finding.reason, "counted", False)]
    said = read_text(outcome.runs[0][0].outputs[-1])
    rows = (
        ("kernels", said["kernels"], task.limits.kernels),
        ("bytes", said["bytes"], task.limits.bytes),
    )
    return [
        AnswerFinding(what, f"{found:,}", f"at most {most:,}", found <= most, found)
        for what, found, most in rows
        if most is not None
    ]


def on_gpu(task: TritonTask, program: AnswerProgram, timed: bool) -> list[AnswerFinding]:
    """Compile and run an answer on the GPU; time it if there is a limit of speed.

    Args:
        task: What is asked.
        program: The answer, which is right in the interpreter.
        timed: Whether limits of speed count.
    """
    everything = list(judge_cases.all_asked(task))
    operands = named(
        task.arguments[: len(everything[0].inputs)], task.arguments[len(everything[0].inputs) :]
    )
    plan = [(True, 1), (False, 1)]
    cases = [each.case for each in everything]
    outcome = run(program, "call", operands, cases, plan=plan, timeout=60.0, device=GPU)
    for each, runs in zip(everything, outcome.runs, strict=False):
        wrong = next((w for one in runs if (w := each.wrong(one.outputs))), "")
        if wrong:
            return [AnswerFinding("GPU", f"{wrong} ({each.label})", f"right {_ON_A_GPU}", False)]
    if outcome.finding is not None:
        return [AnswerFinding("GPU", outcome.finding.reason, f"right {_ON_A_GPU}", False)]
    findings = [AnswerFinding("GPU", f"right {_ON_A_GPU}", "the same as eager", True)]
    if timed and task.limits.share is not None:
        findings.append(_speed(task, program))
    return findings


def _speed(task: TritonTask, program: AnswerProgram) -> AnswerFinding:
    wanted = task.limits.share
    assert wanted is not None
    case = judge_cases.asked(task, judge_cases.made(task, task.gpu_size), "", task.gpu_size)
    inputs = len(case.inputs)
    given = Case((*case.case.tensors, torch.zeros(2, dtype=torch.float64)))
    operands = named(task.arguments[:inputs], [*task.arguments[inputs:], CLOCK])
    outcome = run(program, "time", operands, [given], plan=[(True, 1)], timeout=60.0, device=GPU)
    if outcome.finding is not None:
        return AnswerFinding("speed", outcome.finding.reason, f"at least {wanted:.0%}", False)
    wrong = case.wrong(outcome.runs[0][0].outputs[:-1])
    if wrong:
        return AnswerFinding("speed", f"{wrong} (at size {task.gpu_size})", "right", False)
    own, copy = outcome.runs[0][0].outputs[-1].tolist()
    shown = f"{copy / own:.0%} of a copy of the same bytes ({own * 1e6:.3g} µs)"
    return AnswerFinding(SHARE, shown, f"at least {wanted:.0%}", copy / own >= wanted, copy / own)


__all__ = ["more_findings", "on_gpu"]
