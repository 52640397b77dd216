"""Fusion: pairs of computations become one kernel, the pair that saves most bytes first."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

import torch

from fusec.ir.body import Body, Compute, Extern, Program, Step
from fusec.report import FusionDecision
from fusec.schedule import choices
from fusec.schedule.align import Refusal, merge
from fusec.schedule.products import join_product
from fusec.schedule.wishes import FORBIDDEN, Wishes

# A buffer with more readers than this offers only neighboring readers as pairs, so that the
# number of pairs stays linear in the size of the graph.
MAX_PAIRED_READERS = 8
# What somebody asks for is tried before anything that merely saves bytes.
_WANTED_FIRST = 1 << 62


class _Groups:
    """The steps under fusion, with who depends on whom as bit sets over step positions."""

    def __init__(
        self, program: Program, steps: tuple[Step, ...], members: Mapping[str, frozenset[str]]
    ) -> None:
        self.program = program
        self.steps: list[Step | None] = list(steps)
        self.version = [0] * len(steps)
        self.position = {step.name: n for n, step in enumerate(steps)}
        # The computations of the lowered program that each group has in it.
        self.members = [members.get(step.name, frozenset((step.name,))) for step in steps]
        self.before = [0] * len(steps)  # bit k: step k must run earlier
        self.after = [0] * len(steps)
        self.kept = program.output_buffers() | set(program.inputs)
        self.readers: dict[str, set[int]] = {}
        self.writer: dict[str, int] = {}
        self._link()

    def _link(self) -> None:
        last_write: dict[str, int] = {}
        reads_since: dict[str, list[int]] = {}
        last_effect: int | None = None
        for n, step in enumerate(self.steps):
            assert step is not None
            direct = 0
            if isinstance(step, Extern) and has_effects(step):
                # random numbers and the like come in eager's own order
                if last_effect is not None:
                    direct |= 1 << last_effect
                last_effect = n
            for name in step.reads():
                self.readers.setdefault(name, set()).add(n)
                if name in last_write:
                    direct |= 1 << last_write[name]
            for name in step.writes():
                if name in last_write:
                    direct |= 1 << last_write[name]
                for reader in reads_since.get(name, ()):
                    direct |= 1 << reader
                last_write[name] = n
                reads_since[name] = []
                self.writer[name] = n
            for name in step.reads():
                reads_since.setdefault(name, []).append(n)
            direct &= ~(1 << n)
            total = direct
            for k in _bits(direct):
                total |= self.before[k]
            self.before[n] = total
            for k in _bits(total):
                self.after[k] |= 1 << n

    def compute(self, n: int) -> Compute | None:
        step = self.steps[n]
        return step if isinstance(step, Compute) else None

    def pairs_of(self, n: int) -> set[tuple[int, int]]:
        """Return candidate pairs with step ``n``: its producers, consumers and co-readers."""
        step = self.compute(n)
        if step is None:
            return set()
        found: set[tuple[int, int]] = set()
        for name in step.writes():
            found |= {(n, r) for r in self.readers.get(name, ()) if r != n}
        for name in step.reads():
            if name in self.writer and self.writer[name] != n:
                found.add((self.writer[name], n))
            others = sorted(self.readers.get(name, ()))
            if len(others) > MAX_PAIRED_READERS:
                at = others.index(n) if n in others else 0
                others = others[max(at - 2, 0) : at + 3]
            found |= {(min(n, r), max(n, r)) for r in others if r != n}
        return {
            self.ordered(a, b)
            for a, b in found
            if self.compute(a) is not None and self.compute(b) is not None
        }

    def wanted(self, n: int, wishes: Wishes) -> set[tuple[int, int]]:
        """Return the pairs with step ``n`` that somebody asked for."""
        if not wishes.together or self.compute(n) is None:
            return set()
        return {
            self.ordered(n, other)
            for other in range(len(self.steps))
            if other != n
            and self.compute(other) is not None
            and wishes.wants(self.members[n], self.members[other])
        }

    def ordered(self, a: int, b: int) -> tuple[int, int]:
        """Return the pair with the one that must run first in front."""
        return (b, a) if self.before[a] >> b & 1 else (a, b)

    def saved_bytes(self, a: int, b: int) -> int:
        """Return the memory traffic that one kernel for both would save."""
        first, second = self.compute(a), self.compute(b)
        assert first is not None
        assert second is not None
        saved = 0
        reads = set(second.reads())
        for name in first.writes():
            if name in reads:
                size = choices.buffer_bytes(self.program.buffers[name])
                saved += size
                if name not in self.kept and self.readers.get(name, set()) <= {a, b}:
                    saved += size
        for name in set(first.reads()) & reads:
            saved += choices.buffer_bytes(self.program.buffers[name])
        return saved

    def blocked(self, a: int, b: int) -> bool:
        """Whether a step must run between the two."""
        return bool(self.after[a] & self.before[b] & ~(1 << a) & ~(1 << b))

    def replace(self, a: int, b: int, body: Body) -> int:
        """Put one step in place of two; return its position."""
        first, second = self.compute(a), self.compute(b)
        assert first is not None
        assert second is not None
        gone: set[str] = set()
        for name in first.writes():
            if name not in self.kept and self.readers.get(name, set()) <= {a, b}:
                gone.add(name)
        stores = tuple(s for s in body.stores if s.buffer not in gone)
        fused = Compute(
            first.name,
            Body(body.axes, body.reduce_axes, stores),
            _join_labels(first.label, second.label),
        )
        for name in first.reads() + second.reads():
            self.readers.get(name, set()).discard(a)
            self.readers.get(name, set()).discard(b)
        keep, drop = a, b
        self.steps[keep], self.steps[drop] = fused, None
        self.members[keep] |= self.members[drop]
        self.version[keep] += 1
        self.version[drop] += 1
        for name in fused.reads():
            self.readers.setdefault(name, set()).add(keep)
        for name in fused.writes():
            self.writer[name] = keep
        both = (1 << keep) | (1 << drop)
        before = (self.before[a] | self.before[b]) & ~both
        after = (self.after[a] | self.after[b]) & ~both
        self.before[keep], self.after[keep] = before, after
        self.before[drop] = self.after[drop] = 0
        for k in _bits(after):
            self.before[k] = (self.before[k] | before | 1 << keep) & ~(1 << drop)
        for k in _bits(before):
            self.after[k] = (self.after[k] | after | 1 << keep) & ~(1 << drop)
        return keep

    def in_order(self) -> tuple[Step, ...]:
        """Return the remaining steps in an order that respects the dependencies."""
        done = 0
        order: list[Step] = []
        alive = [n for n, step in enumerate(self.steps) if step is not None]
        mask = sum(1 << n for n in alive)
        waiting = list(alive)
        while waiting:
            rest = []
            for n in waiting:
                if self.before[n] & mask & ~done:
                    rest.append(n)
                else:
                    step = self.steps[n]
                    assert step is not None
                    order.append(step)
                    done |= 1 << n
            assert len(rest) < len(waiting), "fusion made a cycle"
            waiting = rest
        return tuple(order)


def has_effects(step: Extern) -> bool:
    """Whether a call does more than compute its results from its arguments."""
    schema = getattr(step.target, "_schema", None)
    if schema is None:
        return bool(step.args)  # a callable nobody knows; a constant has no arguments
    tags = getattr(step.target, "tags", ())
    return bool(schema.is_mutable) or torch.Tag.nondeterministic_seeded in tags


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _join_labels(first: str, second: str) -> str:
    words = list(dict.fromkeys([*first.split(" + "), *second.split(" + ")]))
    return " + ".join(word for word in words if word)


def fuse(
    program: Program,
    steps: tuple[Step, ...],
    members: Mapping[str, frozenset[str]] | None = None,
    wishes: Wishes | None = None,
) -> tuple[tuple[Step, ...], list[FusionDecision]]:
    """Return the steps after fusion, and every decision with its reason.

    Args:
        program: What the steps are of.
        steps: With pointwise producers inlined.
        members: Step name to the computations that were inlined into it, and its own name.
        wishes: What somebody wants together or apart; nothing if None.
    """
    wishes = wishes or Wishes()
    groups = _Groups(program, steps, members or {})
    mutated = {name for s in steps if isinstance(s, Extern) for name in s.mutates}
    decisions: list[FusionDecision] = []
    refused: dict[tuple[str, str], FusionDecision] = {}
    heap: list[tuple[int, int, int, int, int]] = []

    def push(pairs: set[tuple[int, int]]) -> None:
        for a, b in pairs:
            saved = groups.saved_bytes(a, b)
            first = wishes.wants(groups.members[a], groups.members[b])
            if saved > 0 or first:
                order = saved + _WANTED_FIRST * first
                heapq.heappush(heap, (-order, a, b, groups.version[a], groups.version[b]))

    everything: set[tuple[int, int]] = set()
    for n in range(len(steps)):
        everything |= groups.pairs_of(n) | groups.wanted(n, wishes)
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
        outcome = _try(groups, a, b, mutated, wishes)
        if isinstance(outcome, Refusal):
            refused[(first.name, second.name)] = FusionDecision(
                first.name, second.name, False, outcome.reason, saved
            )
            continue
        decisions.append(
            FusionDecision(first.name, second.name, True, f"saves {saved:,} bytes", saved)
        )
        keep = groups.replace(a, b, outcome)
        push(groups.pairs_of(keep) | groups.wanted(keep, wishes))
    alive = {step.name for step in groups.steps if step is not None}
    decisions += [d for (x, y), d in refused.items() if x in alive and y in alive]
    return groups.in_order(), decisions


def _try(groups: _Groups, a: int, b: int, mutated: set[str], wishes: Wishes) -> Body | Refusal:
    if wishes.forbids(groups.members[a], groups.members[b]):
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
    if groups.blocked(a, b):
        return Refusal("another step must run between them")
    if len({groups.program.buffers[name].device for name in touched}) > 1:
        return Refusal("they run on different devices")
    bodies = (first.body, second.body)
    if any(a.size == 0 for body in bodies for a in body.axes + body.reduce_axes):
        return Refusal("one of them has nothing to do")
    join = join_product if first.body.products else merge
    merged = join(first.body, second.body)
    if isinstance(merged, Refusal):
        return merged
    if wishes.wants(groups.members[a], groups.members[b]):
        return merged
    too_large = choices.too_large(merged)
    return Refusal(too_large) if too_large is not None else merged


def _product_refusal(first: Body, second: Body) -> Refusal | None:
    """Return why a matrix product does not take the other computation in, or None."""
    if not (first.products or second.products):
        return None
    if first.products and second.products:
        return Refusal("a kernel computes one matrix product")
    if second.products:
        return Refusal("a matrix product computes an operand itself only where that is cheap")
    if second.scans():
        return Refusal("a running value of a matrix product has a kernel of its own")
    if not set(first.writes()) & set(second.reads()):
        return Refusal("only what reads a matrix product shares its kernel")
    return None
