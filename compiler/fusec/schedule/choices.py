"""Every heuristic of the scheduler, each with its reason. None of them affects correctness."""

from __future__ import annotations

from collections.abc import Mapping

from fusec.ir.body import Body, Buffer
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Node, Op, Reduce, Scan
from fusec.ir.ops import EXPENSIVE

# A symbolic size counts as this many elements in an estimate.
SYMBOLIC_SIZE = 1024


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
    return sum(EXPENSIVE.get(node.name, 1) for node in nodes if isinstance(node, Op))


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


def may_recompute(producer: Body, uses: int, expansion: float, large: int) -> str | None:
    """Return None where a pointwise producer may be computed at each use, else the reason not.

    Args:
        producer: One pointwise store.
        uses: How many consumers would each compute it.
        expansion: How many times as often the busiest consumer would compute an element.
        large: Its ``large_inputs``.

    A producer with one consumer that reads each element once costs nothing to inline. Computing
    it again for every consumer pays as long as that is cheaper than a write and a read of memory:
    a cheap expression over few inputs. Elementary functions are worth keeping when each element
    would be computed many times over.
    """
    nodes = producer.nodes()
    cost = node_cost(nodes)
    inputs = len({node.buffer for node in nodes if isinstance(node, Load)})
    if uses == 1 and expansion <= 1:
        return None
    if inputs == 0 and cost <= 32:
        return None  # made from nothing: reading it could only be slower
    if expansion > 2 and cost >= 10:
        return f"each element would be computed {expansion:.0f} times, at a cost of {cost}"
    if uses > 1 and (cost >= 10 or large > 2):
        return f"{uses} consumers would each compute it, at a cost of {cost}"
    if uses > 4:
        return f"{uses} consumers read it"
    return None


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
    reductions = sum(isinstance(node, Reduce | Scan) for node in nodes)
    if reductions > MAX_REDUCTIONS:
        return f"the kernel would hold {reductions} reductions or scans, more than {MAX_REDUCTIONS}"
    return None
