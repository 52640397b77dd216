"""How the kernels of whole programs are written: plans, tunables, and a short digest of each text.

A digest that changes says that a text has; the golden files of single kernels show how.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import pytest

from fusec.ir.node import recording
from fusec.ir.program import Compute, Program
from fusec.machine import using
from fusec.schedule.plan import schedule_program
from fusec.target_api.registry import find_target
from fusec.tunables import read_tunables
from support.decisions import compare_part
from support.more_programs import MORE, PRODUCTS
from support.random_steps import Steps
from support.whole_programs import CASES, MACHINE, compare_program, scheduled

DEVICES = {"cpp": "cpu", "plain": "cpu", "triton": "cuda"}


def lines(name: str, case: str) -> Iterable[str]:
    with scheduled(case, DEVICES[name]) as made:
        yield from written(name, made.program)


def written(name: str, program: Program) -> Iterable[str]:
    target = find_target(name)
    for step in program.steps:
        if not isinstance(step, Compute):
            continue
        source = target.emit(step, program.buffers)
        digest = hashlib.sha256(source.text.encode()).hexdigest()[:8]
        moved = f"{source.read_bytes:,} in, {source.written_bytes:,} out"
        did = f"{source.operations:,} operations"
        yield f"{step.name}: {source.summary}; {moved}, {did}; {digest}"
        knobs = [
            f"{t.name}={t.value} of {' '.join(map(str, t.choices))}"
            for t in read_tunables(source.text)
        ]
        if knobs:
            yield f"  {'; '.join(knobs)}"
        yield from (f"  {line}" for line in source.plan.splitlines())
        if source.strategy or source.alternatives:
            yield f"  {source.strategy} ({'; '.join(source.alternatives)})"


@pytest.mark.parametrize(
    ("case", "name"),
    [(c, n) for c in CASES for n in DEVICES if n != "plain" or c not in (PRODUCTS | MORE)],
)
def test_how_kernels_are_written(case: str, name: str) -> None:
    compare_program(f"kernels_{name}", case, lines(name, case))


@pytest.mark.parametrize("seed", range(240, 320))
def test_how_kernels_of_random_steps_are_written(seed: int) -> None:
    """On a CPU and on a GPU in turn."""
    name = "triton" if seed % 2 else "cpp"
    with using(MACHINE), recording():
        program, updated = Steps(seed, DEVICES[name]).program()
        made = schedule_program(program, updated=updated).program
        found = [line for line in written(name, made) if not line.startswith("  ")]
    compare_part("kernels_of_steps", f"seed {seed}", found)
