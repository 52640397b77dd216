"""When attention is written in Gluon, whose warps have tasks of their own, and its tunables.

On an H100 the multiplications of one group of warps run while another computes weights and a third
loads: 0.95 of the library's speed without a mask and 1.06 with a causal one, where Triton's own
schedule reaches 0.76 and 0.80 (docs/gpu-figures.md).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import metadata

from fusec.ir.body import Buffer
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Cast, Const, IndexValue, Load, Node, Op, Reduce
from fusec.ir.walk import free_axes, walk
from fusec.machine import current_machine
from fusec.targets.triton.plan.attention_gradients import Gradients, given_of
from fusec.targets.triton.plan.choice import Choice, Knob, known, sms
from fusec.targets.triton.plan.choices_attention import Attention, size_of
from fusec.targets.triton.rewrite.score_patterns import TANH, quicken

KIND = "warpgroups"
ROWS = 128  # queries of a program: 64, those of one instruction, for each group
DEPTH = 128  # of 64, Triton's own schedule is as fast; of more, results need too many registers
STEP = (64, 128)
GRADIENT_STEP = 64  # of more, two gradients and two products need more registers than there are
# Elements that are copied at once: 16 bytes.
_TOGETHER = 8
# Values of a score that its gradients may need beside the weights.  Gradients of keys and values
# and the products leave registers for weights alone: of a soft cap a quarter would be spilled.
_SLOPES = 4
# What Gluon has under the same name.
_STEPS = frozenset(
    "add sub mul neg where lt le gt ge eq ne logical_and logical_or logical_not bitwise_and "
    "bitwise_or exp2 abs maximum".split()
) | {TANH}


def choose_warpgroups(
    found: Attention, buffers: Mapping[str, Buffer], settings: Mapping[str, int]
) -> Choice | None:
    """Return the tunables of attention in Gluon; None where it cannot be, or pays not.

    Args:
        found: The attention.
        buffers: By name.
        settings: Values of tunables, where a measurement knows better than the rules.
    """
    gpu = current_machine().gpu
    if gpu.name != "sm_90" or not gpu.there or not _has_gluon() or not _fits(found, buffers):
        return None
    listed = found.partial is not None
    rows = found.sizes[0]
    turns = settings.get("TURNS", _turns(rows, found.pairs, listed))
    values = {
        "BLOCK_N": (128, STEP, "keys of a step"),
        # with several tiles in turn, fewer heads leave the last ones less to wait for
        "GROUP_H": (4 if listed else 8, (1, 2, 4, 8, 16, 32), "heads whose rows come together"),
        "TURNS": (turns, _possible_turns(rows), "tiles that a program has in turn"),
        "SEATS": (min(turns, 2), (1, 2), "tiles of queries in shared memory"),
        "NUM_STAGES": (2, (2, 3), "steps that are loaded ahead"),
    }
    if not set(settings) <= set(values):
        return None  # measured for the other kernel
    knobs = [Knob("BLOCK_M", ROWS, (ROWS,), "queries of a program")]
    for name, (value, choices, meaning) in values.items():
        knobs.append(Knob(name, settings.get(name, value), choices, meaning))
    return Choice(KIND, (), knobs=tuple(knobs))


def choose_warpgroup_gradients(
    found: Gradients, buffers: Mapping[str, Buffer], settings: Mapping[str, int]
) -> Choice | None:
    """Return the tunables of a kernel of gradients in Gluon; None where it cannot be.

    Args:
        found: The gradients.
        buffers: By name.
        settings: Values of tunables, where a measurement knows better than the rules.
    """
    gpu = current_machine().gpu
    if gpu.name != "sm_90" or not gpu.there or not _has_gluon():
        return None
    if found.captured or not _gradients_fit(found, buffers):
        return None
    own, over = ("BLOCK_N", "BLOCK_M") if found.by_keys else ("BLOCK_M", "BLOCK_N")
    words = {"BLOCK_M": "queries of a ", "BLOCK_N": "keys of a "}
    # A step of queries is given back before the next one begins, one of keys with it.
    stages, possible = (3, (2, 3, 4)) if found.by_keys else (4, (3, 4))
    values: dict[str, tuple[int, tuple[int, ...], str]] = {
        "GROUP_H": (4, (1, 2, 4, 8, 16, 32), "heads whose rows come together")
    }
    if found.by_keys and found.partial is not None:
        # Of a window, documents, a prefix 2 to 6 % of the time; eight are slower again but for a
        # window, and tiles of queries, whose steps are more, gain nothing.
        rows = size_of(found.own)
        turns = min(_turns(rows, found.pairs, listed=True), 4)
        values["TURNS"] = (turns, _possible_turns(rows), "tiles that a program has in turn")
    values["NUM_STAGES"] = (stages, possible, "steps that are loaded ahead")
    if not set(settings) <= set(values):
        return None  # measured for the other kernel
    knobs = [
        Knob(own, ROWS, (ROWS,), f"{words[own]}program"),
        Knob(over, GRADIENT_STEP, (GRADIENT_STEP,), f"{words[over]}step"),
    ]
    for name, (value, choices, meaning) in values.items():
        knobs.append(Knob(name, settings.get(name, value), choices, meaning))
    return Choice(KIND, (), knobs=tuple(knobs))


@functools.cache
def _has_gluon() -> bool:
    """Whether Gluon, an experiment of Triton's that changes, is as we write it."""
    try:
        return metadata.version("triton").startswith("3.6.")
    except metadata.PackageNotFoundError:
        return False


def _possible_turns(rows: Expr) -> tuple[int, ...]:
    """Return in how many parts of one length each the rows of a head can be taken."""
    tiles = (rows.constant or 0) // ROWS
    return tuple(turns for turns in (1, 2, 4, 8) if tiles % turns == 0)


def _turns(rows: Expr, pairs: Expr, listed: bool) -> int:
    """Return how many tiles a program has.

    Where lists of blocks leave out most, the rows of the next tile and its first steps come in
    while this one's end is computed: 11 % of the time of a sliding window.  Without lists it is
    all the same.  And never so many that multiprocessors have nothing to do at the end.
    """
    if not listed:
        return 1
    total = (rows.constant or 0) // ROWS * known(pairs)

    def longest(turns: int) -> int:
        return -(-total // turns // sms()) * turns

    return min(_possible_turns(rows), key=lambda turns: (longest(turns), -turns))


def _fits(found: Attention, buffers: Mapping[str, Buffer]) -> bool:
    """Whether tiles have no rest, rows lie at 16 bytes, and what becomes of scores is simple."""
    rows, keys = (size.constant for size in found.sizes)
    depth, width = size_of(found.depth), size_of(found.width)
    if rows is None or keys is None or rows % ROWS or keys % max(STEP):
        return False
    if depth != DEPTH or depth != width:
        return False
    if found.result.value.dtype.itemsize != 2:
        return False
    if any(load.dtype.itemsize != 2 or load.dtype != found.query.dtype for load in _tiles(found)):
        return False
    for each in (found.partial, found.full):
        if each is not None and (each.rows % ROWS or each.columns % max(STEP)):
            return False
        # A step is whole: a last block that reaches beyond the keys would have steps outside.
        if each is not None and keys % min(each.columns, keys):
            return False
    along = {found.query: found.depth, found.keys: found.depth, found.values: found.width}
    if not all(_has_whole_rows(load, axis, buffers) for load, axis in along.items()):
        return False
    roots = quicken([found.modified, *([found.mask] if found.mask is not None else [])])
    free = free_axes(roots)
    return all(
        node is found.product or _is_simple(node, free[node] >= {found.row, found.key})
        for node in walk(roots, Reduce)
    )


def _gradients_fit(found: Gradients, buffers: Mapping[str, Buffer]) -> bool:
    """Whether tiles have no rest, rows lie at 16 bytes, and what becomes of scores is simple."""
    own, over = (size_of(axis).constant for axis in (found.own, found.over))
    if own is None or over is None or own % ROWS or over % GRADIENT_STEP:
        return False
    depths = {size_of(product.axes[0]) for product in (found.score, found.of_weight)}
    if depths != {Expr.of(DEPTH)}:
        return False
    halves = {load.dtype for load in found.operands}
    halves |= {total.store.value.dtype for total in found.totals}
    if len(halves) > 1 or halves.pop().itemsize != 2:
        return False
    for each in (found.partial, found.full):
        if each is not None and (each.rows % ROWS or each.columns % GRADIENT_STEP):
            return False
        if each is not None and over % min(each.columns, over):
            return False
    query, key, gradient, value = found.operands
    along = {query: found.score, key: found.score, gradient: found.of_weight}
    for load, product in (along | {value: found.of_weight}).items():
        if not _has_whole_rows(load, product.axes[0], buffers):
            return False
    return _changes_fit(found)


def _changes_fit(found: Gradients) -> bool:
    """Whether what becomes of scores and of their weights' gradients is simple, in each loop."""
    kinds = set()
    for masked in (False, True):
        roots = quicken(found.roots(masked))
        nodes = [n for n in walk(roots, Reduce) if n not in (found.score, found.of_weight)]
        differentiated = {n for n in nodes if found.of_weight in walk((n,))}
        scored = [n for n in nodes if n not in differentiated and found.score in walk((n,))]
        given = given_of(found, roots, scored, differentiated)
        if len([root for root in roots if root in differentiated]) != 1 or not given:
            return False
        kinds.add(tuple(node.dtype for node in given))
        if found.common is not None:
            roots = (*roots, found.common.value)
        free = free_axes(roots)
        known = (found.score, found.of_weight, found.row_sum)
        for node in walk(roots, Reduce):
            if node not in known and not _is_simple(node, free[node] >= {found.own, found.over}):
                return False
    return len(kinds) == 1 and len(kinds.pop()) <= (1 if found.by_keys else 1 + _SLOPES)


def _tiles(found: Attention) -> tuple[Load, Load, Load]:
    return found.query, found.keys, found.values


def _has_whole_rows(load: Load, axis: Symbol, buffers: Mapping[str, Buffer]) -> bool:
    """Whether elements along an axis lie side by side, and rows begin at 16 bytes."""
    strides = buffers[load.buffer].strides
    if load.index[-1] != Expr.of(axis) or strides[-1] != 1:
        return False
    return not any(s.constant is None or s.constant % _TOGETHER for s in strides[:-1])


def _is_simple(node: Node, everywhere: bool) -> bool:
    """Whether Gluon has it.

    Args:
        node: What is computed.
        everywhere: Whether it is another one for each score.
    """
    if isinstance(node, Load):
        # A number for each score is read in the order of memory by other layouts.
        return not everywhere
    if isinstance(node, Op):
        return node.name in _STEPS
    return isinstance(node, Cast | Const | IndexValue)


__all__ = ["KIND", "ROWS", "choose_warpgroup_gradients", "choose_warpgroups"]
