"""Loops over square tiles of two axes, some loads turned over beforehand."""

from __future__ import annotations

from fusec.ir.index import Symbol
from fusec.ir.node import Load
from fusec.targets.cpp.dtypes import ELEMENT_TYPES
from fusec.targets.cpp.loops.inner_loop import write_inner
from fusec.targets.cpp.plan.loop_plan import Nest
from fusec.targets.cpp.plan.tiles import Turned
from fusec.targets.cpp.text.expressions import from_memory
from fusec.targets.cpp.text.loop_heads import head, shared_loops
from fusec.targets.cpp.text.scope import KernelWriter, Scope
from fusec.targets.cpp.text.writer import Writer


def write_tiles(
    kernel: KernelWriter, nest: Nest, turned: Turned, scope: Scope, writer: Writer
) -> None:
    """Write the loops over the tiles, and what is done in one."""
    last, across = kernel.body.axes[-1], turned.across
    others = [axis for axis in kernel.body.axes if axis not in (last, across)]
    tile = Scope(kernel, scope)
    rows, columns = (kernel.tunable(size) for size in nest.tile_sizes)
    sizes = {across: rows, last: columns}
    heads = [head(tile, axis) for axis in others]
    ends: dict[Symbol, tuple[str, str]] = {}
    for axis, size in sizes.items():
        begin = tile.name(f"{axis.name}_tile")
        heads.append(
            f"for (int64_t {begin} = 0; {begin} < {kernel.extent(axis)}; {begin} += {size})"
        )
        ends[axis] = (begin, tile.name(f"{axis.name}_end"))
    with shared_loops(kernel, writer, heads, nest.sharing):
        for axis, (begin, end) in ends.items():
            limit = kernel.at_most(f"{begin} + {sizes[axis]}", kernel.extent(axis))
            writer.line(f"const int64_t {end} = {limit};")
        names = _turn_over(kernel, turned, tile, writer, sizes, ends)
        (row, row_end), (column, column_end) = ends[across], ends[last]
        inner = Scope(kernel, tile)
        with writer.block(head(inner, across, row, row_end)):
            above = [node for node in kernel.nodes if last not in kernel.free[node]]
            inner.compute(above, writer, later=set(kernel.nodes) - set(above))
            place = f"[{inner.axes[across]} - {row}]"
            for load, name in names.items():
                text = f"{name}{place}[{last.name} - {column}]"
                inner.values[load] = from_memory(text, load.dtype)
            ((_, plan),) = nest.inner
            write_inner(kernel, plan, inner, writer, (column, column_end))


def _turn_over(
    kernel: KernelWriter,
    turned: Turned,
    tile: Scope,
    writer: Writer,
    sizes: dict[Symbol, str],
    ends: dict[Symbol, tuple[str, str]],
) -> dict[Load, str]:
    """Write what fills the arrays of a tile; return their names."""
    last, across = kernel.body.axes[-1], turned.across
    (row, row_end), (column, column_end) = ends[across], ends[last]
    names = {}
    corner = Scope(kernel, tile)
    corner.axes.update({across: row, last: column})
    for load, step in turned.steps:
        dtype = kernel.buffers[load.buffer].dtype
        names[load] = tile.name(f"{kernel.names[load.buffer]}_tile")
        sides = f"[{sizes[across]}][{sizes[last]}]"
        writer.line(f"{ELEMENT_TYPES[dtype]} {names[load]}{sides};", load.source)
        kernel.use(f"turn_over.{dtype.itemsize}")
        source = corner.element(load.buffer, load.index)
        writer.line(
            f"turn_over_{dtype.itemsize * 8}(&{names[load]}[0][0], {sizes[last]}, &{source}, "
            f"{tile.index(step)}, {row_end} - {row}, {column_end} - {column});",
            load.source,
        )
    return names


__all__ = ["write_tiles"]
