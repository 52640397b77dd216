"""Products of matrices: which are kernels of our own, and what goes in and out with them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch

from fusec.ir.body import Body, Buffer
from fusec.ir.node import Load
from fusec.ir.program import Compute
from fusec.ir.walk import walk
from fusec.schedule.choices import buffer_bytes, estimate, node_cost

# Multiplications of a product that is over before BLAS would have been called, and terms that one
# program adds up in so little time.  100 x 100 times 100 x 100 with a softmax took 21.5 us a call
# with BLAS, and takes 7.1 as one kernel; larger ones were not timed.
SMALL_PRODUCT = 1 << 20


SHORT_SUM = 128


def is_small_product(body: Body) -> bool:
    """Whether calling BLAS for a matrix product takes longer than a kernel of our own."""
    (product,) = body.products
    sizes = [axis.size for axis in (*body.axes, *product.axes) if axis.size is not None]
    numbers = [size.constant for size in sizes]
    if None in numbers:
        return False
    (inner,) = (axis.size for axis in product.axes)
    terms = inner.constant if inner is not None else 1
    work = math.prod(n for n in numbers if n is not None)
    return 0 < work <= SMALL_PRODUCT and terms is not None and terms <= SHORT_SUM


def is_vector_product(body: Body, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a product of matrices is best added up row by row, as a reduction: one is a vector.

    Tensor cores multiply at least eight rows, and there is one; all that takes time is reading
    the matrix. That wants its rows contiguous along the sum. 1 x 4096 over 4096 in float16
    took 13.8 us on an H200, cuBLAS 18.9; 1 x 11008 over 4096 with GELU 28.1, cuBLAS and a kernel
    38.2; with weights of 8 bits 1 x 4096 over 4096 took 11.5 instead of 28.5.
    """
    (product,) = body.products
    *batch, row, column = body.axes
    if any(axis.size != 1 for axis in batch) or 1 not in (row.size, column.size):
        return False
    matrix = product.args[1] if row.size == 1 else product.args[0]
    (inner,) = product.axes
    if not isinstance(matrix, Load):
        return False
    return buffers[matrix.buffer].offset(matrix.index).coefficient(inner) == 1


def may_feed_product(
    producer: Body,
    consumers: Sequence[Compute],
    buffers: Mapping[str, Buffer],
    products: Collection[str],
) -> str | None:
    """Return None where the tiles of a matrix product may compute an operand, else the reason not.

    Every tile computes its operands again, and tensor cores wait meanwhile. That pays where much
    less is read than the operand's own bytes (quantized weights), or where the computation is
    next to nothing. What only the epilogue reads is like any other value.

    Args:
        producer: One pointwise store.
        consumers: Who reads it.
        buffers: By name.
        products: What matrix products write.
    """
    if any(consumer.body.attends for consumer in consumers):
        return "attention reads its tensors from memory"
    name = producer.stores[0].buffer
    operands = {
        load.buffer
        for consumer in consumers
        for product in consumer.body.products
        for load in walk(product.args)
        if isinstance(load, Load)
    }
    if name not in operands:
        return None
    if len(consumers) > 1:
        return f"{len(consumers)} kernels read it, one of them as an operand of a matrix product"
    if not set(producer.reads()).isdisjoint(products):
        return "it belongs in the kernel of the matrix product that it reads"
    cost = node_cost(producer.nodes())
    inputs = {load.buffer for load in producer.loads()}
    sides = [estimate(axis.size) for axis in consumers[0].body.axes[-2:] if axis.size is not None]
    few = min(sides, default=1) <= FEW_ROWS
    narrow = few and unpacks(producer, buffers)
    if cost > (UNPACKING_COST if narrow else FEEDING_COST):
        return f"each tile of the matrix product would compute it again, at a cost of {cost}"
    # with few rows every element of the other operand is read once, and would be written before
    limit = 2.25 if few else 1.25
    if sum(buffer_bytes(buffers[each]) for each in inputs) > limit * buffer_bytes(buffers[name]):
        return "the matrix product would read more bytes than its operand has"
    return None


def is_whole(dtype: torch.dtype) -> bool:
    """Whether a type is one of integers."""
    return not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool


def unpacks(producer: Body, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a pointwise result is computed from bytes, no more than half as many as its own."""
    if producer.has_reduction or producer.scans() or len(producer.stores) != 1:
        return False
    own = buffer_bytes(buffers[producer.stores[0].buffer])
    names = {load.buffer for load in producer.loads()}
    packed = any(is_whole(buffers[name].dtype) for name in names)
    return packed and sum(buffer_bytes(buffers[name]) for name in names) * 16 <= own * 9


# What an operand's element may cost a tile: scale and shift, or a maximum with 0.
FEEDING_COST = 4


# The same where it is unpacked once, from half of its bytes or fewer: shift, mask, choose, scale.
UNPACKING_COST = 24


FEW_ROWS = 64
