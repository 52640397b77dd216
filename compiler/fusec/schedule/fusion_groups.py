"""The steps of a program under fusion: who depends on whom, and what joining two changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from fusec.ir.body import Body, Buffer
from fusec.ir.program import Compute, Extern, ExternKind, Program, Step
from fusec.schedule import choices
from fusec.schedule.overrides import Overrides

# A buffer with more readers than this offers only neighboring readers as pairs, so that the
# number of pairs stays linear in the size of the graph.
MAX_PAIRED_READERS = 8


class Groups:
    """The steps under fusion, with who depends on whom as bit sets over step positions.

    Attributes:
        buffers: Those of the program, and what joining steps has added.
    """

    def __init__(
        self, program: Program, steps: tuple[Step, ...], members: Mapping[str, frozenset[str]]
    ) -> None:
        self.buffers = dict(program.buffers)
        self.steps: list[Step | None] = list(steps)
        self.version = [0] * len(steps)
        self.position = {step.name: n for n, step in enumerate(steps)}
        # The computations of the lowered program that each group has in it.
        self.members = [members.get(step.name, frozenset((step.name,))) for step in steps]
        self.before: list[int] = []  # bit k: step k must run earlier
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
            total = direct
            for k in _bits(direct):
                total |= self.before[k]
            self.before.append(total)
            for k in _bits(total):
                self.after[k] |= 1 << n

    def compute(self, n: int) -> Compute | None:
        """Return the computation at a position; None for a call, and where it has been joined."""
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

    def wanted(self, n: int, overrides: Overrides) -> set[tuple[int, int]]:
        """Return the pairs with step ``n`` that somebody asked for."""
        if not overrides.together or self.compute(n) is None:
            return set()
        return {
            self.ordered(n, other)
            for other in range(len(self.steps))
            if other != n
            and self.compute(other) is not None
            and overrides.wants(self.members[n], self.members[other])
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
                size = choices.buffer_bytes(self.buffers[name])
                saved += size
                if self._only_for(name, a, b):
                    saved += size
        for name in set(first.reads()) & reads:
            saved += choices.buffer_bytes(self.buffers[name])
        return saved

    def blocked(self, a: int, b: int) -> bool:
        """Whether a step must run between the two."""
        return bool(self.after[a] & self.before[b] & ~(1 << a) & ~(1 << b))

    def unread(self, a: int, b: int) -> set[str]:
        """Return what step ``a`` writes that nobody needs in memory if ``b`` shares its kernel."""
        first = self.compute(a)
        assert first is not None
        return {name for name in first.writes() if self._only_for(name, a, b)}

    def _only_for(self, name: str, *steps: int) -> bool:
        """Whether nobody needs a buffer but these steps."""
        return name not in self.kept and self.readers.get(name, set()).issubset(steps)

    def replace(self, a: int, b: int, body: Body) -> int:
        """Put one step in place of two; return its position."""
        first, second = self.compute(a), self.compute(b)
        assert first is not None
        assert second is not None
        gone = self.unread(a, b)
        stores = tuple(s for s in body.stores if s.buffer not in gone)
        fused = Compute(
            first.name,
            Body(body.axes, body.reduce_axes, stores),
            join_labels(first.label, second.label),
        )
        for name in first.reads() + second.reads():
            self.readers.get(name, set()).difference_update((a, b))
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

    def cross(
        self, rows: int, columns: int, kernel: Compute, rest: Compute, parts: Iterable[Buffer]
    ) -> None:
        """Put two steps in place of two others: ``rest`` reads what ``kernel`` leaves for it.

        What ran before either of the two others runs before ``kernel``.

        Args:
            rows: Position of the one whose place ``kernel`` takes.
            columns: Position of the one whose place ``rest`` takes.
            kernel: What does nearly all.
            rest: What runs after it.
            parts: The buffers between the two.
        """
        first, second = self.compute(rows), self.compute(columns)
        assert first is not None
        assert second is not None
        self.buffers |= {buffer.name: buffer for buffer in parts}
        for n, step in ((rows, first), (columns, second)):
            for name in step.reads():
                self.readers.get(name, set()).discard(n)
        for n, step in ((rows, kernel), (columns, rest)):
            self.steps[n] = step
            self.version[n] += 1
            for name in step.reads():
                self.readers.setdefault(name, set()).add(n)
            for name in step.writes():
                self.writer[name] = n
        self.members[rows] |= self.members[columns]
        earlier = self.before[columns] & ~(self.before[rows] | 1 << rows)
        self._run_before(earlier, self.after[rows] | 1 << rows)
        self._run_before(self.before[rows] | 1 << rows, self.after[columns] | 1 << columns)

    def _run_before(self, sources: int, targets: int) -> None:
        """Let all steps of one set run before those of another; each set has all that follows."""
        for n in _bits(targets):
            self.before[n] |= sources
        for n in _bits(sources):
            self.after[n] |= targets

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
    if not schema.returns:
        return True  # an assertion, or an operator that is called for what it does
    tags = getattr(step.target, "tags", ())
    if step.has_unknown_size:
        return True  # its sizes were promised: somebody has to look
    if step.kind is ExternKind.REFUSED:
        return True  # its error is what is wanted, also where no element of it is read
    return bool(schema.is_mutable) or torch.Tag.nondeterministic_seeded in tags


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def join_labels(first: str, second: str) -> str:
    """Return what a kernel of two computations is called: the operators of both, each once."""
    words = list(dict.fromkeys([*first.split(" + "), *second.split(" + ")]))
    return " + ".join(word for word in words if word)
