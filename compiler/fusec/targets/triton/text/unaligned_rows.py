"""The text of loops over rows that begin anywhere; ``plan/unaligned_rows.py`` finds them."""

from __future__ import annotations

from fusec.targets.triton.plan.unaligned_rows import ACCESS, odd_row
from fusec.targets.triton.text.block_text import BlockText
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.text.odd_loop import OddLoop


def write_odd_index(loop: OddLoop, kernel: KernelWriter, block: BlockText) -> None:
    """Write the positions of a step, and which of them are in the row."""
    inner = kernel.tile.inner
    assert inner is not None
    size = block.index(inner.size)
    writer = kernel.writer
    writer.line(f"{loop.place} = start + tl.arange(0, {inner.block})")
    wide = "" if kernel.index_type == "tl.int32" else f".to({kernel.index_type})"
    position = f"{loop.place} - {loop.shift}"
    writer.line(f"{inner.index} = {f'({position}){wide}' if wide else position}")
    writer.line(f"{inner.mask} = ({inner.index} >= 0) & ({inner.index} < {size})")


def write_odd_row(kernel: KernelWriter, block: BlockText) -> OddLoop | None:
    """Write where the groups of a row begin and end; None where its rows are not odd."""
    row = odd_row(kernel.tile, kernel.buffers)
    inner = kernel.tile.inner
    if row is None or inner is None:
        return None
    size, group = block.index(inner.size), row.group
    bytes_each = ACCESS // group
    parameter = kernel.parameters[row.buffer]
    begin, shift = kernel.name(f"{parameter}_row"), kernel.name("shift")
    aligned, place, reach = (kernel.name(suggested) for suggested in ("aligned", "place", "reach"))
    text = f"{parameter}_ptr"
    if row.begin.constant != 0:
        text += f" + {block.index(row.begin)}"
    writer = kernel.writer
    writer.line(f"# rows begin anywhere: {group} elements of {ACCESS} bytes are loaded as one")
    writer.line(f"{begin} = {text}")
    writer.line(f"{shift} = ({begin}.to(tl.int64) // {bytes_each} % {group}).to(tl.int32)")
    writer.line(f"{aligned} = tl.multiple_of({begin} - {shift}, {ACCESS})")
    end = f"({size} + {shift} + {group - 1}) // {group} * {group}"
    writer.line(f"{reach} = tl.multiple_of({end}, {group})")
    return OddLoop(row, aligned, shift, place, reach, inner.mask)


__all__ = ["write_odd_index", "write_odd_row"]
