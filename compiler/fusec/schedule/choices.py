"""Every heuristic of the scheduler, each with its reason. None of them affects correctness."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from fusec.devices import is_gpu
from fusec.ir.body import Body, Buffer, Compute
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Node, Op, Reduce, Scan, free_axes, walk
from fusec.ir.scalars import cost_of
from fusec.machine import current_machine

# A symbolic size counts as this many elements in an estimate.
SYMBOLIC_SIZE = 1024

# The order of loops.
# Elements of a cache line, as a logarithm, and what of a longer stride counts on a CPU.
LINE = 4.0
BEYOND_A_LINE = 0.1
# What an element that is written counts for beside one that is read.  A processor reads a line for
# each that it writes to, and has no way to turn over what is written: two transposes added up took
# 9.5 ms where they were written down the columns, and 0.4 along the rows.
WRITES = 2
WRITES_ON_CPU = 4
# Loops of fewer elements than this are no vectors: three channels of an image, turned to the last
# place, took 155 us with the channels innermost and 82 with the columns.
VECTOR = 8
SHORT_LOOP = 1.0


def estimate(expr: Expr) -> int:
    """Return a size as a number for comparisons."""
    value = expr.evaluate(lambda symbol: SYMBOLIC_SIZE)
    assert isinstance(value, int)
    return value


def buffer_bytes(buffer: Buffer) -> int:
    """Return the bytes of a buffer, symbolic sizes estimated."""
    return estimate(buffer.elements) * buffer.dtype.itemsize


def node_cost(nodes: list[Node]) -> int:
    """Return the arithmetic of one element, an addition being 1."""
    return sum(cost_of(node.name) for node in nodes if isinstance(node, Op))


def points(axes: tuple[Symbol, ...]) -> int:
    """Return how many points a set of loops has."""
    total = 1
    for axis in axes:
        total *= estimate(axis.size) if axis.size is not None else 1
    return total


# What is this much smaller than a result is not counted as an input of it: it stays in the cache.
SMALL_INPUT = 8


def large_inputs(producer: Body, buffers: Mapping[str, Buffer]) -> int:
    """Return how many buffers of about the result's size a pointwise producer reads."""
    own = buffer_bytes(buffers[producer.stores[0].buffer])
    names = {node.buffer for node in producer.loads()}
    return sum(buffer_bytes(buffers[name]) * SMALL_INPUT > own for name in names)


# What a GPU computes while a byte goes to or from its memory, half of it for the kernel's own work.
OPERATIONS_A_BYTE = 4


@dataclass(frozen=True)
class ReadingKernel:
    """What a value's readers are expected to be part of.

    Attributes:
        sizes: Of its loops.
        reads: What they read.
        first: Whether it waits for no other kernel of them.
    """

    sizes: tuple[tuple[Expr, ...], ...]
    reads: frozenset[str]
    first: bool = True


def cheaper_again(
    producer: Body, kernels: Sequence[ReadingKernel], buffers: Mapping[str, Buffer]
) -> bool:
    """Whether a GPU computes a value sooner in each kernel than it writes and reads it.

    A kernel with the same loops that waits for none of the others may be the one that writes it,
    and need not read it then.

    Args:
        producer: One pointwise store.
        kernels: What reads it.
        buffers: By name.
    """
    made = buffers[producer.stores[0].buffer]
    if not is_gpu(made.device):
        return False
    own = buffer_bytes(made)
    inputs = {name for name in producer.reads() if buffer_bytes(buffers[name]) * SMALL_INPUT > own}
    writer = any(kernel.first and kernel.sizes == producer.sizes() for kernel in kernels)
    passes = 1 + len(kernels) - (writer and len(kernels) > 1)
    saved = passes * own + sum(buffer_bytes(buffers[name]) for name in inputs)
    for kernel in kernels:
        saved -= sum(buffer_bytes(buffers[name]) for name in inputs - kernel.reads)
    again = (len(kernels) - 1) * node_cost(producer.nodes()) * estimate(made.elements)
    return again <= OPERATIONS_A_BYTE * saved


# A tensor is small beside what is made of it by this factor, and turned over for next to nothing.
SMALL_TABLE = 64


def is_turned_over(
    producer: Body, consumers: Sequence[Body], buffers: Mapping[str, Buffer]
) -> bool:
    """Whether a small tensor is copied into another order, in which a large kernel reads it often.

    Such as the weights of a convolution of each channel by itself, turned over so that the channels
    are innermost: read as they were, the lanes of a warp would read a line of memory each.
    """
    (store,) = producer.stores
    loads = producer.loads()
    if len(loads) != 1 or node_cost(producer.nodes()) or loads[0].mask is not None:
        return False
    written, read = buffers[store.buffer], buffers[loads[0].buffer]
    inner = [
        symbol
        for index, stride in zip(store.index, written.strides, strict=True)
        if stride == Expr.of(1)
        for symbol in index.symbols()
    ]
    if not inner:
        return False
    steps = [
        stride * index.coefficient(inner[0])
        for index, stride in zip(loads[0].index, read.strides, strict=True)
        if inner[0] in index.symbols() and index.is_affine_in(inner[0])
    ]
    large = all(points(c.axes) >= SMALL_TABLE * points(producer.axes) for c in consumers)
    return large and bool(steps) and steps[0] != Expr.of(1)


# Readings of a value, after which one tensor in place of several saves more than writing it costs.
MANY_TIMES = 8


def may_recompute(
    producer: Body,
    uses: int,
    expansion: float,
    large: int,
    cheap: bool = False,
    taps: bool = False,
) -> str | None:
    """Return None where a pointwise producer may be computed at each use, else the reason not.

    Args:
        producer: One pointwise store.
        uses: How many consumers would each compute it.
        expansion: How many times as often the busiest consumer would compute an element.
        large: Its ``large_inputs``.
        cheap: Whether it is ``cheaper_again``.
        taps: Whether a consumer ``is_convolution`` and multiplies it by weights.

    A producer with one consumer that reads each element once costs nothing to inline. Computing
    it again for every consumer pays as long as that is cheaper than a write and a read of memory:
    a cheap expression over few inputs. Elementary functions are worth keeping when each element
    would be computed many times over.
    """
    nodes = producer.nodes()
    cost = node_cost(nodes)
    if expansion >= FEW_TAPS and cost > TAP_COST and taps:
        return f"a window would compute each element {expansion:.0f} times, at a cost of {cost}"
    inputs = len({node.buffer for node in nodes if isinstance(node, Load)})
    if uses == 1 and expansion <= 1:
        return None
    if inputs == 0 and cost <= 32:
        return None  # made from nothing: reading it could only be slower
    if expansion >= MANY_TIMES and large > 1:
        return f"each of {large} tensors would be read {expansion:.0f} times instead of one"
    if expansion > 2 and cost >= 10:
        return f"each element would be computed {expansion:.0f} times, at a cost of {cost}"
    if uses > 1 and (cost >= 10 or large > 2) and not cheap:
        return f"{uses} consumers would each compute it, at a cost of {cost}"
    if uses > 4:
        return f"{uses} consumers read it"
    return None


# Bytes of converted inputs that are there before they are needed, so that conversions of a kind
# start as one; and what one of them has at least to be put off.
EARLY_BYTES = 32 << 20
LEAST_SUNK_BYTES = 64 << 10

# A result is written over what it is computed from where memory matters; small tensors keep apart,
# so that fewer kernels differ in nothing else.
LEAST_OVERWRITTEN_BYTES = 1 << 20

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
        return "it belongs into the kernel of the matrix product that it reads"
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

# Beyond these a kernel spills registers, compiles slowly, and cannot be read.
MAX_ARGUMENTS = 24
MAX_NODES = 400
MAX_REDUCTIONS = 12


def too_large(body: Body) -> str | None:
    """Return why a fused body would be too large, or None."""
    arguments = len(set(body.reads()) | set(body.writes()))
    if arguments > MAX_ARGUMENTS:
        return f"the kernel would take {arguments} tensors, more than {MAX_ARGUMENTS}"
    nodes = body.nodes()
    if len(nodes) > MAX_NODES:
        return f"the kernel would compute {len(nodes)} values, more than {MAX_NODES}"
    if body.products:
        return unfit_for_product(body)
    reductions = sum(isinstance(node, Reduce | Scan) for node in nodes)
    if reductions > MAX_REDUCTIONS:
        return f"the kernel would hold {reductions} reductions or scans, more than {MAX_REDUCTIONS}"
    return None


# -- windows with weights -----------------------------------------------------------------------

# Elements of an image, and weights, that one element of a convolution takes at least.
FEW_TAPS = 4
MANY_TAPS = 16
# What is computed once for each tap: a comparison with 0, say, and no more.
TAP_COST = 1


def is_convolution(body: Body) -> bool:
    """Whether each element takes several of an image, each times a weight from a small table."""
    if body.has_reduction:
        return False
    loads = body.loads()
    counts = Counter(load.buffer for load in loads)
    often = {name for name, count in counts.items() if count >= FEW_TAPS}
    if len(often) < 2:
        return False
    free = free_axes(tuple(loads))
    axes = {axis for axis in body.axes if axis.size != 1}
    images = {load.buffer for load in loads if free[load] >= axes}
    return bool(often & images) and bool(often - images)


def reads_windows(body: Body) -> bool:
    """Whether each element takes many of one tensor: a convolution, the gradient of enlarging."""
    counts = Counter(load.buffer for load in body.loads())
    many = not body.has_reduction and max(counts.values(), default=0) >= MANY_TAPS
    return many or is_convolution(body)


def unfit_for_windows(first: Body, second: Body, buffers: Mapping[str, Buffer]) -> str | None:
    """Return why a computation and one after it or beside it are kernels of their own, or None.

    An element of an image is read by as many others as a window has pixels; computed there it
    would be computed as often.  Sums are taken by programs that each go down a few columns, where
    neighbors along both axes are far apart.  And what is in half precision is not widened on its
    way to memory (in a MobileNet's backward pass, where two kernels read it, 0.6 ms of 6.2).
    """
    if is_convolution(second) and set(first.writes()) & set(second.reads()):
        return "each of its elements would be computed once for every pixel of a window"
    if (reads_windows(first) and second.has_reduction) or (
        is_convolution(second) and first.has_reduction
    ):
        return "windows are computed in tiles of their own"
    if reads_windows(first) and set(first.writes()) & set(second.reads()):
        own = max(buffers[name].dtype.itemsize for name in first.writes())
        if any(buffers[name].dtype.itemsize > own for name in second.writes()):
            return "what comes of a window is stored before it is widened"
    return None


# -- sums of columns beside the rows ----------------------------------------------------------

# Shorter rows are reduced several at a time, side by side; a sum a column is of no use there.
CROSSED_COLUMNS = 64
# With fewer rows there is little to save, and few pieces to share among threads: so many at least.
CROSSED_ROWS = 64
CROSSED_LEAST = 4
# Pieces of the rows: for threads to share on a CPU; on a GPU for programs, each with its sums in
# registers, so many an SM.
CROSSED_PIECES = 64
CROSSED_PROGRAMS = 2
# Rows of a piece, at least and at most. A piece of few rows writes nearly as much as it reads; what
# a piece of many adds up in float32 should be as exact as eager's cascade.
PIECE_ROWS = (8, 512)
# Rows of a piece where the number of rows is not known: few pieces for a few hundred rows are
# better than the many for a hundred thousand are bad.
SYMBOLIC_PIECE_ROWS = 64
# Bytes that the sums of a piece may take on a CPU: a part of the second-level cache, where the
# row is as well.
CROSSED_BYTES = 256 * 1024
# Values that a program on a GPU may hold a row of, its sums included: what half of an SM's
# registers hold.
CROSSED_VALUES = 32768


def rows_of_piece(
    rows: Expr,
    columns: int | None,
    itemsizes: Sequence[int],
    saved: int,
    device: torch.device,
    *,
    given: int = 0,
    wanted: bool = False,
) -> int | str:
    """Return how many rows share a sum a column, or why the sums are left to another kernel.

    It depends on nothing but sizes and the kind of device, so that sums are equal in every run.

    Args:
        rows: How many there are.
        columns: How long they are; None where that is not known.
        itemsizes: Bytes of an element of each sum.
        saved: Bytes that need not be read again.
        device: Where it runs.
        given: How many share other sums of the same kernel; 0 where it has none yet.
        wanted: Whether somebody asked for it, whatever it costs.
    """
    if columns is None:
        return "rows of a length that may change have no room for a sum of each column"
    count = rows.constant
    if count is not None and count < CROSSED_ROWS:
        return f"{count} rows are too few to share out among sums of the columns"
    if columns < CROSSED_COLUMNS:
        return f"rows of {columns} are too short to keep a sum of each column"
    if is_gpu(device):
        width = 1 << (columns - 1).bit_length()
        if width * (1 + len(itemsizes)) > CROSSED_VALUES:
            return f"rows of {columns} leave no registers for sums of the columns"
    elif columns * sum(itemsizes) > CROSSED_BYTES:
        return f"sums of {columns} columns do not stay in the cache"

    def pays(piece: int) -> bool:
        """Whether writing and reading the sums takes less than half of what is saved."""
        return 4 * -(-estimate(rows) // piece) * columns * sum(itemsizes) <= saved

    piece = given or piece_rows(count, device)
    if not given and not pays(piece):
        more = (n for n in (2 * piece, 4 * piece) if estimate(rows) >= CROSSED_LEAST * n)
        piece = next((n for n in more if n <= SYMBOLIC_PIECE_ROWS and pays(n)), piece)
    if not pays(piece) and not wanted:
        return "the sums of all pieces of the rows would take more memory traffic than they save"
    return piece


def piece_rows(count: int | None, device: torch.device) -> int:
    """Return how many of ``count`` rows share a sum where memory traffic is of no account."""
    if count is None:
        return SYMBOLIC_PIECE_ROWS
    least, most = PIECE_ROWS
    programs = CROSSED_PROGRAMS * current_machine().gpu.processors
    piece = -(-count // (programs if is_gpu(device) else CROSSED_PIECES))
    step = max(least, 1 << max(piece // 8, 1).bit_length() - 1)  # tiles of rows should fit in
    return min(-(-piece // step) * step, most)


# -- products ---------------------------------------------------------------------------------

# A tile holds whole rows of a product up to this many columns, its sums in registers.
PRODUCT_COLUMNS = 256


def unfit_for_product(body: Body) -> str | None:
    """Return why a fused body is no matrix product with an epilogue, or None.

    Tensor cores take one product over whole tiles; what follows is computed in registers, element
    by element, or row by row where a tile is as wide as the whole row.
    """
    if len(body.products) > 1:
        return "a kernel computes one matrix product"
    (product,) = body.products
    columns = [axis for axis in body.reduce_axes if axis not in product.axes]
    others = [n for n in body.nodes() if isinstance(n, Reduce) and n is not product]
    if len(columns) > 1 or body.scans() or any([*n.axes] != columns for n in others):
        return "a tile of a matrix product does not see all that is reduced"
    if columns:
        size = columns[0].size.constant if columns[0].size is not None else None
        if size is None:
            return "a row whose length may change may be longer than a tile of a matrix product"
        if size == 1:
            return "rows of one element have nothing to reduce"
        if size > PRODUCT_COLUMNS:
            return f"a row of {size} is longer than a tile of a matrix product"
    if any(load.buffer in body.writes() for load in body.loads()):
        return "a matrix product that overwrites what other tiles may still have to read"
    return None
