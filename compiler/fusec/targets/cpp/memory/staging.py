"""Blocks and short rows that go through arrays, as text; ``plan/staging.py`` decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from fusec.codegen.common.c_language import Expression
from fusec.ir.body import Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Const, IndexValue, Load, Node, Op
from fusec.targets.cpp.dtypes import ELEMENT_TYPES, SHORT
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import extent
from fusec.targets.cpp.plan.staging import Staging
from fusec.targets.cpp.text.scope import Scope
from fusec.targets.cpp.text.support import END, STREAM
from fusec.targets.cpp.text.writer import Writer

LINE = "LINE"
Arrays = dict[Load | Store | Op, str]


def name_arrays(staging: Staging, scope: Scope) -> Arrays:
    """Name the arrays."""
    arrays: Arrays = {node: scope.name("words") for node in staging.random}
    items: list[Load | Store] = [*(load for load, _ in staging.loads), *staging.stores]
    for item in items:
        arrays[item] = scope.name(f"{scope.kernel.names[item.buffer]}_f32")
    for store in staging.streams:
        if store not in arrays:
            arrays[store] = scope.name(f"{scope.kernel.names[store.buffer]}_block")
    return arrays


def write_before(
    staging: Staging,
    scope: Scope,
    writer: Writer,
    arrays: Mapping[Load | Store | Op, str],
    first: Mapping[Symbol, str],
    count: str,
    room: str = LINE,
) -> None:
    """Write what precedes the loop over a block.

    Args:
        staging: What goes through arrays.
        scope: Where all loops but the block's own have names.
        writer: Where to.
        arrays: From ``name_arrays``.
        first: Axis to the position at which the block begins.
        count: Elements of the block.
        room: What there may be at most.
    """
    for load, _ in staging.loads:
        scope.kernel.use(f"to_floats.{SHORT[load.dtype]}")
        place = _at(scope, load.buffer, load.index, first)
        writer.line(f"alignas(64) float {arrays[load]}[{room}];", load.source)
        writer.line(f"fx_to_floats({arrays[load]}, &{place}, {count});", load.source)
    for store in staging.stores:
        writer.line(f"alignas(64) float {arrays[store]}[{room}];", store.source)
    for store in staging.streams:
        if store not in staging.stores:
            kind = _kind(scope, store)
            writer.line(f"alignas(64) {kind} {arrays[store]}[{room}];", store.source)
    for node in staging.random:
        for helper in ("random_group", "random_words"):
            scope.kernel.use(helper)
        corner = Scope(scope.kernel, scope)
        corner.axes.update(first)
        seed, position, stream = node.args
        assert isinstance(position, IndexValue)
        given = (scope.values[seed].text, corner.index(position.expr), _constant(stream))
        writer.line(f"alignas(64) int32_t {arrays[node]}[{room}];", node.source)
        writer.line(f"random_words({arrays[node]}, {', '.join(given)}, {count});", node.source)


def bind_staged(
    staging: Staging, scope: Scope, arrays: Mapping[Load | Store | Op, str], place: str
) -> None:
    """Make the elements at ``place`` of the arrays known inside of the loop over a block."""
    for load, casts in staging.loads:
        for cast in casts:
            scope.values[cast] = Expression(f"{arrays[load]}[{place}]")
    for store in staging.stores:
        scope.values[store.value] = Expression(f"{arrays[store]}[{place}]")
        scope.staged[store] = f"{arrays[store]}[{place}]"
    for store in staging.streams:  # of which one that is staged is looked up above
        scope.streamed[store] = f"{arrays[store]}[{place}]"
    for node in staging.random:
        scope.values[node] = Expression(f"{arrays[node]}[{place}]")


def write_after(
    staging: Staging,
    scope: Scope,
    writer: Writer,
    arrays: Mapping[Load | Store | Op, str],
    first: Mapping[Symbol, str],
    count: str,
) -> None:
    """Write what follows the loop; arguments as for ``write_before``."""
    for store in (*staging.stores, *(s for s in staging.streams if s not in staging.stores)):
        target = f"&{_at(scope, store.buffer, store.index, first)}"
        block = arrays[store]
        if store in staging.stores:
            to = target
            if store in staging.streams:
                to = scope.name(f"{scope.kernel.names[store.buffer]}_block")
                kind = _kind(scope, store)
                writer.line(f"alignas(64) {kind} {to}[{LINE}];", store.source)
            scope.kernel.use(f"to_halves.{SHORT[store.value.dtype]}")
            writer.line(f"fx_to_halves({to}, {block}, {count});", store.source)
            block = to
        if store in staging.streams:
            scope.kernel.use(STREAM)
            scope.kernel.use(END)
            writer.line(f"{STREAM}<{LINE}>({target}, {block}, {count});", store.source)


@contextmanager
def through_arrays(
    staging: Staging, scope: Scope, writer: Writer, axis: Symbol
) -> Iterator[Callable[[Scope], None]]:
    """Write what converts a short row before and after the loop over it.

    Yields a function that makes the converted values known in the scope of the loop.

    Args:
        staging: What goes through arrays; perhaps nothing.
        scope: Where the loop goes.
        writer: Likewise.
        axis: What it runs along, whole.
    """
    size = extent(axis)
    if size is None or not staging:
        yield lambda at: None
        return
    with writer.block(""):
        arrays, first, count = name_arrays(staging, scope), {axis: "0"}, str(size)
        room = str(choices.whole_vectors(size))  # conversions may write and read so much
        write_before(staging, scope, writer, arrays, first, count, room)
        yield lambda at: bind_staged(staging, at, arrays, at.axes[axis])
        write_after(staging, scope, writer, arrays, first, count)


def _constant(node: Node) -> str:
    assert isinstance(node, Const)
    return str(int(node.value))


def _kind(scope: Scope, store: Store) -> str:
    dtype = scope.kernel.buffers[store.buffer].dtype
    scope.use_type(dtype)
    return ELEMENT_TYPES[dtype]


def _at(scope: Scope, buffer: str, index: tuple[Expr, ...], first: Mapping[Symbol, str]) -> str:
    place = Scope(scope.kernel, scope)
    place.axes.update(first)
    return place.element(buffer, index)


__all__ = ["bind_staged", "name_arrays", "through_arrays", "write_after", "write_before"]
