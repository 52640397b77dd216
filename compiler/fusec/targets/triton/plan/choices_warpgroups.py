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
from fusec.ir.index import Expr
from fusec.ir.node import Cast, Const, IndexValue, Load, Node, Op, Reduce
from fusec.ir.walk import free_axes, walk
from fusec.machine import current_machine
from fusec.targets.triton.plan.choice import Choice, Knob, known, sms
from fusec.targets.triton.plan.choices_attention import Attention, size_of
from fusec.targets.triton.rewrite.score_patterns import TANH, quicken

KIND = "warpgroups"
ROWS = 128  # queries of a program: 64, those of one instruction, for each group
DEPTH = 128  # of 64, Triton's own schedule is as fast; of more, results need too many registers
STEP = (64, 128)
# Elements that are copied at once: 16 bytes.
_TOGETHER = 8
# What Gluon has under the same name.
_STEPS = frozenset(
    "add sub mul neg where lt le gt ge eq ne logical_and logical_or logical_not bitwise_and "
    "bitwise_or exp2 abs".split()
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
    turns = settings.get("TURNS", _turns(found))
    values = {
        "BLOCK_N": (128, STEP, "keys of a step"),
        # with several tiles in turn, fewer heads leave the last ones less to wait for
        "GROUP_H": (4 if listed else 8, (1, 2, 4, 8, 16, 32), "heads whose rows come together"),
        "TURNS": (turns, _possible_turns(found), "tiles that a program has in turn"),
        "SEATS": (min(turns, 2), (1, 2), "tiles of queries in shared memory"),
        "NUM_STAGES": (2, (2, 3), "steps that are loaded ahead"),
    }
    if not set(settings) <= set(values):
        return None  # measured for the other kernel
    knobs = [Knob("BLOCK_M", ROWS, (ROWS,), "queries of a program")]
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


def _possible_turns(found: Attention) -> tuple[int, ...]:
    """Return in how many parts of one length each the queries of a head can be taken."""
    tiles = (found.sizes[0].constant or 0) // ROWS
    return tuple(turns for turns in (1, 2, 4, 8) if tiles % turns == 0)


def _turns(found: Attention) -> int:
    """Return how many tiles a program has.

    Where lists of blocks leave out most, the queries of the next tile, its first keys and values
    come in while this one's end is computed: 11 % of the time of a sliding window.  Without lists
    it is all the same.  And never so many that multiprocessors have nothing to do at the end.
    """
    if found.partial is None:
        return 1
    total = (found.sizes[0].constant or 0) // ROWS * known(found.pairs)

    def longest(turns: int) -> int:
        return -(-total // turns // sms()) * turns

    return min(_possible_turns(found), key=lambda turns: (longest(turns), -turns))


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
        if each is not None and each.columns < keys and keys % each.columns:
            return False
    along = {found.query: found.depth, found.keys: found.depth, found.values: found.width}
    for load, axis in along.items():
        strides = buffers[load.buffer].strides
        if load.index[-1] != Expr.of(axis) or strides[-1] != 1:
            return False
        if any(s.constant is None or s.constant % _TOGETHER for s in strides[:-1]):
            return False
    roots = quicken([found.modified, *([found.mask] if found.mask is not None else [])])
    free = free_axes(roots)
    return all(_simple(node, found, free[node]) for node in walk(roots, Reduce))


def _tiles(found: Attention) -> tuple[Load, Load, Load]:
    return found.query, found.keys, found.values


def _simple(node: Node, found: Attention, axes: frozenset[object]) -> bool:
    if node is found.product:
        return True
    if isinstance(node, Load):
        # A number for each score is read in the order of memory by other layouts.
        return not {found.row, found.key} <= axes
    if isinstance(node, Op):
        return node.name in _STEPS
    return isinstance(node, Cast | Const | IndexValue)


__all__ = ["KIND", "ROWS", "choose_warpgroups"]
