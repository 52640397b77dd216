"""``judge(task, text)``: rules, then the answer on inputs, then counts, then times."""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fusec.errors import CompileError, FusecError
from fusec.target_api.base import LibraryTarget
from fusec.target_api.registry import find_target
from fusec.verify.isolation.layout import Case
from fusec.verify.isolation.process import WorkerError
from fusec.verify.isolation.sandbox import read_library
from fusec.verify.static.binary import problem as binary_problem
from fusec.verify.static.cpp_text import source_problem
from fuselab.errors import NotJudged
from fuselab.judge import cases as judge_cases
from fuselab.judge import triton_findings as judge_triton
from fuselab.judge.answer_worker import REPORT
from fuselab.judge.cases import Asked
from fuselab.judge.cpp_rules import broken_cpp_rule
from fuselab.judge.rules import BrokenRule, broken_rule, broken_triton_rule, forbidden_operator
from fuselab.judge.speed import measure, reaches
from fuselab.judge.task import (
    CppTask,
    FunctionTask,
    Limits,
    PythonTask,
    Task,
    TensorTask,
    TritonTask,
)
from fuselab.judge.trial import (
    AnswerProgram,
    is_busy,
    modules_for,
    named,
    prepare_modules,
    raised,
    read_text,
    run_patiently,
    text_area,
)
from fuselab.judge.verdict import SHARE, AnswerFinding, AnswerVerdict

_TIMEOUT = 2.5
_COUNTING = 8.0  # the compiler is at work
_INTERPRETED = 4.0  # Triton's interpreter runs program by program
_PATIENCE = 20.0  # times what eager took on everything
_REPORT = 1 << 18
_ATTEMPTS = 3


class _Ended(Exception):  # it carries a verdict out of the steps, no news
    """Ends judging."""

    def __init__(
        self, stage: str, reason: str, line: int | None = None, found: Sequence[AnswerFinding] = ()
    ) -> None:
        self.verdict = AnswerVerdict("", False, stage, reason, 0.0, line, tuple(found))
        super().__init__(reason)


def judge(task: Task, text: str, *, timed: bool = True) -> AnswerVerdict:
    """Judge an answer.

    Args:
        task: What is asked.
        text: The answer's source.
        timed: Whether to measure what the task limits in speed; without, that is left out.

    Returns:
        The first thing that is wrong, in words, or how good the answer is.

    Raises:
        NotJudged: The machine, not the answer, was in the way.
    """
    began = time.perf_counter()
    try:
        if isinstance(task, PythonTask):
            found = _python(task, text)
        elif isinstance(task, TensorTask):
            found = _tensors(task, text, timed)
        else:
            raise TypeError(f"{type(task).__name__} is not a kind of task")
    except _Ended as ended:
        found = ended.verdict
    except WorkerError as error:
        raise NotJudged(str(error)) from None
    return replace(found, task=task.name, seconds=time.perf_counter() - began)


def judge_for_points(task: Task, text: str, *, timed: bool = True) -> AnswerVerdict:
    """Judge an answer; up to three times where others had the machine and the clock refused it.

    Args:
        task: What is asked.
        text: The answer's source.
        timed: Whether to measure what the task limits in speed.

    Returns:
        The best verdict.

    Raises:
        NotJudged: The machine, not the answer, was in the way each time; or others had it and a
            right answer was a little too slow.
    """
    best: AnswerVerdict | None = None
    for attempt in range(_ATTEMPTS):
        try:
            found = judge(task, text, timed=timed)
        except NotJudged:
            if best is None and attempt == _ATTEMPTS - 1:
                raise
            continue
        if best is None or found.score > best.score:
            best = found
        if found.ok or found.stage != "speed" or not is_busy():
            return best
    assert best is not None
    slow = [each for each in best.findings if not each.ok and best.stage == "speed"]
    narrowly = isinstance(task, TensorTask) and all(_nearly(task.limits, each) for each in slow)
    if slow and narrowly and is_busy():
        first = slow[0]
        raise NotJudged(
            f"others have the processors, and it is nearly as fast as asked: {first.what}: "
            f"{first.found}, where {first.wanted} is asked for"
        )
    return best


def _nearly(limits: Limits, finding: AnswerFinding) -> bool:
    """Whether others' work may have been in the way; what is no faster than the start is slow.

    A share of a copy takes several processors at once: on a busy machine it says nothing.
    """
    least = {SHARE: 0.0, "speed": (limits.factor or 1.0) ** 0.5}
    return finding.value is not None and finding.value >= least[finding.what]


def warm_up(tasks: Sequence[Task]) -> None:
    """Get ready to judge answers to some tasks, behind the scenes: the first verdict waits less."""
    modules: dict[str, None] = {}
    for task in tasks:
        triton = isinstance(task, TritonTask)
        if triton and importlib.util.find_spec("triton") is None:
            continue
        counted = isinstance(task, FunctionTask) and task.limits.counted
        modules |= dict.fromkeys(
            modules_for(AnswerProgram(task.entry, triton=triton), counted=counted)
        )
    prepare_modules(modules)


def _keep(refusal: BrokenRule | None) -> None:
    if refusal is not None:
        raise _Ended("rules", refusal.reason, refusal.line)


# -- plain Python ---------------------------------------------------------------------------


def _python(task: PythonTask, text: str) -> AnswerVerdict:
    _keep(broken_rule(text, task.entry, torch=False, imports=task.imports))
    calls = task.calls(random.Random(random.SystemRandom().getrandbits(63)))
    program = AnswerProgram(task.entry, text, provides=task.provides, after=task.after)
    case = Case((text_area(_REPORT),))
    outcome = run_patiently(
        program,
        "values",
        named([], [REPORT]),
        [case],
        plan=[(True, 1)],
        timeout=_TIMEOUT,
        more={"calls": calls},
    )
    if outcome.finding is not None:
        raise _Ended("runs", outcome.finding.reason, outcome.finding.line)
    results = read_text(outcome.runs[0][0].outputs[0])
    if isinstance(results, dict):
        at = "it" if task.after else task.shown(task.entry, calls[results["call"]])
        raise _Ended("runs", f"{at} {raised(results)}", results["line"])
    try:
        wrong = task.check(calls, results)
    except Exception as error:
        # Of a kind, or a size, that no right answer has.
        wrong = f"what it returns cannot be held against what is right: {error}"
    if wrong:
        raise _Ended("right", wrong)
    alone = task.after or len(calls) == 1
    tried = "right" if alone else f"right on {len(calls)} calls"
    return AnswerVerdict("", True, "passed", f"It is {tried}.", 1.0)


# -- tensors --------------------------------------------------------------------------------


def _tensors(task: TensorTask, text: str, timed: bool) -> AnswerVerdict:
    program = _program(task, text)
    findings = [_right(task, program)]
    if isinstance(task, FunctionTask) and task.limits.counted:
        findings += _counts(task, program)
    if isinstance(task, TritonTask):
        findings += judge_triton.more_findings(task, program, timed)
    elif timed and task.limits.timed:
        findings += _speeds(task, program)
    bad = next((each for each in findings if not each.ok), None)
    if bad is not None:
        own = len(findings) - task.given  # at least one: what was given is right
        score = max(0.0, (sum(each.ok for each in findings) - task.given) / own)
        stage = "counts" if bad.what in {"kernels", "calls", "breaks", "bytes"} else "speed"
        reason = f"it is right, but {bad.what}: {bad.found}, where {bad.wanted} is asked for"
        if stage == "speed" and is_busy():
            reason += "; others want the processors, too: judge it again when they are free"
        return AnswerVerdict("", False, stage, reason, score, None, tuple(findings))
    return AnswerVerdict("", True, "passed", "", 1.0, None, tuple(findings))


def _program(task: TensorTask, text: str) -> AnswerProgram:
    if isinstance(task, FunctionTask):
        _keep(broken_rule(text, task.entry, torch=True, forbids=task.forbids))
        return AnswerProgram(task.entry, text)
    if isinstance(task, TritonTask):
        if importlib.util.find_spec("triton") is None:
            raise _Ended("runs", "this task needs Triton, which is not installed here")
        _keep(broken_triton_rule(text, task.entry, task.arguments))
        return AnswerProgram(task.entry, text, triton=True)
    assert isinstance(task, CppTask)
    _keep(broken_cpp_rule(text, task.entry, task.declaration, task.forbids, small=task.small))
    return build_cpp(task, text)


def build_cpp(task: CppTask, text: str) -> AnswerProgram:
    """Build a kernel.

    Raises:
        _Ended: It does not compile.
    """
    target = find_target(task.target)
    assert isinstance(target, LibraryTarget)
    try:
        library = target.compile(text, edited=True)
    except CompileError as error:
        first = next((d for d in error.diagnostics if d.severity == "error"), None)
        line = first.line if first else None
        said = first.message if first else error.message
        raise _Ended("compile", f"it does not compile: {said}", line) from None
    except FusecError as error:
        raise _Ended("compile", str(error)) from None
    # What its text hides (a continued line, a raw string) its machine code shows.
    facts = read_library(library)
    found = source_problem(text, instead="") or binary_problem(
        facts, text, target.instruction_line, instead=""
    )
    if found is not None:
        raise _Ended("rules", f"it {found.reason}", found.line)
    return AnswerProgram(task.entry, library=str(library))


def _threads() -> int:
    return max(2, torch.get_num_threads())


def _right(task: TensorTask, program: AnswerProgram) -> AnswerFinding:
    """Run it on everything; the first wrong result ends it."""
    began = time.perf_counter()
    everything: list[Asked] = list(judge_cases.all_asked(task))
    # Who is slow with eager, too, gets more time: a large input, or a slow or busy machine.
    least = _INTERPRETED if isinstance(task, TritonTask) else _TIMEOUT
    timeout = max(least, 1.0 + _PATIENCE * (time.perf_counter() - began))
    cases = []
    for each in everything:
        numbers = task.numbers(*each.inputs) if isinstance(task, CppTask) else ()
        cases.append(replace(each.case, sizes=numbers))
    count = len(everything[0].inputs)
    operands = named(*_operand_names(task, count, len(everything[0].eager)))
    many = _threads()
    plan = [(True, many), (False, 1), (True, many)]
    if isinstance(task, TritonTask):  # it runs one program after the other, slowly
        plan = [(True, 1), (False, 1)]
    outcome = run_patiently(program, "call", operands, cases, plan=plan, timeout=timeout)
    for each, runs, between in zip(everything, outcome.runs, outcome.between, strict=False):
        if between is not None:
            raise _Ended("right", f"it {between.reason} ({each.label})", between.line)
        for one in runs:
            wrong = each.wrong(one.outputs)
            if wrong:
                raise _Ended("right", f"{wrong} ({each.label})")
    if outcome.finding is not None:
        found = outcome.finding
        label = everything[min(len(outcome.runs), len(everything) - 1)].label
        stage = found.stage if found.stage in {"runs", "compile"} else "right"
        raise _Ended(stage, f"{found.reason} ({label})", found.line)
    tried = f"as eager and float64 on {len(cases)} sets of inputs, {len(plan)} runs each"
    return AnswerFinding("results", tried, "the same as eager", True)


def _operand_names(task: TensorTask, inputs: int, outputs: int) -> tuple[list[str], list[str]]:
    if isinstance(task, CppTask | TritonTask):
        return list(task.arguments[:inputs]), list(task.arguments[inputs:])
    return (
        [f"argument {n}" for n in range(inputs)],
        ["the result"] if outputs == 1 else [f"result {n}" for n in range(outputs)],
    )


def _counts(task: FunctionTask, program: AnswerProgram) -> list[AnswerFinding]:
    asked = judge_cases.asked(task, judge_cases.made(task, task.timed_size), "", task.timed_size)
    case = Case((*asked.case.tensors, text_area(_REPORT)))
    names, results = _operand_names(task, len(asked.inputs), len(asked.eager))
    operands = named(names, [*results, REPORT])
    outcome = run_patiently(program, "count", operands, [case], plan=[(True, 1)], timeout=_COUNTING)
    if outcome.finding is not None:
        reason = f"the compiler cannot follow it: {outcome.finding.reason}"
        raise _Ended("counts", reason, outcome.finding.line)
    *computed, report = outcome.runs[0][0].outputs
    wrong = asked.wrong(tuple(computed))
    if wrong:
        reason = f"what the compiler is shown is not what is computed otherwise: {wrong}"
        raise _Ended("counts", reason)
    said: dict[str, Any] = read_text(report)
    operator = forbidden_operator(said["operators"], task.forbids)
    if operator:
        raise _Ended("rules", f"it calls `{operator}`, which is what you are to write yourself")
    totals = said["totals"]
    moved = totals["read_bytes"] + totals["written_bytes"]
    limits = task.limits
    rows: tuple[tuple[str, int, int | None, list[str]], ...] = (
        ("breaks", totals["graph_breaks"], limits.breaks, said["breaks"]),
        ("calls", totals["extern_calls"], limits.calls, said["calls"]),
        ("kernels", totals["kernels"], limits.kernels, said["kernels"]),
        ("bytes", moved, limits.bytes, []),
    )
    return [
        AnswerFinding(what, _listed(found, names), f"at most {most:,}", found <= most, found)
        for what, found, most, names in rows
        if most is not None
    ]


def _listed(count: int, names: Sequence[str]) -> str:
    return f"{count:,} ({'; '.join(names[:4])})" if names else f"{count:,}"


def _speeds(task: TensorTask, program: AnswerProgram) -> list[AnswerFinding]:
    baseline = None
    if task.baseline:
        baseline = (
            build_cpp(task, task.baseline)
            if isinstance(task, CppTask)
            else AnswerProgram(task.entry, task.baseline)
        )
    # Threads that wait for each other say nothing while others have the processors: with one, then.
    single = task.limits.share is None and is_busy()
    found = measure(task, program, baseline, 1 if single else _threads())
    if single and isinstance(task, CppTask) and not (found.problem or reaches(task, found)):
        found = measure(task, program, baseline, _threads())  # it may have threads of its own
    if found.problem:
        raise _Ended("speed", found.problem)
    findings = []
    # It waited for processors, so its work is what was compared.
    alone = ", were every thread's processor free" if found.worked else ""
    if task.limits.share is not None:
        wanted = task.limits.share
        took = f"{found.seconds * 1e3:.3g} ms{alone}"
        shown = f"{found.share:.0%} of a copy of the same bytes ({took})"
        asked = f"at least {wanted:.0%}" if wanted else "as much as you can"
        findings.append(AnswerFinding(SHARE, shown, asked, found.share >= wanted, found.share))
    if task.limits.factor is not None:
        factor, wanted = found.factor, task.limits.factor
        assert found.baseline is not None
        shown = f"{factor:.3g} times the baseline's ({found.seconds * 1e3:.3g} ms a call{alone})"
        asked = f"at least {wanted:g} times"
        findings.append(AnswerFinding("speed", shown, asked, factor >= wanted, factor))
    return findings


__all__ = ["judge", "judge_for_points", "warm_up"]
