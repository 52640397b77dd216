"""Rows put apart into even and odd elements, as text; ``plan/deinterleave.py`` decides."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node
from fusec.targets.cpp.dtypes import ELEMENT_TYPES
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.deinterleave import STEP, Deinterleaved
from fusec.targets.cpp.text.expressions import cast_expression, from_memory
from fusec.targets.cpp.text.reductions import simd
from fusec.targets.cpp.text.scope import Scope
from fusec.targets.cpp.text.writer import Writer


def deinterleave(
    scope: Scope, writer: Writer, axis: Symbol, rows: Iterable[Deinterleaved]
) -> Places:
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
        if row.converts_first:
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


def bind_deinterleaved(scope: Scope, axis: Symbol, places: Places) -> None:
    """Make the loads known in the scope of the loop over the elements."""
    for node, (name, distance) in places.items():
        text = scope.index(Expr.of(axis) + distance)
        scope.values[node] = from_memory(f"{name}[{text}]", node.dtype)


__all__ = ["Places", "bind_deinterleaved", "deinterleave"]
