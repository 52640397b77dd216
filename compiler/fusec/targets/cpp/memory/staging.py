"""What goes through arrays, a block at a time: conversions of halves, random words, streams.

Inside of a vector loop the compiler has no instruction for float16, and a dozen integer operations
each way cost more than most kernels.  So what a block reads is converted into an array of float
before its loop, and what it writes from one after it.  bfloat16 is a shift to read, and stays in
the loop; to write, it takes nine operations, or one instruction that the compiler does not use.
Random words come 64 from 16 Philox numbers, of which an element by itself would compute one
for each word.  What is written past the caches is written in whole lines (see ``streaming.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fusec.ir.body import Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Cast, Const, IndexValue, Load, Node, Op
from fusec.ir.ops import RANDOM_WORD
from fusec.targets.cpp.memory.nontemporal import END, STREAM, is_streamed, runs_along
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.text.dtypes import ELEMENT_TYPES, SHORT
from fusec.targets.cpp.text.expressions import Expression
from fusec.targets.cpp.text.scope import Kernel, Scope
from fusec.targets.cpp.text.writer import Writer

LINE = "LINE"
Arrays = dict[Load | Store | Op, str]


@dataclass(frozen=True)
class Staging:
    """What of a loop goes through arrays.

    Attributes:
        loads: Each load of halves, and the casts to float that are all its uses.
        stores: Stores of halves that are cast for them alone.
        random: Random words of consecutive positions.
        streams: Stores past the caches; among them may be some of ``stores``.
    """

    loads: tuple[tuple[Load, tuple[Cast, ...]], ...] = ()
    stores: tuple[Store, ...] = ()
    random: tuple[Op, ...] = ()
    streams: tuple[Store, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.loads or self.stores or self.random or self.streams)

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        """The types of halves that are converted."""
        loads = {load.dtype for load, _ in self.loads}
        return frozenset(loads | {store.value.dtype for store in self.stores})

    @property
    def streamed(self) -> frozenset[str]:
        """The buffers that are written past the caches."""
        return frozenset(store.buffer for store in self.streams)

    def named(self, scope: Scope) -> Arrays:
        """Name the arrays."""
        arrays: Arrays = {node: scope.name("words") for node in self.random}
        items: list[Load | Store] = [*(load for load, _ in self.loads), *self.stores]
        for item in items:
            arrays[item] = scope.name(f"{scope.kernel.names[item.buffer]}_f32")
        for store in self.streams:
            if store not in arrays:
                arrays[store] = scope.name(f"{scope.kernel.names[store.buffer]}_block")
        return arrays

    def before(
        self,
        scope: Scope,
        writer: Writer,
        arrays: Mapping[Load | Store | Op, str],
        first: Mapping[Symbol, str],
        count: str,
        room: str = LINE,
    ) -> None:
        """Write what precedes the loop over a block.

        Args:
            scope: Where all loops but the block's own have names.
            writer: Where to.
            arrays: From ``named``.
            first: Axis to the position at which the block begins.
            count: Elements of the block.
            room: What there may be at most.
        """
        for load, _ in self.loads:
            scope.kernel.use(f"to_floats.{SHORT[load.dtype]}")
            place = _at(scope, load.buffer, load.index, first)
            writer.line(f"alignas(64) float {arrays[load]}[{room}];", load.source)
            writer.line(f"fx_to_floats({arrays[load]}, &{place}, {count});", load.source)
        for store in self.stores:
            writer.line(f"alignas(64) float {arrays[store]}[{room}];", store.source)
        for store in self.streams:
            if store not in self.stores:
                kind = _kind(scope, store)
                writer.line(f"alignas(64) {kind} {arrays[store]}[{room}];", store.source)
        for node in self.random:
            for helper in ("random_group", "random_words"):
                scope.kernel.use(helper)
            corner = Scope(scope.kernel, scope)
            corner.axes.update(first)
            seed, position, stream = node.args
            assert isinstance(position, IndexValue)
            given = (scope.values[seed].text, corner.index(position.expr), _constant(stream))
            writer.line(f"alignas(64) int32_t {arrays[node]}[{room}];", node.source)
            writer.line(f"random_words({arrays[node]}, {', '.join(given)}, {count});", node.source)

    def bind(self, scope: Scope, arrays: Mapping[Load | Store | Op, str], place: str) -> None:
        """Make the elements at ``place`` of the arrays known inside of the loop over a block."""
        for load, casts in self.loads:
            for cast in casts:
                scope.values[cast] = Expression(f"{arrays[load]}[{place}]")
        for store in self.stores:
            scope.values[store.value] = Expression(f"{arrays[store]}[{place}]")
            scope.staged[store] = f"{arrays[store]}[{place}]"
        for store in self.streams:
            if store not in self.stores:
                scope.streamed[store] = f"{arrays[store]}[{place}]"
        for node in self.random:
            scope.values[node] = Expression(f"{arrays[node]}[{place}]")

    def after(
        self,
        scope: Scope,
        writer: Writer,
        arrays: Mapping[Load | Store | Op, str],
        first: Mapping[Symbol, str],
        count: str,
    ) -> None:
        """Write what follows the loop; arguments as for ``before``."""
        for store in (*self.stores, *(s for s in self.streams if s not in self.stores)):
            target = f"&{_at(scope, store.buffer, store.index, first)}"
            block = arrays[store]
            if store in self.stores:
                to = target
                if store in self.streams:
                    to = scope.name(f"{scope.kernel.names[store.buffer]}_block")
                    kind = _kind(scope, store)
                    writer.line(f"alignas(64) {kind} {to}[{LINE}];", store.source)
                scope.kernel.use(f"to_halves.{SHORT[store.value.dtype]}")
                writer.line(f"fx_to_halves({to}, {block}, {count});", store.source)
                block = to
            if store in self.streams:
                scope.kernel.use(STREAM)
                scope.kernel.use(END)
                writer.line(f"{STREAM}<{LINE}>({target}, {block}, {count});", store.source)


def staged(
    kernel: Kernel,
    axis: Symbol,
    nodes: Iterable[Node],
    stores: Sequence[Store],
    read: Collection[torch.dtype] = (torch.float16,),
) -> Staging:
    """Return what a loop along ``axis`` over ``nodes`` and ``stores`` may have by the block.

    Args:
        kernel: The kernel.
        axis: What the loop runs along.
        nodes: What is computed in it.
        stores: What it stores.
        read: The types of halves that are converted before it.
    """
    loads, random = [], []
    for node in nodes:
        if isinstance(node, Op) and node.name == RANDOM_WORD and _is_stream(kernel, node, axis):
            random.append(node)
        if not isinstance(node, Load) or node.mask is not None or node.buffer in kernel.updated:
            continue
        users = kernel.users.get(node, [])
        casts = [u for u in users if isinstance(u, Cast) and u.dtype == torch.float32]
        halves = kernel.buffers[node.buffer].dtype in read
        if halves and len(casts) == len(users) and runs_along(kernel, node, axis):
            loads.append((node, tuple(casts)))
    values = [store.value for store in kernel.body.stores]
    written = [
        store
        for store in stores
        if store.mode == "set"
        and store.buffer not in kernel.updated
        and isinstance(store.value, Cast)
        and store.value.args[0].dtype == torch.float32
        and values.count(store.value) == 1
        and not kernel.users.get(store.value)
        and store.value.dtype in (torch.float16, torch.bfloat16)
        and runs_along(kernel, store, axis)
    ]
    streams = [store for store in stores if is_streamed(kernel, store, axis)]
    return Staging(tuple(loads), tuple(written), tuple(random), tuple(streams))


@contextmanager
def staged_row(
    scope: Scope,
    writer: Writer,
    axis: Symbol,
    nodes: Iterable[Node],
    stores: Sequence[Store],
    read: Collection[torch.dtype] = (torch.float16,),
) -> Iterator[Callable[[Scope], None]]:
    """Convert the halves of a short row before and after the loop over it, where that pays.

    Yields a function that makes them known in the scope of the loop.

    Args:
        scope: Where the loop goes.
        writer: Likewise.
        axis: What it runs along, whole.
        nodes: What is computed in it.
        stores: What it stores.
        read: As for ``staged``.
    """
    found = staged(scope.kernel, axis, nodes, stores, read)
    staging = Staging(found.loads, found.stores)
    size = axis.size.constant if axis.size is not None else 1
    if size is None or not choices.worth_staging(size, staging.dtypes):
        yield lambda at: None
        return
    with writer.block(""):
        arrays, first, count = staging.named(scope), {axis: "0"}, str(size)
        room = str(choices.whole_vectors(size))  # conversions may write and read so much
        staging.before(scope, writer, arrays, first, count, room)
        yield lambda at: staging.bind(at, arrays, at.axes[axis])
        staging.after(scope, writer, arrays, first, count)


def _is_stream(kernel: Kernel, node: Op, axis: Symbol) -> bool:
    """Whether the random words of a loop along ``axis`` are those of consecutive positions."""
    seed, position, stream = node.args
    return (
        isinstance(position, IndexValue)
        and isinstance(stream, Const)
        and axis not in kernel.free[seed]
        and not any(s.kind == "indirect" for s in position.expr.symbols())
        and position.expr.is_affine_in(axis)
        and position.expr.coefficient(axis) == 1
    )


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


__all__ = ["Staging", "staged", "staged_row"]
