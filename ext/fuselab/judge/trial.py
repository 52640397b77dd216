"""Runs an answer in a process that is thrown away, on inputs that it has not seen."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fusec.devices import CPU
from fusec.ir.index import Expr
from fusec.kernel_source import Argument, Role, Signature
from fusec.verify import words
from fusec.verify.isolation.layout import Case, CaseLayout
from fusec.verify.isolation.process import WorkerError
from fusec.verify.isolation.sandbox import ask, worker
from fusec.verify.protocol import Message
from fusec.verify.words import Finding, Run
from fuselab.errors import NotJudged
from fuselab.judge.answer_worker import FILE

_PYTHON, _TRITON = "fuselab.judge.answer_worker", "fuselab.judge.triton_worker"
# What the process that is forked has imported beforehand.
_COUNTING = ["fusec.api", _PYTHON]
_INTERPRETING = ["triton.language", "triton.runtime.interpreter", _TRITON]
# The process ends an answer at its limit; if it does not, this much later it is taken for dead.
# A machine with much else to do may keep it from its processor for that long.
_GRACE = 60.0
# Times what an answer may take, where it has had to wait for a processor.
_LONGER = (1.0, 3.0, 10.0)
_WORKED = 0.8  # of its time; who has worked as long is late by himself


@dataclass(frozen=True)
class AnswerProgram:
    """An answer, ready to be run.

    Attributes:
        entry: Its function.
        text: Its source; empty for a kernel, which is built.
        library: The built kernel; empty for Python.
        provides: What stands before the text.
        after: What stands after it and defines ``run``, which is called then; empty for none.
        triton: Whether the text is a Triton file.
        imports: Modules that its process has imported beforehand.
    """

    entry: str
    text: str = ""
    library: str = ""
    provides: str = ""
    after: str = ""
    triton: bool = False
    imports: tuple[str, ...] = ()


@dataclass(frozen=True)
class AnswerOutcome:
    """What came of running an answer on some cases.

    Attributes:
        runs: For each case that came to its end, what each run wrote where it differs.
        between: For each of those, what its runs say when held against each other.
        finding: What went wrong with the case after those; None if nothing.
        seconds: How long the process took, by the clock of the one that it was forked from.
        processor: For how long it has had a processor, as the system says.
    """

    runs: tuple[tuple[Run, ...], ...]
    between: tuple[Finding | None, ...]
    finding: Finding | None
    seconds: float
    processor: float

    @property
    def timed_out(self) -> bool:
        """Whether it did not come to its end in time."""
        return self.finding is not None and self.finding.stage == "timeout"


def _modules(program: AnswerProgram, way: str) -> list[str]:
    if program.triton:
        return _INTERPRETING
    return [*program.imports, *(_COUNTING if way == "count" else [_PYTHON])]


# What the process with this id has imported.
_warm: dict[int | None, set[str]] = {}
_warming = threading.Lock()
_IMPORTING = 120.0  # seconds; imports are no part of an answer's time


def prepare_modules(modules: Iterable[str]) -> None:
    """Start the process that answers are forked from, and import what they need, behind the scenes.

    Nothing is said where it fails: whoever judges will say it.
    """

    def do() -> None:
        with contextlib.suppress(WorkerError, OSError):
            import_modules(list(modules))

    threading.Thread(target=do, name="fuselab-judge", daemon=True).start()


def import_modules(modules: Sequence[str]) -> None:
    """Have the process that answers are forked from import what they need, if it has not.

    Raises:
        WorkerError: It cannot.
    """
    with _warming:
        wanted = [name for name in modules if name not in _warm.get(worker().pid, ())]
        if not wanted:
            return
        reply = worker().ask({"do": "import", "modules": wanted}, (), _IMPORTING)
        if "failed" in reply:
            raise WorkerError(reply["failed"])
        pid = worker().pid
        known = _warm.get(pid, set())
        _warm.clear()
        _warm[pid] = known | set(wanted)


def modules_for(program: AnswerProgram, *, counted: bool) -> list[str]:
    """Return what the process imports beforehand that a program runs in."""
    ways = ("call", "count") if counted else ("call",)
    return [name for way in ways for name in _modules(program, way)]


def named(inputs: Sequence[str], outputs: Sequence[str]) -> list[tuple[str, Role]]:
    """Return operands: inputs, then outputs."""
    found: list[tuple[str, Role]] = [(name, "in") for name in inputs]
    return found + [(name, "out") for name in outputs]


def run(
    program: AnswerProgram,
    way: str,
    operands: Sequence[tuple[str, Role]],
    cases: Sequence[Case],
    *,
    plan: Sequence[tuple[bool, int]],
    timeout: float,
    more: Mapping[str, Any] | None = None,
    device: str = CPU,
) -> AnswerOutcome:
    """Run an answer on cases, until one goes wrong.

    Args:
        program: The answer.
        way: ``call``, ``time``, ``count`` or ``values``.
        operands: Name and role of each of a case's tensors.
        cases: On what.
        plan: Of each run, whether arguments lie against their ends, and the threads.
        timeout: Seconds for all cases together.
        more: What else the process has to know.
        device: Where.

    Raises:
        WorkerError: The process cannot be started.
    """
    arguments = [
        Argument(name, tensor.dtype, _exprs(tensor.shape), _exprs(tensor.stride()), role)
        for (name, role), tensor in zip(operands, cases[0].tensors, strict=True)
    ]
    signature = Signature(tuple(arguments))
    layout = CaseLayout(signature, cases, runs=len(plan))
    body: Message = {
        "worker": _TRITON if program.triton else _PYTHON,
        "entry": program.entry,
        "text": program.text,
        "library": program.library,
        "provides": program.provides,
        "after": program.after,
        "file": FILE,
        "way": way,
        "operands": list(operands),
        "checks": (),
        "threads": max(threads for _, threads in plan),
        "runs": list(plan),
        "timeout": timeout / len(cases),
        "device": device,
        "cases": layout.described,
        "endure": None,
        **(more or {}),
    }
    if device == CPU:
        import_modules(_modules(program, way))
    with layout.files(json.dumps(body).encode()) as (data_file, result_file, place):
        request: Message = {
            "do": "run",
            "modules": _modules(program, way),
            "timeout": timeout,
            "step": timeout,
            "body": place,
        }
        if device == CPU:
            reply = worker().ask(request, (data_file, result_file), timeout + _GRACE)
        else:
            reply = ask(device, request, (data_file, result_file), timeout)
        if "failed" in reply:
            raise WorkerError(reply["failed"])
        done = [report["done"] for report in reply["reports"] if "done" in report]
        runs = [layout.results(result_file, n, each["same"]) for n, each in enumerate(done)]
    between = [words.compare_runs(signature, found) for found in runs]
    between = [None if each and each.stage == "passed" else each for each in between]
    ended = len(done) == len(cases)
    finding = None if ended else _finding(reply, signature, cases[len(done)])
    seconds = float(reply["seconds"])
    processor = float(reply.get("processor", seconds))  # a GPU's worker does not say
    return AnswerOutcome(tuple(map(tuple, runs)), tuple(between), finding, seconds, processor)


def run_patiently(
    program: AnswerProgram,
    way: str,
    operands: Sequence[tuple[str, Role]],
    cases: Sequence[Case],
    *,
    plan: Sequence[tuple[bool, int]],
    timeout: float,
    more: Mapping[str, Any] | None = None,
) -> AnswerOutcome:
    """Run an answer as ``run`` does; with more time where it had to wait for a processor.

    What it may take is time on a processor: the clock goes on while others have the machine.

    Raises:
        NotJudged: It waited all the time.
        WorkerError: The process cannot be started.
    """
    for times in _LONGER:
        limit = times * timeout
        outcome = run(program, way, operands, cases, plan=plan, timeout=limit, more=more)
        waited = outcome.processor < _WORKED * timeout
        if not outcome.timed_out or not (waited or (times == 1.0 and is_busy())):
            return outcome
        if way != "time":
            # Threads that wait for each other on a busy machine take ages: with one, again.
            plan = [(against, 1) for against, _ in plan]
    if waited:
        had = f"had a processor for {outcome.processor:.1f} s of {outcome.seconds:.0f}"
        raise NotJudged(f"it {had}, and waited for the rest of the time")
    return outcome


def is_busy() -> bool:
    """Whether more wants to run here than there are processors; False where nobody says."""
    load = getattr(os, "getloadavg", None)
    try:
        return load is not None and load()[0] > (os.cpu_count() or 1)
    except OSError:
        return False


def _finding(reply: Message, signature: Signature, case: Case) -> Finding:
    for report in reply["reports"]:
        result = report.get("result", {})
        if result.get("problem") == "exception":
            kind, message = result["type"], result["message"]
            if kind in {"WrongShape", "LeftBehind", "NothingStarted", "Meddled"}:
                return Finding("wrong", message)
            if kind in {"OutOfBounds", "Race"}:
                return Finding("wrong", message, result["line"])
            if kind == "FrontEndRefusal":
                line, said = json.loads(message)
                return Finding("compile", f"Triton refuses it: {said}", line)
            return Finding("runs", f"it {raised(result)}", result["line"])
    found = words.finding(reply, signature, case.shapes)
    if found is None:
        return Finding("runs", "it did not come to its end")
    return replace(found, reason=f"it {found.reason}")


def raised(report: Message) -> str:
    """Return in words which exception a report is of."""
    said = ": ".join(filter(None, (report["type"], report["message"][:300])))
    alone = "; an answer stands alone: it has to define all that it uses"
    return f"raises {said}{alone if report['type'] == 'NameError' else ''}"


def _exprs(numbers: Sequence[int]) -> tuple[Expr, ...]:
    return tuple(Expr.of(int(number)) for number in numbers)


def text_area(size: int) -> torch.Tensor:
    """Return a tensor that takes a text."""
    return torch.zeros(size, dtype=torch.uint8)


def read_text(area: torch.Tensor) -> Any:
    """Return the JSON value that a process has written."""
    data = bytes(area.numpy().tobytes()).rstrip(b"\0")
    return json.loads(data)


__all__ = [
    "AnswerOutcome",
    "AnswerProgram",
    "is_busy",
    "modules_for",
    "named",
    "prepare_modules",
    "raised",
    "read_text",
    "run",
    "run_patiently",
    "text_area",
]
