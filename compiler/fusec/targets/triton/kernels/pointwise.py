"""The body of a kernel without reductions."""

from __future__ import annotations

from fusec.ir.node import Const, Load, Reduce
from fusec.ir.walk import walk
from fusec.targets.triton.plan.tiling import payloads
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.text.pairs import write_store_pair


def write_pointwise(kernel: KernelWriter, block: Block) -> None:
    """Write loads, maths and stores of one tile; everything is read before anything is written."""
    body = kernel.tile.body
    nodes = body.nodes()
    assert not any(isinstance(node, Reduce) for node in nodes)
    block.write(nodes, stores=body.stores)
    if kernel.store_pairs:
        for pair in kernel.store_pairs:
            write_store_pair(block, pair)
        return
    for store in body.stores:
        block.store(store)


def write_rows(kernel: KernelWriter, block: Block) -> None:
    """Write a tile whose rows a loop takes one by one.

    What depends on the column alone is computed before the loop, and what depends on the row
    alone once a row, by one number: Triton spreads a tile over threads so that lanes which gather
    lie in different rows, and computes the place in a row for every element.
    """
    body = kernel.tile.body
    row, _ = kernel.tile.outer
    written = set(body.writes())
    nodes = [node for node in body.nodes() if not isinstance(node, Const)]
    before = [
        node
        for node in nodes
        if row.symbol not in kernel.free[node]
        and not any(isinstance(n, Load) and n.buffer in written for n in walk((node,)))
    ]
    outside = set(before)
    inside = [node for node in nodes if node not in outside]
    used = [arg for node in inside for arg in node.args if arg in outside]
    used += [s.value for s in body.stores if s.value in outside]
    used += [n for s in body.stores for n in payloads(s.index) if n in outside]
    block.must_name.update(used)
    block.write(before, roots=used)
    rows = block.index(row.size)
    stop = f"tl.minimum(first + YBLOCK, {rows})"
    kernel.writer.line(f"for row in tl.range(first, {stop}, loop_unroll_factor=UNROLL):")
    with kernel.writer.indented():
        loop = Block(kernel, block)
        loop.write(inside, stores=body.stores)
        for store in body.stores:
            loop.store(store)
