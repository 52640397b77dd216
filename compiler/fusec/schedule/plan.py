"""The schedule of a program: its kernels in order, and why they are what they are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from fusec.devices import is_gpu
from fusec.ir.printer import format_program
from fusec.ir.program import Compute, Extern, Program, Step
from fusec.report import FusionDecision
from fusec.schedule import choices_products
from fusec.schedule.behind_products import share_with_awake_threads
from fusec.schedule.fold_bounds import fold_bounds
from fusec.schedule.fuse import fuse
from fusec.schedule.fusion_groups import has_effects
from fusec.schedule.in_place import update_in_place
from fusec.schedule.inline import inline_pointwise, inlined_members
from fusec.schedule.loops import arrange_loops
from fusec.schedule.one_hot import fold_one_hots
from fusec.schedule.overrides import Overrides
from fusec.schedule.overwrite import overwrite
from fusec.schedule.products import as_sum
from fusec.schedule.quantized_operands import QUARTER, packed_operands
from fusec.schedule.redundant_copies import take_over
from fusec.schedule.sink_conversions import sink_conversions


@dataclass(frozen=True)
class Schedule:
    """A scheduled program.

    Attributes:
        program: Its steps are kernels now: fused, loops arranged, dead buffers gone.
        decisions: Every fusion made or refused, with its reason.
    """

    program: Program
    decisions: tuple[FusionDecision, ...]

    def __str__(self) -> str:
        lines = [format_program(self.program), "", "decisions:"]
        for d in self.decisions:
            sign = "+" if d.fused else "-"
            lines.append(f"  {sign} {d.producer} -> {d.consumer}: {d.reason}")
        return "\n".join(lines)


def drop_dead(program: Program) -> Program:
    """Remove computations and stores that nobody reads."""
    needed = set(program.output_buffers()) | set(program.inputs)
    kept = []
    for step in reversed(program.steps):
        if isinstance(step, Compute):
            stores = tuple(s for s in step.body.stores if s.buffer in needed)
            if not stores:
                continue
            if len(stores) != len(step.body.stores):
                step = replace(step, body=replace(step.body, stores=stores))
        elif not set(step.writes()) & needed and step.outputs and not has_effects(step):
            continue
        needed |= set(step.reads())
        kept.append(step)
    return replace(program, steps=tuple(reversed(kept)))


def products_of(program: Program) -> tuple[str, ...]:
    """Return the names of the calls that a kernel could take the place of."""
    return tuple(
        step.name for step in program.steps if isinstance(step, Extern) and step.body is not None
    )


def small_products(program: Program, names: Collection[str]) -> tuple[str, ...]:
    """Return those of the calls of ``products_of`` that kernels are best for without a measurement.

    On a GPU, those that are over sooner than made, those of a vector, those of few rows with a
    weight of few bits, and those that write rows BLAS is slow at.
    """
    packed = packed_operands(program)
    return tuple(
        step.name
        for step in program.steps
        if isinstance(step, Extern)
        and step.name in names
        and step.body is not None
        and is_gpu(program.buffers[step.outputs[0]].device)
        and (
            step.odd_rows
            or step.name in packed
            or choices_products.is_small_product(step.body)
            or choices_products.is_vector_product(step.body, program.buffers)
        )
    )


def with_products(program: Program, products: Collection[str]) -> Program:
    """Put loop nests in the place of the calls named; products of a vector become reductions."""
    packed = packed_operands(program)

    def nest(step: Step) -> Step:
        if not isinstance(step, Extern) or step.body is None or step.name not in products:
            return step
        vector = choices_products.is_vector_product(step.body, program.buffers)
        # two numbers a byte are unpacked side by side for tensor cores
        vector = vector and packed.get(step.name, 1.0) > QUARTER
        return Compute(step.name, as_sum(step.body) if vector else step.body, step.label)

    return replace(program, steps=tuple(nest(step) for step in program.steps))


def schedule_program(
    program: Program,
    overrides: Overrides | None = None,
    products: Collection[str] = (),
    updated: Sequence[str] = (),
) -> Schedule:
    """Fuse and arrange ``program``; must run within the recorder that lowered it.

    Args:
        program: As lowered.
        overrides: What somebody wants together or apart; nothing if None.
        products: The calls of ``products_of`` that become kernels.
        updated: Inputs that the first outputs are copied into afterwards.
    """
    program = drop_dead(with_products(program, products))
    steps, inlined = inline_pointwise(program, overrides)
    steps, taken = take_over(program, steps)
    fused = fuse(program, steps, inlined_members(inlined), overrides)
    program = replace(program, steps=fused.steps, buffers=fused.buffers)
    arranged = tuple(
        replace(step, body=arrange_loops(fold_bounds(fold_one_hots(step.body)), program.buffers))
        if isinstance(step, Compute) and not step.body.products
        else step
        for step in program.steps
    )
    arranged = sink_conversions(arranged, program.inputs, program.buffers)
    used = set(program.inputs) | program.output_buffers()
    for step in arranged:
        used |= set(step.reads()) | set(step.writes())
    buffers = {name: buffer for name, buffer in program.buffers.items() if name in used}
    scheduled = replace(program, steps=arranged, buffers=buffers)
    scheduled, placed = update_in_place(scheduled, updated)
    scheduled, over = overwrite(scheduled)
    scheduled = share_with_awake_threads(scheduled)
    return Schedule(scheduled, (*inlined, *taken, *fused.decisions, *placed, *over))
