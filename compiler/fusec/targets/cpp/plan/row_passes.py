"""The passes of a row as C++ will run them: stores held back, values kept between passes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from fusec.codegen.common.reduction_passes import PassPlan, ReductionPass, plan_passes
from fusec.ir.body import Store, axis_sizes
from fusec.ir.node import Load, Node, Op, Scan
from fusec.ir.scalars import cost_of
from fusec.ir.shapes import product
from fusec.ir.walk import walk
from fusec.targets.cpp.dtypes import C_TYPES
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts


@dataclass(frozen=True)
class RowSteps:
    """What is done for each outer point.

    Attributes:
        passes: In order.
        elementwise: The nodes whose value depends on a reduced axis.
        kept: Elementwise nodes that one pass writes to a scratch row for later passes to read.
        first: Kept node to the pass that computes it.
    """

    passes: tuple[ReductionPass, ...]
    elementwise: frozenset[Node]
    kept: tuple[Node, ...] = ()
    first: dict[Node, int] = field(default_factory=dict)

    def fresh(self, number: int) -> list[Node]:
        """Return what a pass computes, without what an earlier one kept for it."""
        inside = self.passes[number].inside
        return [n for n in inside if n not in self.kept or self.first[n] == number]


def plan_steps(facts: Facts, *, keep: bool = True) -> RowSteps:
    """Return the passes of the body.

    Args:
        facts: What decisions go by.
        keep: Whether there is a place for the values of a whole row.
    """
    plan = plan_passes(facts.body)
    passes = delayed_updates(facts, plan)
    steps = RowSteps(passes, plan.elementwise)
    points = product(axis_sizes(facts.body.reduce_axes)).constant
    if not keep or not choices.may_keep_rows(points):
        return steps
    return _kept_values(facts, steps, points)


def _kept_values(facts: Facts, steps: RowSteps, points: int | None) -> RowSteps:
    """Choose what to keep of a row, and leave it out of the later passes."""
    first: dict[Node, int] = {}
    kept: dict[Node, None] = {}
    innermost = facts.body.reduce_axes[-1:]
    passes = []
    room = choices.SCRATCH_BYTES
    for number, step in enumerate(steps.passes):
        live: set[Node] = set()
        stack = roots(step)
        while stack:
            node = stack.pop()
            if node in live or node not in steps.elementwise:
                continue
            live.add(node)
            # what is the same along the innermost loop is computed outside of it, where no row is
            earlier = first.get(node, number) < number and facts.free[node].issuperset(innermost)
            if earlier and (node in kept or choices.worth_keeping(recomputed(node, steps, kept))):
                size = (points or 0) * node.dtype.itemsize
                if node in kept or (size <= room and node.dtype in C_TYPES):
                    room -= 0 if node in kept else size
                    kept[node] = None
                    continue
            stack.extend(node.args)
        inside = tuple(node for node in facts.body.nodes() if node in live)
        for node in inside:
            first.setdefault(node, number)
        passes.append(replace(step, inside=inside))
    return replace(steps, passes=tuple(passes), kept=tuple(kept), first=first)


def roots(step: ReductionPass) -> list[Node]:
    """Return the values that a pass is there to compute."""
    return [r.args[0] for r in step.reductions] + [s.value for s in step.stores]


def recomputed(node: Node, steps: RowSteps, kept: Collection[Node]) -> int:
    """Return what computing an elementwise node again from the kept ones costs, in additions."""
    total = 0
    seen: set[Node] = set(kept)
    stack = [node]
    while stack:
        current = stack.pop()
        if current in seen or current not in steps.elementwise:
            continue
        seen.add(current)
        if isinstance(current, Op):
            total += cost_of(current.name)
        elif isinstance(current, Scan):
            total += choices.SCAN_COST
        stack.extend(current.args)
    return total


def delayed_updates(facts: Facts, plan: PassPlan) -> tuple[ReductionPass, ...]:
    """Move every store to a buffer that is read too behind the last pass that reads it.

    All values of a point are read before anything is written.
    """
    passes = list(plan.passes)
    nodes = facts.body.nodes()
    for buffer in sorted(facts.updated):
        last = max(
            number
            for number, step in enumerate(passes)
            if any(isinstance(n, Load) and n.buffer == buffer for n in step.before + step.inside)
        )
        for number in range(last):
            whole, rest = split_stores(passes[number].stores, buffer)
            if whole:
                wanted = {n for n in walk(tuple(s.value for s in whole)) if n in plan.elementwise}
                wanted.update(passes[last].inside)
                inside = tuple(node for node in nodes if node in wanted)
                stores = passes[last].stores + whole
                passes[number] = replace(passes[number], stores=rest)
                passes[last] = replace(passes[last], stores=stores, inside=inside)
        for number in range(last + 1):
            single, rest = split_stores(passes[number].row_stores, buffer)
            if single and (number < last or passes[number].loops):
                passes[number] = replace(passes[number], row_stores=rest)
                if last + 1 == len(passes):
                    passes.append(ReductionPass((), (), (), (), ()))
                stores = passes[last + 1].row_stores + single
                passes[last + 1] = replace(passes[last + 1], row_stores=stores)
    return tuple(passes)


def split_stores(
    stores: Sequence[Store], buffer: str
) -> tuple[tuple[Store, ...], tuple[Store, ...]]:
    """Return the stores to ``buffer``, and the others."""
    return (
        tuple(s for s in stores if s.buffer == buffer),
        tuple(s for s in stores if s.buffer != buffer),
    )
