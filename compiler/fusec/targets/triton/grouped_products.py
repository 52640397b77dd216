"""Products of some rows each with a matrix of their own, as mixtures of experts have them.

How many rows a matrix has is in the memory of the GPU and stays there: nobody waits for it. There
are as many programs as there could be tiles; each finds its matrix and its rows, the rest end.
"""

# ruff: noqa: N803  # constants of kernels
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from fusec.machine import current_machine
from fusec.targets.triton.toolchain.launch import Launcher, on_device_of

Tensor = torch.Tensor
SINGLE = 4  # bytes of a float32
TENSOR_CORES = 80  # the first of NVIDIA's architectures whose tensor cores take 19 bits


class GroupTiles(NamedTuple):
    """How a product is cut.

    Attributes:
        block_m: Rows of a tile.
        block_n: Columns of a tile.
        block_k: Products added up a step.
        warps: Of a program.
        stages: Steps of the loop that are loaded ahead.
    """

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


# Of float32, and of types of half as many bits.  Milliseconds on an H100, 16384 rows of 64 groups,
# 1024 by 768: rows in float32 0.43 (a loop over the groups 1.46), in tiles of 128 x 64 0.47;
# matrices 0.53 (1.37), in tiles of 64 x 64 0.74; in bfloat16 0.08 (ATen's own 0.09) and 0.09.
ROWS = GroupTiles(64, 64, 32, 4, 3), GroupTiles(128, 128, 64, 8, 3)
MATRICES = GroupTiles(128, 64, 32, 4, 3), GroupTiles(128, 128, 64, 8, 3)


@triton.jit
def rows_by_group(
    x_ptr,
    w_ptr,
    ends_ptr,
    out_ptr,
    rows,
    INNER: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUPS: tl.constexpr,
    PLACES: tl.constexpr,
    GROUP_STRIDE: tl.constexpr,
    INNER_STRIDE: tl.constexpr,
    COLUMN_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Multiply a tile of rows by its group's matrix; rows behind the last group become zeros."""
    tile = tl.program_id(1)
    place = tl.arange(0, PLACES)
    begin = tl.load(ends_ptr + place - 1, (place > 0) & (place <= GROUPS), other=0).to(tl.int32)
    end = tl.load(ends_ptr + place, place < GROUPS, other=0).to(tl.int32)
    begin = tl.minimum(tl.maximum(begin, 0), rows)  # as slices are
    end = tl.where(place == GROUPS, rows, tl.minimum(tl.maximum(end, 0), rows))
    tiles = tl.where(place <= GROUPS, tl.cdiv(tl.maximum(end - begin, 0), BLOCK_M), 0)
    through = tl.cumsum(tiles, 0)
    group = tl.sum((through <= tile).to(tl.int32), 0)
    if group <= GROUPS:
        own = place == group
        first = tile - tl.sum(tl.where(own, through - tiles, 0), 0)
        first = tl.sum(tl.where(own, begin, 0), 0) + first * BLOCK_M
        row = (first + tl.arange(0, BLOCK_M)[:, None]).to(tl.int64)
        row_inside = row < tl.sum(tl.where(own, end, 0), 0)
        col = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        col_inside = col < COLUMNS
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        if group < GROUPS:
            w_ptr += group.to(tl.int64) * GROUP_STRIDE
            for start in tl.range(0, INNER, BLOCK_K):
                k = start + tl.arange(0, BLOCK_K)
                x = tl.load(
                    x_ptr + row * INNER + k[None, :], row_inside & (k[None, :] < INNER), other=0.0
                )
                w = tl.load(
                    w_ptr + k[:, None] * INNER_STRIDE + col * COLUMN_STRIDE,
                    (k[:, None] < INNER) & col_inside,
                    other=0.0,
                )
                total = tl.dot(x, w, total, input_precision=EXACT)
        tl.store(out_ptr + row * COLUMNS + col, total, row_inside & col_inside)


@triton.jit
def matrices_by_group(
    x_ptr,
    y_ptr,
    ends_ptr,
    out_ptr,
    rows,
    INNER: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP_STRIDE: tl.constexpr,
    INNER_STRIDE: tl.constexpr,
    COLUMN_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Sum the outer products of a group's rows: a tile of what a matrix's gradient is."""
    group = tl.program_id(1)
    begin = tl.load(ends_ptr + group - 1, group > 0, other=0).to(tl.int32)
    begin = tl.minimum(tl.maximum(begin, 0), rows)
    end = tl.minimum(tl.load(ends_ptr + group).to(tl.int32), rows)
    across = tl.cdiv(COLUMNS, BLOCK_N)
    k = tl.program_id(0) // across * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    k_inside = k < INNER
    col_inside = col < COLUMNS
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in tl.range(begin, end, BLOCK_K):
        row = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        x = tl.load(x_ptr + row[None, :] * INNER + k, (row[None, :] < end) & k_inside, other=0.0)
        y = tl.load(
            y_ptr + row[:, None] * COLUMNS + col, (row[:, None] < end) & col_inside, other=0.0
        )
        total = tl.dot(x, y, total, input_precision=EXACT)
    out_ptr += group.to(tl.int64) * GROUP_STRIDE
    tl.store(out_ptr + k * INNER_STRIDE + col * COLUMN_STRIDE, total, k_inside & col_inside)


_rows = Launcher(rows_by_group)
_matrices = Launcher(matrices_by_group)


def grouped_rows(x: Tensor, weight: Tensor, ends: Tensor, *, launcher: Any = None) -> Tensor:
    """Return rows times the matrix of their group, zeros behind the last group.

    Args:
        x: Rows by inner; float32, float16 or bfloat16.
        weight: Groups by inner by columns, in any layout.
        ends: The row behind each group's last one, ascending; int32 or int64.
        launcher: What starts the kernel, in tests.
    """
    x, ends = x.contiguous(), ends.contiguous()
    rows, inner = x.shape
    groups, _, columns = weight.shape
    out = x.new_empty(rows, columns)
    if not out.numel():
        return out
    cut = ROWS[x.dtype.itemsize < SINGLE]
    tiles = triton.cdiv(rows, cut.block_m) + groups + 1
    kernel = (launcher or _rows)[(triton.cdiv(columns, cut.block_n), tiles)]
    places = triton.next_power_of_2(groups + 1)
    sizes = {"INNER": inner, "COLUMNS": columns, "GROUPS": groups, "PLACES": places}
    with on_device_of(x):
        kernel(x, weight, ends, out, rows, **sizes, **_strides(weight), **_options(cut))
    return out


def grouped_matrices(
    x: Tensor, y: Tensor, ends: Tensor, like: Tensor, *, launcher: Any = None
) -> Tensor:
    """Return for each group the product of its rows of ``x``, turned, with those of ``y``.

    Args:
        x: Rows by inner.
        y: Rows by columns.
        ends: As ``grouped_rows`` takes them.
        like: What the result is laid out as: groups by inner by columns.
        launcher: What starts the kernel, in tests.
    """
    x, y, ends = x.contiguous(), y.contiguous(), ends.contiguous()
    out = torch.empty_like(like)
    groups, inner, columns = out.shape
    if not out.numel():
        return out
    cut = MATRICES[x.dtype.itemsize < SINGLE]
    tiles = triton.cdiv(inner, cut.block_m) * triton.cdiv(columns, cut.block_n)
    kernel = (launcher or _matrices)[(tiles, groups)]
    sizes = {"INNER": inner, "COLUMNS": columns}
    with on_device_of(x):
        kernel(x, y, ends, out, x.shape[0], **sizes, **_strides(out), **_options(cut))
    return out


def _strides(weight: Tensor) -> dict[str, int]:
    names = ("GROUP_STRIDE", "INNER_STRIDE", "COLUMN_STRIDE")
    return dict(zip(names, weight.stride(), strict=True))


def _options(cut: GroupTiles) -> dict[str, object]:
    return {
        "EXACT": _exact(),
        "BLOCK_M": cut.block_m,
        "BLOCK_N": cut.block_n,
        "BLOCK_K": cut.block_k,
        "num_warps": cut.warps,
        "num_stages": cut.stages,
    }


def _exact() -> str:
    """Return how float32 is multiplied: by three products of tensor cores where there are such.

    Their errors are smaller than a loop's: 1.7e-7 for 2.7e-7 of the result, where multiplying and
    adding in float32 comes to 5.7e-7, and takes four times as long.
    """
    maker, _, number = current_machine().gpu.name.partition("_")
    return (
        "tf32x3" if maker == "sm" and number.isdigit() and int(number) >= TENSOR_CORES else "ieee"
    )


__all__ = ["grouped_matrices", "grouped_rows"]
