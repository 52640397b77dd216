"""The scheduler's heuristics, each with its reason. None of them affects correctness.

``choices_products.py`` and ``choices_sums.py`` have those of products and of sums of columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fusec.devices import is_gpu
from fusec.ir.body import Body, Buffer, axis_sizes
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Node, Op, Reduce, Scan
from fusec.ir.scalars import cost_of
from fusec.ir.shapes import product as shape_product
from fusec.ir.walk import free_axes

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


# Multiplications of a product that BLAS shares among threads. 100 x 100 x 100 it does.
SHARED_PRODUCT = 1 << 19
# Cost of an element (an exponential's is 10) from which a kernel right behind such a product is
# shared out sooner, and from how many elements, in rows and one by one.  There the threads still
# wait for work in a loop.  Two threads, of which both did, took of one thread's time on a Sapphire
# Rapids Xeon: softmax of rows of 128 1.11 (4,096 elements), 0.93 (8,192), 0.81 (10,240), 0.74
# (16,384); exp, tanh, log and GELU 1.15 to 1.25 (8,192), 1.0 to 1.11 (10,240), 0.73 to 0.81
# (16,384); a product and a sum 1.43 (8,192), 1.11 (16,384), 0.89 (32,768).  Elsewhere threads may
# be asleep, or their processor another's: then the same kernels took 5 ms in place of 0.1 (each
# call 50 ms after the last), as eager's do, so that microseconds to be gained are not worth it.
SHARED_COST = 10
AWAKE_GRAIN_OF_ROWS = 8192
AWAKE_GRAIN = 16384


def wakes_threads(multiplications: int | None) -> bool:
    """Whether a matrix product is surely worth threads to the library that is called for it."""
    return multiplications is not None and multiplications >= SHARED_PRODUCT


def grain_of_awake_threads(body: Body) -> int | None:
    """Return how many elements make threads that are awake worth while; None for the usual."""
    count = shape_product(axis_sizes(body.axes + body.reduce_axes)).constant
    if count is None or not SHARED_COST <= node_cost(body.nodes()) < 2 * SHARED_COST:
        return None
    return AWAKE_GRAIN_OF_ROWS if body.has_reduction else AWAKE_GRAIN


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
    first: bool


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
    is_cheap: Callable[[], bool],
    taps: bool,
) -> str | None:
    """Return None where a pointwise producer may be computed at each use, else the reason not.

    Args:
        producer: One pointwise store.
        uses: How many consumers would each compute it.
        expansion: How many times as often the busiest consumer would compute an element.
        large: Its ``large_inputs``.
        is_cheap: Asked where it matters: whether it is ``cheaper_again``.
        taps: Whether a consumer ``is_convolution`` and multiplies it by weights.

    A producer with one consumer that reads each element once costs nothing to inline: none of the
    reasons holds then. Computing it again for every consumer pays as long as that is cheaper than
    a write and a read of memory: a cheap expression over few inputs. Elementary functions are
    worth keeping when each element would be computed many times over.
    """
    nodes = producer.nodes()
    cost = node_cost(nodes)
    if expansion >= FEW_TAPS and cost > TAP_COST and taps:
        return f"a window would compute each element {expansion:.0f} times, at a cost of {cost}"
    inputs = len({node.buffer for node in nodes if isinstance(node, Load)})
    if inputs == 0 and cost <= 32:
        return None  # made from nothing: reading it could only be slower
    if expansion >= MANY_TIMES and large > 1:
        return f"each of {large} tensors would be read {expansion:.0f} times instead of one"
    if expansion > 2 and cost >= 10:
        return f"each element would be computed {expansion:.0f} times, at a cost of {cost}"
    if uses > 1 and (cost >= 10 or large > 2) and not is_cheap():
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
    in_image = [free[load] >= axes for load in loads if load.buffer in often]
    return any(in_image) and not all(in_image)


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
