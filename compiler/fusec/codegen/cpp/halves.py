"""float16 in blocks: converted by the processor's instructions, a block at a time.

Inside of a vector loop the compiler has no instruction for it, and a dozen integer operations each
way cost more than most kernels.  So what a block reads is converted into an array of float before
its loop, and what it writes from one after it.  (bfloat16 is a shift, and stays in the loop.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from fusec.codegen.cpp.expressions import Expression
from fusec.codegen.cpp.scope import Kernel, Scope
from fusec.codegen.cpp.writer import Writer
from fusec.ir.body import Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Cast, Load, Node

LINE = "LINE"


@dataclass(frozen=True)
class Halves:
    """What of a loop is converted by the block.

    Attributes:
        loads: Each load, and the casts to float that are all its uses.
        stores: Stores of values that are cast for them alone.
    """

    loads: tuple[tuple[Load, tuple[Cast, ...]], ...] = ()
    stores: tuple[Store, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.loads or self.stores)

    def named(self, scope: Scope) -> dict[Load | Store, str]:
        """Name the arrays."""
        arrays: dict[Load | Store, str] = {}
        items: list[Load | Store] = [*(load for load, _ in self.loads), *self.stores]
        for item in items:
            arrays[item] = scope.name(f"{scope.kernel.names[item.buffer]}_f32")
        return arrays

    def before(
        self,
        scope: Scope,
        writer: Writer,
        arrays: Mapping[Load | Store, str],
        first: Mapping[Symbol, str],
        count: str,
    ) -> None:
        """Write what precedes the loop over a block.

        Args:
            scope: Where all loops but the block's own have names.
            writer: Where to.
            arrays: From ``named``.
            first: Axis to the position at which the block begins.
            count: Elements of the block.
        """
        for load, _ in self.loads:
            scope.kernel.use("to_floats.f16")
            place = _at(scope, load.buffer, load.index, first)
            writer.line(f"alignas(64) float {arrays[load]}[{LINE}];", load.source)
            writer.line(f"fx_to_floats({arrays[load]}, &{place}, {count});", load.source)
        for store in self.stores:
            writer.line(f"alignas(64) float {arrays[store]}[{LINE}];", store.source)

    def bind(self, scope: Scope, arrays: Mapping[Load | Store, str], place: str) -> None:
        """Make the elements at ``place`` of the arrays known inside of the loop over a block."""
        for load, casts in self.loads:
            for cast in casts:
                scope.values[cast] = Expression(f"{arrays[load]}[{place}]")
        for store in self.stores:
            scope.values[store.value] = Expression(f"{arrays[store]}[{place}]")
            scope.staged[store] = f"{arrays[store]}[{place}]"

    def after(
        self,
        scope: Scope,
        writer: Writer,
        arrays: Mapping[Load | Store, str],
        first: Mapping[Symbol, str],
        count: str,
    ) -> None:
        """Write what follows the loop; arguments as for ``before``."""
        for store in self.stores:
            scope.kernel.use("to_halves.f16")
            place = _at(scope, store.buffer, store.index, first)
            writer.line(f"fx_to_halves(&{place}, {arrays[store]}, {count});", store.source)


def converted(
    kernel: Kernel, axis: Symbol, nodes: Iterable[Node], stores: Sequence[Store]
) -> Halves:
    """Return what a loop along ``axis`` over ``nodes`` and ``stores`` may convert by the block."""
    loads = []
    for node in nodes:
        if not isinstance(node, Load) or node.mask is not None or node.buffer in kernel.updated:
            continue
        users = kernel.users.get(node, [])
        casts = [u for u in users if isinstance(u, Cast) and u.dtype == torch.float32]
        if len(casts) == len(users) and _runs_along(kernel, node.buffer, node.index, axis):
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
        and _runs_along(kernel, store.buffer, store.index, axis)
    ]
    return Halves(tuple(loads), tuple(written))


def _runs_along(kernel: Kernel, name: str, index: tuple[Expr, ...], axis: Symbol) -> bool:
    buffer = kernel.buffers[name]
    offset = buffer.offset(index)
    return (
        buffer.dtype == torch.float16
        and not any(s.kind == "indirect" for s in offset.symbols())
        and offset.is_affine_in(axis)
        and offset.coefficient(axis) == 1
    )


def _at(scope: Scope, buffer: str, index: tuple[Expr, ...], first: Mapping[Symbol, str]) -> str:
    place = Scope(scope.kernel, scope)
    place.axes.update(first)
    return place.element(buffer, index)


__all__ = ["Halves", "converted"]
