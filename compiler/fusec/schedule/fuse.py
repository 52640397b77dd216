"""Fusion: pairs of computations become one kernel, the pair that saves most bytes first."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from fusec.ir.body import Body, Buffer
from fusec.ir.index import Symbol
from fusec.ir.program import Extern, Program, Step
from fusec.report import FusionDecision
from fusec.schedule import choices
from fusec.schedule.align import Refusal, merge
from fusec.schedule.fusion_groups import Groups
from fusec.schedule.overrides import FORBIDDEN, Overrides
from fusec.schedule.products import join_product
from fusec.schedule.row_and_column import cross_all

# What somebody asks for is tried before anything that merely saves bytes.
_WANTED_FIRST = 1 << 62


@dataclass(frozen=True)
class Fused:
    """What fusion made of the steps of a program.

    Attributes:
        steps: In an order that respects the dependencies.
        decisions: Every fusion made or refused, with its reason.
        buffers: Those of the program, and what kernels leave for others since fusion.
    """

    steps: tuple[Step, ...]
    decisions: tuple[FusionDecision, ...]
    buffers: Mapping[str, Buffer]


def fuse(
    program: Program,
    steps: tuple[Step, ...],
    members: Mapping[str, frozenset[str]] | None = None,
    overrides: Overrides | None = None,
) -> Fused:
    """Return the steps after fusion, and every decision with its reason.

    Args:
        program: What the steps are of.
        steps: With pointwise producers inlined.
        members: Step name to the computations that were inlined into it, and its own name.
        overrides: What somebody wants together or apart; nothing if None.
    """
    overrides = overrides or Overrides()
    groups = Groups(program, steps, members or {})
    mutated = {name for s in steps if isinstance(s, Extern) for name in s.mutates}
    decisions: list[FusionDecision] = []
    refused: dict[tuple[str, str], FusionDecision] = {}
    heap: list[tuple[int, int, int, int, int]] = []

    def push(pairs: set[tuple[int, int]]) -> None:
        for a, b in pairs:
            saved = groups.saved_bytes(a, b)
            first = overrides.wants(groups.members[a], groups.members[b])
            if saved > 0 or first:
                order = saved + _WANTED_FIRST * first
                heapq.heappush(heap, (-order, a, b, groups.version[a], groups.version[b]))

    everything: set[tuple[int, int]] = set()
    for n in range(len(steps)):
        everything |= groups.pairs_of(n) | groups.wanted(n, overrides)
    push(everything)
    while heap:
        negative, a, b, version_a, version_b = heapq.heappop(heap)
        if groups.version[a] != version_a or groups.version[b] != version_b:
            continue
        # Fusions since this pair was pushed may have put its second step before its first.
        a, b = groups.ordered(a, b)
        first, second = groups.compute(a), groups.compute(b)
        assert first is not None
        assert second is not None
        saved = -negative % _WANTED_FIRST
        outcome = _try(groups, a, b, mutated, overrides)
        if isinstance(outcome, Refusal):
            refused[(first.name, second.name)] = FusionDecision(
                first.name, second.name, False, outcome.reason, saved
            )
            continue
        decisions.append(
            FusionDecision(
                first.name, second.name, True, f"saves {saved:,} bytes", saved, by_traffic=True
            )
        )
        keep = groups.replace(a, b, outcome)
        push(groups.pairs_of(keep) | groups.wanted(keep, overrides))
    for decision in cross_all(groups, overrides, mutated):
        refused[(decision.producer, decision.consumer)] = decision  # the later word counts
        refused.pop((decision.consumer, decision.producer), None)
    alive = {step.name for step in groups.steps if step is not None}
    decisions += [d for (x, y), d in refused.items() if x in alive and y in alive]
    return Fused(groups.in_order(), tuple(decisions), groups.buffers)


def _try(groups: Groups, a: int, b: int, mutated: set[str], overrides: Overrides) -> Body | Refusal:
    if overrides.forbids(groups.members[a], groups.members[b]):
        return Refusal(FORBIDDEN)
    first, second = groups.compute(a), groups.compute(b)
    assert first is not None
    assert second is not None
    touched = set(first.reads() + first.writes() + second.reads() + second.writes())
    if mutated & touched:
        return Refusal("an extern call changes one of their tensors in place")
    if first.body.updated() or second.body.updated():
        return Refusal("updates of elements that the data choose have a kernel of their own")
    refusal = _product_refusal(first.body, second.body)
    if refusal is not None:
        return refusal
    unfit = choices.unfit_for_windows(first.body, second.body, groups.buffers)
    if unfit is not None and not overrides.wants(groups.members[a], groups.members[b]):
        return Refusal(unfit)
    if groups.blocked(a, b):
        return Refusal("another step must run between them")
    if len({groups.buffers[name].device for name in touched}) > 1:
        return Refusal("they run on different devices")
    bodies = (first.body, second.body)
    if any(a.size == 0 for body in bodies for a in body.axes + body.reduce_axes):
        return Refusal("one of them has no elements")
    join = join_product if first.body.products else merge
    merged = join(first.body, second.body)
    if isinstance(merged, Refusal):
        return merged
    if overrides.wants(groups.members[a], groups.members[b]):
        return merged
    turned = _turned(first.body, second.body, merged)
    if turned is not None:
        return Refusal(f"one kernel would go through {turned} along its rows and its columns")
    too_large = choices.too_large(merged)
    return Refusal(too_large) if too_large is not None else merged


def _turned(first: Body, second: Body, merged: Body) -> str | None:
    """Return a buffer that is read both ways round if two reductions share their loops, or None.

    Loops over a square fit either way: sums of its rows and of its columns would be one kernel
    that steps from line to line of memory at every element.  Sums of columns are taken as the rows
    pass instead; see ``crossed``.
    """
    if not (first.has_reduction and second.has_reduction):
        return None
    before = [_orders(body) for body in (first, second)]
    for name, orders in _orders(merged).items():
        if len(orders) > max(len(each.get(name, ())) for each in before):
            return name
    return None


def _orders(body: Body) -> dict[str, set[tuple[frozenset[Symbol], ...]]]:
    """Return the loops along the dimensions of each buffer that has more than one, for each way."""
    found: dict[str, set[tuple[frozenset[Symbol], ...]]] = {}
    for load in body.loads():
        order = tuple(frozenset(e.symbols()) for e in load.index)
        if sum(map(bool, order)) > 1:
            found.setdefault(load.buffer, set()).add(order)
    return found


def _product_refusal(first: Body, second: Body) -> Refusal | None:
    """Return why a matrix product does not take the other computation in, or None."""
    if not (first.products or second.products):
        return None
    if first.attends or second.attends:
        return Refusal("attention has a kernel of its own")
    if first.products and second.products:
        return Refusal("a kernel computes one matrix product")
    if second.products:
        return Refusal("a matrix product computes an operand itself only where that is cheap")
    if second.scans():
        return Refusal("a running value of a matrix product has a kernel of its own")
    if not set(first.writes()) & set(second.reads()):
        return Refusal("only what reads a matrix product shares its kernel")
    return None
