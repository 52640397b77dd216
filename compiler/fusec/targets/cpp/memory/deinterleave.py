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
from functools import partial

import torch

from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Cast, Load, Node
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.text.dtypes import ELEMENT_TYPES, HALVES
from fusec.targets.cpp.text.expressions import cast_expression, from_memory
from fusec.targets.cpp.text.reductions import simd
from fusec.targets.cpp.text.scope import Kernel, Scope
from fusec.targets.cpp.text.writer import Writer

STEP = 2


@dataclass(frozen=True)
class Apart:
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
        return sum(self.lengths) * self.dtype.itemsize * (2 if self.converts_ahead else 1)

    @property
    def dtype(self) -> torch.dtype:
        """What the arrays have."""
        return torch.float32 if self.casts else self.loads[0][0].dtype

    @property
    def converts_ahead(self) -> bool:
        """Whether the whole row is converted first: there is an instruction, but not in loops."""
        return bool(self.casts) and self.loads[0][0].dtype == torch.float16


def rows_apart(kernel: Kernel, axis: Symbol, nodes: Iterable[Node]) -> list[Apart]:
    """Return the rows that a loop reads with a step of two, where taking them apart pays.

    Args:
        kernel: The kernel, or the part of it that the loop is of.
        axis: What the whole loop runs along.
        nodes: What is computed in it.
    """
    size = axis.size.constant if axis.size is not None else 1
    if not choices.worth_taking_apart(size):
        return []
    assert size is not None
    rows: dict[tuple[str, Expr], list[tuple[Load, int]]] = {}
    for node in nodes:
        if not isinstance(node, Load) or node.mask is not None or node.buffer in kernel.updated:
            continue
        offset = kernel.buffers[node.buffer].offset(node.index)
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
            found.append(Apart(rest + low, members, size, _casts(kernel, members)))
    return found if sum(row.bytes for row in found) <= choices.APART_BYTES else []


def _neighbors(loads: Iterable[tuple[Load, int]]) -> list[list[tuple[Load, int]]]:
    """Return the loads by rows of windows: what is further away is of another row."""
    groups: list[list[tuple[Load, int]]] = []
    for load, place in sorted(loads, key=lambda each: each[1]):
        if not groups or place - groups[-1][-1][1] > choices.APART_GAP:
            groups.append([])
        groups[-1].append((load, place))
    return groups


def _casts(kernel: Kernel, loads: Iterable[tuple[Load, int]]) -> dict[Load, Sequence[Node]]:
    found: dict[Load, Sequence[Node]] = {}
    for load, _ in loads:
        users = kernel.users.get(load, [])
        if load.dtype not in HALVES or any(
            not isinstance(user, Cast) or user.dtype != torch.float32 for user in users
        ):
            return {}
        found[load] = users
    return found


def take_apart(scope: Scope, writer: Writer, axis: Symbol, rows: Iterable[Apart]) -> Places:
    """Write what fills the arrays; return where the loop along ``axis`` finds each load."""
    places: Places = {}
    kernel = scope.kernel
    for row in rows:
        load = row.loads[0][0]
        buffer, kind = kernel.names[load.buffer], ELEMENT_TYPES[row.dtype]
        scope.use_type(load.dtype)
        lengths = row.lengths
        names = [scope.name(f"{buffer}_{word}") for word in ("even", "odd")]
        for name, length in zip(names, lengths, strict=True):
            if length:
                writer.line(f"alignas(64) {kind} {name}[{length}];", load.source)
        first = kernel.index_text(row.first, scope.axes)
        texts = [f"{buffer}[{first} + {STEP} * {{0}}{odd}]" for odd in ("", " + 1")]
        if row.converts_ahead:
            whole, count = scope.name(f"{buffer}_f32"), max(2 * lengths[0] - 1, 2 * lengths[1])
            kernel.use("to_floats.f16")
            room = choices.whole_vectors(count)  # the conversion may write so much
            writer.line(f"alignas(64) float {whole}[{room}];", load.source)
            writer.line(f"fx_to_floats({whole}, &{buffer}[{first}], {count});", load.source)
            texts = [f"{whole}[{STEP} * {{0}}{odd}]" for odd in ("", " + 1")]
        elif row.casts:
            convert = partial(cast_expression, load.dtype, torch.float32, use=kernel.use)
            texts = [convert(from_memory(text, load.dtype)).text for text in texts]
        moves = [f"{name}[{{0}}] = {text};" for name, text in zip(names, texts, strict=True)]
        pairs = min(lengths)
        if pairs:
            simd(kernel, (), writer)
            with writer.block(f"for (int64_t pair = 0; pair < {pairs}; ++pair)"):
                for move in moves:
                    writer.line(move.format("pair"), load.source)
        for move, length in zip(moves, lengths, strict=True):
            for at in range(pairs, length):
                writer.line(move.format(at), load.source)
        for each, distance in row.loads:
            for node in row.casts.get(each, (each,)):
                places[node] = (names[distance % STEP], distance // STEP)
    return places


# Of a load, or of what makes it float: the array, and the distance from the loop's position.
Places = dict[Node, tuple[str, int]]


def bind_apart(scope: Scope, axis: Symbol, places: Places) -> None:
    """Make the loads known in the scope of the loop over the elements."""
    for node, (name, distance) in places.items():
        text = scope.index(Expr.of(axis) + distance)
        scope.values[node] = from_memory(f"{name}[{text}]", node.dtype)


__all__ = ["Apart", "Places", "bind_apart", "rows_apart", "take_apart"]
