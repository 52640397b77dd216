"""Rows of which every second element is taken at a time, their elements put apart first.

A window that moves by two reads elements 2 j - 1, 2 j and 2 j + 1 of a row: a compiler takes each
pair apart with two loads and two shuffles, again for each row of windows that reads it, and where
an element of a pair is not wanted it computes the last vector of the row one result at a time, so
that it does not read past the end.  Elements with even and with odd distances from the first one
go into an array each; what was a step of two is a step of one there.  Halves are float in the
arrays, converted once rather than by each window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from fusec.codegen.common.c_language import HALVES
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Cast, Load, Node
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts, extent

STEP = 2


@dataclass(frozen=True)
class Deinterleaved:
    """Loads of one row.

    Attributes:
        first: The first element that is read: its offset in the buffer.
        loads: Each load, and its distance from ``first`` in the first turn of the loop.
        length: Turns of the loop.
        casts: Of halves, what makes each load float: all that becomes of it. Else empty.
    """

    first: Expr
    loads: tuple[tuple[Load, int], ...]
    length: int
    casts: Mapping[Load, Sequence[Node]]

    @property
    def lengths(self) -> tuple[int, int]:
        """How many elements are needed with an even distance, and with an odd one."""
        distances = [distance for _, distance in self.loads]
        even = [self.length + d // STEP for d in distances if d % STEP == 0]
        odd = [self.length + d // STEP for d in distances if d % STEP]
        return max(even, default=0), max(odd, default=0)

    @property
    def bytes(self) -> int:
        """What the arrays take."""
        return sum(self.lengths) * self.dtype.itemsize * (2 if self.converts_first else 1)

    @property
    def dtype(self) -> torch.dtype:
        """What the arrays have."""
        return torch.float32 if self.casts else self.loads[0][0].dtype

    @property
    def converts_first(self) -> bool:
        """Whether the whole row is converted first: there is an instruction, but not in loops."""
        return bool(self.casts) and self.loads[0][0].dtype == torch.float16


def deinterleaved_rows(facts: Facts, axis: Symbol, nodes: Iterable[Node]) -> list[Deinterleaved]:
    """Return the rows that a loop reads with a step of two, where taking them apart pays.

    Args:
        facts: What decisions go by.
        axis: What the whole loop runs along.
        nodes: What is computed in it.
    """
    size = extent(axis)
    if not choices.worth_deinterleaving(size):
        return []
    assert size is not None
    rows: dict[tuple[str, Expr], list[tuple[Load, int]]] = {}
    for node in nodes:
        if not isinstance(node, Load) or node.mask is not None or node.buffer in facts.updated:
            continue
        offset = facts.buffers[node.buffer].offset(node.index)
        if any(s.kind == "indirect" for s in offset.symbols()) or not offset.is_affine_in(axis):
            continue
        if offset.coefficient(axis) == STEP:
            begin = offset.substitute({axis: Expr.of(0)})
            place = begin.terms.get((), 0)
            rows.setdefault((node.buffer, begin - place), []).append((node, place))
    found = []
    for (_, rest), loads in rows.items():
        for group in _neighbors(loads):
            low = group[0][1]
            if group[-1][1] - low < STEP:
                continue  # pairs by themselves compilers take apart as well as can be
            members = tuple((load, place - low) for load, place in group)
            found.append(Deinterleaved(rest + low, members, size, _casts(facts, members)))
    return found if sum(row.bytes for row in found) <= choices.DEINTERLEAVED_BYTES else []


def _neighbors(loads: Iterable[tuple[Load, int]]) -> list[list[tuple[Load, int]]]:
    """Return the loads by rows of windows: what is further away is of another row."""
    groups: list[list[tuple[Load, int]]] = []
    for load, place in sorted(loads, key=lambda each: each[1]):
        if not groups or place - groups[-1][-1][1] > choices.DEINTERLEAVED_GAP:
            groups.append([])
        groups[-1].append((load, place))
    return groups


def _casts(facts: Facts, loads: Iterable[tuple[Load, int]]) -> dict[Load, Sequence[Node]]:
    found: dict[Load, Sequence[Node]] = {}
    for load, _ in loads:
        users = facts.users.get(load, [])
        if load.dtype not in HALVES or any(
            not isinstance(user, Cast) or user.dtype != torch.float32 for user in users
        ):
            return {}
        found[load] = users
    return found


__all__ = ["STEP", "Deinterleaved", "deinterleaved_rows"]
