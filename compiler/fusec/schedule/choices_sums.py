"""Sums of columns beside the rows: whether one kernel takes both, and in how many pieces."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusec.devices import is_gpu
from fusec.ir.index import Expr
from fusec.machine import current_machine
from fusec.schedule.choices import estimate

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
