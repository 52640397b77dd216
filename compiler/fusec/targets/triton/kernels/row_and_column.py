"""Rows that add to sums of the columns: a program goes over a piece of the rows.

It holds whole rows in registers, a few at a time, and beside them what it has added up for every
column so far; another kernel adds up the programs' sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.ir.body import Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Node
from fusec.ir.walk import walk
from fusec.targets.triton.kernels.reducer import Reducer
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.expressions import triton_type
from fusec.targets.triton.text.file import File, add_function
from fusec.targets.triton.text.indices import make_tile, write_index, write_row_index
from fusec.targets.triton.text.kernel_writer import KernelWriter


def write(file: File) -> None:
    """Write the kernel of a body that reduces rows and has sums of columns."""
    body, choice = file.body, file.choice
    count = body.rows_of_piece
    (axis,) = body.axes
    tile = make_tile(choice, body)
    (row,), inner = tile.outer, tile.inner
    assert inner is not None
    if row.size.constant is not None and row.size.constant % count == 0:
        row = replace(row, mask="")
        tile = tile.with_dims(row=row)
    kernel = file.new_kernel(file.name, body, tile)
    piece = Symbol("piece", "axis")
    kernel.size_names = {**kernel.size_names, piece: "piece"}
    writer, block = kernel.writer, Block(kernel)
    wide = "" if file.index == "tl.int32" else f".to({file.index})"
    writer.line(f"tl.static_assert({count} % XBLOCK == 0)")
    writer.line(f"piece = tl.program_id(0){wide}")
    write_row_index(file, kernel, inner)
    before = _of_no_row(kernel, body.nodes(), axis)
    block.must_name.update(before)
    block.write(before)
    full = f"[{row.block}, {inner.block}]"
    totals: dict[Store, str] = {}
    for store in body.sums:
        totals[store] = kernel.name("column_sum")
        dtype = triton_type(store.value.dtype)
        writer.line(f"{totals[store]} = tl.zeros({full}, {dtype})", (store.source,))
    writer.line(f"for start in tl.range(0, {count}, XBLOCK, num_stages=NUM_STAGES):")
    with writer.indented():
        write_index(kernel, row, f"piece * {count} + start + ", wide)
        inside = Block(kernel, block)
        inside.must_name.update(block.must_name)
        stores = [store for store in body.stores if store.mode != "sum"]
        reducer = Reducer(kernel, inside)
        roots = [store.value for store in body.sums]
        inside.write(body.nodes(), roots=roots, stores=stores, reduce=reducer.reduce)
        for store, name in totals.items():
            _add(inside, store, name, row.mask)
        for store in stores:
            inside.store(store)
    for store, name in totals.items():
        index = (Expr.of(piece), *store.index[1:])
        address, along = block.pointer(store.buffer, index)
        if inner not in along:  # a single column: Triton wants as many addresses as values
            address = f"tl.broadcast_to({address}, [1, {inner.block}])"
        mask = f", {inner.mask}" if inner.mask else ""
        value = f"tl.sum({name}, 0, keep_dims=True)"
        writer.line(f"tl.store({address}, {value}{mask})", (store.source,))
    pieces = file.host(file.buffers[body.sums[0].buffer].shape[0])
    constants = [(k.name, k.name) for k in file.knobs] + [("RBLOCK", str(choice.row_block))]
    add_function(file, kernel, file.name, [pieces], constants)


def _of_no_row(kernel: KernelWriter, nodes: Sequence[Node], row: Symbol) -> list[Node]:
    """Return what is loaded for the columns alone, and what that takes: the same for every row.

    What is computed from it is computed again for each row: as it lies in memory it takes fewer
    registers, in half precision.
    """
    loads = [n for n in nodes if isinstance(n, Load) and row not in kernel.free[n]]
    wanted = set(walk(tuple(loads)))
    return [n for n in nodes if n in wanted]


def _add(block: Block, store: Store, name: str, mask: str) -> None:
    """Write how the sums take the values of a step's rows."""
    value = block.value(store.value).source
    if mask:
        value = f"tl.where({mask}, {value}, 0.0)"
    block.kernel.writer.mark(store.source)
    sources = (store.source, *block.pending.get(store.value, ()))
    block.kernel.writer.line(f"{name} += {value}", sources)
