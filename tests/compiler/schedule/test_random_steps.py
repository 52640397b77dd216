"""What is decided about random programs of a few steps: a line each, and a digest of all of it."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable

import pytest

from fusec.ir.node import recording
from fusec.ir.printer import format_body
from fusec.ir.program import Compute, Program, Step
from fusec.ir.verifier import check_program
from fusec.machine import using
from fusec.schedule.align import Refusal, merge
from fusec.schedule.loop_overrides import with_loop_overrides
from fusec.schedule.overrides import LoopOverride, Overrides, pair
from fusec.schedule.plan import Schedule, schedule_program
from fusec.schedule.step_graph import fusion_view
from support.decisions import compare_part
from support.random_steps import Steps
from support.whole_programs import MACHINE


def digest(told: object) -> str:
    return hashlib.sha256(str(told).encode()).hexdigest()[:8]


def written(step: Step) -> str:
    if isinstance(step, Compute):
        return f"{step.label} {format_body(step.body)}"
    return f"{step.args} {step.mutates}"


def asked(seed: int, program: Program) -> Overrides | None:
    """Return what somebody wants of it, in one program of four."""
    if seed % 4:
        return None
    choose = random.Random(seed)
    names = [step.name for step in program.steps if isinstance(step, Compute)]
    pairs = [pair(*choose.sample(names, 2)) for _ in range(3) if len(names) > 1]
    return Overrides(frozenset(pairs[:1]), frozenset(pairs[1:]))


def texts(scheduled: Schedule) -> Iterable[str]:
    program = scheduled.program
    for step in program.steps:
        yield f"{step.name} {step.writes()} {written(step)}"
    yield str(program.outputs)
    yield str(sorted(program.buffers))
    for d in scheduled.decisions:
        yield f"{'+' if d.fused else '-'} {d.producer} {d.consumer} {d.bytes_saved} {d.reason}"


def told(seed: int) -> str:
    with using(MACHINE), recording():
        program, updated = Steps(seed, "cuda" if seed % 2 else "cpu").program()
        assert not check_program(program)
        scheduled = schedule_program(program, asked(seed, program), updated=updated)
        assert not check_program(scheduled.program)
        counts = Counter("+" if d.fused else "-" for d in scheduled.decisions)
        view = fusion_view(program, scheduled.program, scheduled.decisions)
        named = LoopOverride(program.steps[0].name, "rows", (("BLOCK", 8),))
        looped = with_loop_overrides(program, scheduled, [named]).program.steps
        return (
            f"{len(program.steps)} steps, {len(scheduled.program.steps)} left, "
            f"{counts['+']} joined, {counts['-']} not; {digest(list(texts(scheduled)))} "
            f"{digest(view)} {digest([getattr(step, 'strategy', '') for step in looped])}"
        )


@pytest.mark.parametrize("seed", range(240))
def test_what_is_decided_about_a_random_program(seed: int) -> None:
    compare_part("random_steps", f"seed {seed}", [told(seed)])


@pytest.mark.parametrize("seed", range(40))
def test_which_kernels_fit_together(seed: int) -> None:
    """Any two of a program's, the other way round, too, whatever else runs between them."""
    found = []
    with using(MACHINE), recording():
        program, _ = Steps(1000 + seed, "cpu").program()
        kernels = [step for step in program.steps if isinstance(step, Compute)]
        for first in kernels:
            for second in kernels:
                if second is first:
                    continue
                merged = merge(first.body, second.body, onto_first=bool(seed % 2))
                reason = (
                    merged.reason if isinstance(merged, Refusal) else digest(format_body(merged))
                )
                found.append(f"{first.name} {second.name}: {reason}")
    compare_part("merged_steps", f"seed {seed}", found)
