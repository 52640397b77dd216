"""The body of a kernel without reductions."""

from __future__ import annotations

from fusec.codegen.triton.block import Block, Kernel
from fusec.ir.node import Reduce


def write_pointwise(kernel: Kernel, block: Block) -> None:
    """Write loads, maths and stores of one tile; everything is read before anything is written."""
    body = kernel.tile.body
    nodes = body.nodes()
    assert not any(isinstance(node, Reduce) for node in nodes)
    block.write(nodes, stores=body.stores)
    for store in body.stores:
        block.store(store)
