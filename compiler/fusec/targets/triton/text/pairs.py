"""The text of pairs: one load, or one store, of two neighbors; ``plan/pairs.py`` finds them."""

from __future__ import annotations

from fusec.ir.node import Const, Node
from fusec.targets.triton.plan.pairs import TWICE, Pair, StorePair
from fusec.targets.triton.plan.tiling import Dim, index_guards
from fusec.targets.triton.text import expressions as ex
from fusec.targets.triton.text.block_text import BlockText
from fusec.targets.triton.text.expressions import Text
from fusec.targets.triton.text.masked_load import masked_load
from fusec.targets.triton.text.names import rounds_for_memory, suggested_name


def write_pair(block: BlockText, pair: Pair) -> None:
    """Write the load of two neighbors, unless ``block`` knows them already."""
    kernel, load = block.kernel, pair.second
    if load in block.known:
        return
    (col,) = (d for d in kernel.tile.dims if d.place == kernel.tile.rank - 1)
    dims = kernel.expr_dims(pair.rest) | {col}
    base = f"{kernel.parameters[load.buffer]}_ptr"
    if pair.rest.constant != 0:
        base = f"{base} + {block.index(pair.rest)}"
    conditions = [d.mask for d in block.ordered(dims - {col}) if d.mask]
    conditions.append(f"{TWICE}_inside")
    masks = [load.mask] if load.mask is not None else []
    for condition in masks + index_guards(load.index):
        along = kernel.node_dims(condition)
        text = _of_both(block, condition, col) if col in along else block.value(condition)
        conditions.append(text.within(ex.AND + 1))
        dims = dims | along
    address = f"{base} + {TWICE}"
    shape = kernel.tile.shape(dims)
    if any(d.place >= 0 for d in dims - kernel.expr_dims(pair.rest) - {col}):
        address = f"tl.broadcast_to({address}, {_doubled(shape, col.block)})"
    other = ex.number(load.other, load.dtype) if masks else None
    where = " & ".join(dict.fromkeys(conditions))
    for each in pair.loads:
        suggested = suggested_name(each, kernel.favorite, kernel.parameters)
        name = kernel.names.get(each) or kernel.name(suggested)
        kernel.names[each], block.known[each] = name, Text(name)
    names = [kernel.names[each] for each in pair.loads]
    whole = kernel.name(f"{TWICE}_{names[0]}")
    sources = tuple(each.source for each in pair.loads)
    kernel.writer.mark(pair.loads[0].source)
    both = masked_load(address, where, other, load.dtype)
    kernel.writer.line(f"{whole} = {both.source}", sources)
    split = f"tl.split(tl.reshape({whole}, {shape[:-1]}, 2]))"
    unused = "_, " if pair.first is None else ""
    kernel.writer.line(f"{unused}{', '.join(names)} = {split}", sources)


def write_store_pair(block: BlockText, pair: StorePair) -> None:
    """Write two stores as one of both elements in turns."""
    kernel = block.kernel
    (col,) = (d for d in kernel.tile.dims if d.place == kernel.tile.rank - 1)
    dims = frozenset(d for d in kernel.tile.dims if d.place >= 0)
    base = f"{kernel.parameters[pair.first.buffer]}_ptr"
    if pair.rest.constant != 0:
        base = f"{base} + {block.index(pair.rest)}"
    nodes = [store.value for store in (pair.first, pair.second)]
    plain = [n.args[0] if rounds_for_memory(n) and n not in kernel.names else n for n in nodes]
    if plain[0].dtype == plain[1].dtype:
        nodes = plain  # the store rounds
    values = []
    for node in nodes:
        value = ex.typed(block.value(node), node.dtype).source
        if dims - kernel.node_dims(node):
            value = f"tl.broadcast_to({value}, {kernel.tile.shape(dims)})"
        values.append(value)
    conditions = [d.mask for d in block.ordered(dims - {col}) if d.mask]
    conditions.append(f"{TWICE}_inside")
    sources = [
        s
        for store in (pair.first, pair.second)
        for s in (store.source, *block.pending.get(store.value, ()))
    ]
    kernel.writer.mark(pair.first.source)
    address = f"{base} + {TWICE}"
    if dims - kernel.expr_dims(pair.rest) - {col}:
        address = f"tl.broadcast_to({address}, {_doubled(kernel.tile.shape(dims), col.block)})"
    kernel.writer.line(
        f"tl.store({address}, tl.interleave({', '.join(values)}), {' & '.join(conditions)})",
        tuple(dict.fromkeys(sources)),
    )


def _of_both(block: BlockText, condition: Node, col: Dim) -> Text:
    """Return a condition on the index of pairs, for both elements of each.

    Written over ``twice``, so that Triton sees that it holds for a pair or does not, and loads no
    element by itself.
    """
    if isinstance(condition, Const) or col not in block.kernel.node_dims(condition):
        return block.value(condition)
    inner = block.within({col: f"({TWICE} // 2)"})
    if not block.kernel.compares_positions(condition):
        inner.known.update({arg: _of_both(block, arg, col) for arg in condition.args})
    return inner.text(condition)


def _doubled(shape: str, block: str) -> str:
    """Return the shape of a tile that has both elements of each pair."""
    return shape.replace(block, f"2 * {block}")


__all__ = ["write_pair", "write_store_pair"]
