"""The body of a reducing kernel: rows held in registers, or walked in steps.

Three shapes of text share everything but the loop:

* *persistent*: a tile holds whole rows, and every value is computed once;
* *looped*: ``plan_passes`` says which loop over the row computes what;
* *split*: several programs share a row; each writes what it found to scratch memory, and the
  next kernel begins by combining it.  No atomics: the result is the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusec.codegen.common.identities import CARRIED_WITH
from fusec.codegen.common.reduction_passes import PassPlan, ReductionPass
from fusec.ir.body import Store
from fusec.ir.node import Load, Node, Scan
from fusec.ir.walk import walk
from fusec.targets.triton.kernels.reducer import Reducer, nodes_for
from fusec.targets.triton.plan.eviction import for_passes
from fusec.targets.triton.plan.tiling import payloads
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.expressions import ATOM, SUM, Text
from fusec.targets.triton.text.indices import write_index
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.text.scans import start_scans
from fusec.targets.triton.text.unaligned_rows import write_odd_index


def write_persistent(kernel: KernelWriter, block: Block) -> None:
    """Write a kernel whose tile holds whole rows."""
    body = kernel.tile.body
    reducer = Reducer(kernel, block)
    block.write(body.nodes(), stores=body.stores, reduce=reducer.reduce)
    for store in body.stores:
        block.store(store)


def write_looped(kernel: KernelWriter, block: Block, plan: PassPlan, loop: str) -> None:
    """Write a kernel that walks the rows, once a pass.

    Args:
        kernel: The kernel.
        block: Its outermost block.
        plan: What happens in which pass.
        loop: The loop's head: ``for start in ...:``.
    """
    body = kernel.tile.body
    reducer = Reducer(kernel, block)
    stores = delayed_stores(plan)
    kernel.evict = for_passes(body, kernel.buffers, plan, one_program=True)
    for number, each in enumerate(plan.passes):
        block.must_name.update(loop_uses(plan, number))
        block.write(each.before, roots=later_uses(plan, number), stores=each.row_stores)
        write_pass(kernel, reducer, number, each, stores[number], loop)
        # what is carried ends with what it is carried with, which is therefore known by then
        for node in sorted(each.reductions, key=lambda n: n.kind in CARRIED_WITH):
            reducer.end(node)
    for each in plan.passes:
        for store in each.row_stores:
            write_places(block, store)
            block.store(store)


def write_places(block: Block, store: Store) -> None:
    """Write the run-time integers that say where a row value is stored."""
    block.write(walk(tuple(payloads(store.index))), stores=[store])


def write_pass(
    kernel: KernelWriter,
    reducer: Reducer,
    number: int,
    each: ReductionPass,
    stores: Sequence[Store],
    loop: str,
    origin: str = "start",
) -> None:
    """Write the loop of pass ``number``; ``origin`` is where a step begins."""
    if not each.reductions and not stores:
        return
    writer, inner_dim = kernel.writer, reducer.inner
    reducer.first, reducer.step = origin.removesuffix("start").removesuffix(" + ") or "0", origin
    for node in each.reductions:
        reducer.start(node)
    roots = [r.args[0] for r in each.reductions]
    wanted = [n for s in stores for n in (s.value, *payloads(s.index))]
    nodes = nodes_for(kernel, [*roots, *wanted])
    carries = start_scans(kernel, [n for n in nodes if isinstance(n, Scan)])
    writer.line(loop)
    with writer.indented():
        walk = kernel.tile.walk
        if walk is not None:
            first = Text(origin, SUM if "+" in origin else ATOM).within(ATOM)
            writer.line(f"{walk.index} = {first} // PADDED")
            if walk.mask:
                size = reducer.block.index(walk.size)
                writer.line(f"{walk.mask} = {walk.index} < {size}")
            origin = f"tl.multiple_of({first} % PADDED, {inner_dim.block})"
        wide = "" if kernel.index_type == "tl.int32" else f".to({kernel.index_type})"
        if kernel.odd is not None:
            write_odd_index(kernel.odd, kernel, reducer.block)
        else:
            write_index(kernel, inner_dim, f"{origin} + ", wide)
        inside = Block(kernel, reducer.block, number)
        inside.carries = carries
        inside.write(nodes, roots=roots, stores=stores)
        for node in each.reductions:
            reducer.update(node, inside)
        for store in stores:
            inside.store(store)


def loop_uses(plan: PassPlan, number: int) -> list[Node]:
    """Return the row values that loops from pass ``number`` on read, once for each reader."""
    found: list[Node] = []
    for each in plan.passes[number:]:
        for node in each.inside:
            found.extend(a for a in node.args if a not in plan.elementwise)
        found.extend(a for r in each.reductions for a in r.args if a not in plan.elementwise)
        found.extend(s.value for s in each.stores if s.value not in plan.elementwise)
    return found


def later_uses(plan: PassPlan, number: int) -> list[Node]:
    """Return the row values that loops and rows from pass ``number`` on read."""
    found = loop_uses(plan, number)
    for each in plan.passes[number + 1 :]:
        for node in each.before:
            found.extend(a for a in node.args)
        found.extend(s.value for s in each.row_stores)
    return found


def delayed_stores(plan: PassPlan) -> list[tuple[Store, ...]]:
    """Return the elementwise stores of each pass, late enough that no later load sees them."""
    result: list[list[Store]] = [[] for _ in plan.passes]
    last_read: dict[str, int] = {}
    for number, each in enumerate(plan.passes):
        for node in (*each.before, *each.inside):
            if isinstance(node, Load):
                last_read[node.buffer] = number
    for number, each in enumerate(plan.passes):
        for store in each.stores:
            result[max(number, last_read.get(store.buffer, 0))].append(store)
    return [tuple(stores) for stores in result]
