"""The tile of a kernel, and the lines that say which part of the data a program computes."""

from __future__ import annotations

from fusec.ir.body import Body
from fusec.ir.index import Expr
from fusec.targets.triton.plan.choice import Choice
from fusec.targets.triton.plan.pairs import TWICE
from fusec.targets.triton.plan.tiling import Dim, Tile
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.file import File
from fusec.targets.triton.text.kernel_writer import KernelWriter


def make_tile(choice: Choice, body: Body) -> Tile:
    """Return the tile of a kernel for the moved body."""
    if choice.kind == "scalar":
        return Tile(body, (Dim(body.axes[0], Expr.of(1), "i", "", "", -1),), None, 0)
    if choice.kind == "flat":
        size = body.axes[0].size or Expr.of(1)
        return Tile(body, (Dim(body.axes[0], size, "i", "XBLOCK", "inside", 0),), None, 1)
    if choice.kind == "rows":
        y, x = body.axes
        dims = (
            Dim(y, y.size or Expr.of(1), "row", "", "", -1),
            Dim(x, x.size or Expr.of(1), "col", "XBLOCK", "col_inside", 0),
        )
        return Tile(body, dims, None, 1)
    if choice.kind == "tiled":
        y, x = body.axes
        dims = (
            Dim(y, y.size or Expr.of(1), "row", "YBLOCK", "row_inside", 0),
            Dim(x, x.size or Expr.of(1), "col", "XBLOCK", "col_inside", 1),
        )
        return Tile(body, dims, None, 2)
    x, r = body.axes[0], body.reduce_axes[-1]
    rows, columns = x.size or Expr.of(1), r.size or Expr.of(1)
    whole = choice.row_block > 0 and columns.constant == choice.row_block
    if choice.walked:
        p = body.reduce_axes[0]
        # programs that share a row may come past its end, others only past the end of a part
        shared = choice.kind == "split"
        walk = Dim(p, p.size or Expr.of(1), "part", "", "part_inside" if shared else "", -1)
        inner = Dim(r, columns, "col", "RBLOCK", "col_inside", 0)
        return Tile(body, (Dim(x, rows, "row", "", "", -1),), inner, 1, walk)
    if choice.scalar_rows:
        inner = Dim(r, columns, "col", "RBLOCK", "" if whole else "col_inside", 0)
        return Tile(body, (Dim(x, rows, "row", "", "", -1),), inner, 1)
    names = ("row", "col") if choice.inner_last else ("col", "row")
    place = 0 if choice.inner_last else 1
    outer = Dim(x, rows, names[0], "XBLOCK", f"{names[0]}_inside", place)
    mask = "" if whole else f"{names[1]}_inside"
    inner = Dim(r, columns, names[1], "RBLOCK", mask, 1 - place)
    return Tile(body, (outer,), inner, 2)


def write_outer_indices(file: File, kernel: KernelWriter, tile: Tile) -> list[str]:
    """Write the indices of the independent dimensions; return the grid."""
    writer = kernel.writer
    wide = "" if file.index == "tl.int32" else f".to({file.index})"
    block = Block(kernel)
    if tile.rank == 0:
        return ["1"]
    if len(tile.outer) == 2:
        row, col = tile.outer
        columns = f"tl.cdiv({block.index(col.size)}, XBLOCK)"
        writer.line(f"across = {columns}")
        writer.line(f"program = tl.program_id(0){wide}")
        if row.place < 0:
            writer.line("first = program // across * YBLOCK")
        else:
            write_index(kernel, row, "program // across * YBLOCK + ", "")
        write_index(kernel, col, "program % across * XBLOCK + ", "")
        down = f"triton.cdiv({file.host(row.size)}, YBLOCK)"
        return [f"{down} * triton.cdiv({file.host(col.size)}, XBLOCK)"]
    (dim,) = tile.outer
    if dim.place < 0:
        if dim.size != 1:
            writer.line(f"{dim.index} = tl.program_id(0){wide}")
        return [file.host(dim.size)]
    write_index(kernel, dim, f"tl.program_id(0){wide} * {dim.block} + ", "")
    return [f"triton.cdiv({file.host(dim.size)}, {dim.block})"]


def write_row_index(file: File, kernel: KernelWriter, dim: Dim) -> None:
    """Write the index along a row that a tile holds as a whole."""
    wide = "" if file.index == "tl.int32" else f".to({file.index})"
    write_index(kernel, dim, "", wide)


def write_index(kernel: KernelWriter, dim: Dim, start: str, wide: str) -> None:
    """Write an index of the tile and its mask.

    Args:
        kernel: Where to.
        dim: The dimension.
        start: What the positions begin at, ready to be added to: ``start + ``; may be empty.
        wide: The conversion of the positions, where they need one.
    """
    writer, spread = kernel.writer, dim.spread(kernel.tile.rank)
    size = Block(kernel).index(dim.size)
    along = f"{start}tl.arange(0, {dim.block})"
    if kernel.tile.is_lined(dim):
        kernel.lined.add(dim)
        writer.line(f"{dim.line} = {along}{wide}")
        writer.line(f"{dim.index} = {dim.line}{spread}")
        if dim.mask:
            writer.line(f"{dim.line_mask} = {dim.line} < {size}")
            writer.line(f"{dim.mask} = {dim.line_mask}{spread}")
        return
    writer.line(f"{dim.index} = {along}{spread}{wide}")
    if dim.mask:
        writer.line(f"{dim.mask} = {dim.index} < {size}")
    if (kernel.pairs or kernel.store_pairs) and dim.place == kernel.tile.rank - 1:
        first = start.removesuffix(" + ")
        writer.line(f"{TWICE} = 2 * ({first}) + tl.arange(0, 2 * {dim.block}){spread}")
        writer.line(f"{TWICE}_inside = {TWICE} < {Block(kernel).index(2 * dim.size)}")


def write_padded(kernel: KernelWriter, tile: Tile) -> str:
    """Write how many elements the steps over one part of a row take, and return its name."""
    assert tile.inner is not None
    size = Block(kernel).index(tile.inner.size)
    kernel.writer.line(f"PADDED: tl.constexpr = ({size} + RBLOCK - 1) // RBLOCK * RBLOCK")
    return "PADDED"
