"""Every heuristic of matrix products in Triton, each with its reason.

The figures are for an H200: 132 SMs, 227 KiB of shared memory each.  Measured there at 4096 x 4096
x 4096, float16, with bias and GELU: programs that stay and take tile after tile, fed by tensor
descriptors, 201 us; a program a tile, 207 with descriptors and 210 with pointers, 232 with pointers
where the second operand lies transposed; cuBLAS and separate kernels 206.  Automatic warp
specialization is not used: on Hopper, Triton 3.6 refuses these loops or never ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

import torch

from fusec.codegen.common.product_axes import ProductAxes, product_axes
from fusec.ir.body import Body, Buffer
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load
from fusec.ir.program import Settings
from fusec.machine import current_machine
from fusec.targets.triton.plan.choice import Choice, Knob, known, power_of_two, sms
from fusec.targets.triton.plan.tiling import LIMIT
from fusec.targets.triton.plan.word_products import in_words
from fusec.targets.triton.rewrite.packed_operands import group_of, reads_bytes

STRATEGIES = ("tiles", "persistent", "split", "rows", "words")
FEW_ROWS = 64  # below, a product waits for memory: its second operand is read once
FINISHED = (16, 32)  # rows and columns of a program that adds up parts: many, and soon over
DESCRIPTOR_BYTES = 16  # what a tensor descriptor wants its base and its strides to be divisible by


@dataclass(frozen=True)
class Operand:
    """How tiles of an operand lie in memory.

    Attributes:
        buffer: The buffer, where the operand is nothing but its elements.
        strides: Elements from one row to the next, and from one column to the next.
        shape: Rows and columns.
    """

    buffer: str
    strides: tuple[Expr, Expr]
    shape: tuple[Expr, Expr]

    @property
    def turned(self) -> bool:
        """Whether its columns are contiguous rather than its rows."""
        return self.strides[1].constant != 1


@dataclass(frozen=True)
class Product(ProductAxes):
    """A body with a matrix product, taken apart.

    Attributes:
        whole_rows: Whether something is reduced over the columns, so that a tile is a whole row.
        left: The first operand, where it is a matrix in memory.
        right: The second operand, likewise.
        packed: Whether an operand is computed from bytes.
        group: Elements along the sum that share a scale; 0 where there are no such groups.
        in_words: Numbers a word of the second one's, where its words can go straight into
            registers; else 0.
    """

    whole_rows: bool
    left: Operand | None
    right: Operand | None
    packed: bool
    group: int
    in_words: int

    @property
    def sizes(self) -> tuple[Expr, Expr, Expr]:
        """Rows, columns and the summed dimension."""
        found = tuple(axis.size or Expr.of(1) for axis in (self.row, self.column, self.inner))
        return found[0], found[1], found[2]

    @property
    def count(self) -> Expr:
        """The number of independent products."""
        return Expr.of(1) if self.batch is None or self.batch.size is None else self.batch.size

    @property
    def described(self) -> bool:
        """Whether tensor descriptors can fetch both operands."""
        there = self.left is not None and self.right is not None
        return self.batch is None and there and not self.whole_rows


def match_product(body: Body, buffers: Mapping[str, Buffer]) -> Product:
    """Return the parts of a body with one matrix product."""
    axes = product_axes(body)
    node, row, column, inner = axes.node, axes.row, axes.column, axes.inner
    left = as_matrix(node.args[0], (row, inner), buffers)
    right = as_matrix(node.args[1], (inner, column), buffers)
    packed = [operand for operand in node.args if reads_bytes(operand, inner)]
    group = gcd(*(group_of(operand, inner) for operand in packed)) if packed else 0
    several = column in body.reduce_axes
    found = Product(
        node, axes.batch, row, column, inner, several, left, right, bool(packed), group, 0
    )
    if not packed or several:
        return found
    laid = in_words(found, group, buffers)
    return found if laid is None else replace(found, in_words=laid.words.count)


def as_matrix(
    node: object, axes: tuple[Symbol, Symbol], buffers: Mapping[str, Buffer]
) -> Operand | None:
    """Return how an operand lies in memory, where a tensor descriptor can say so.

    It wants one dimension contiguous, and the other's stride and the base divisible by 16 bytes;
    ``launch`` copies what lies at an odd place.
    """
    if not isinstance(node, Load) or node.mask is not None:
        return None
    buffer = buffers[node.buffer]
    offset = buffer.offset(node.index)
    first, second = axes
    strides = offset.coefficient(first), offset.coefficient(second)
    if offset != Expr.of(first) * strides[0] + Expr.of(second) * strides[1]:
        return None
    steps = [stride.constant for stride in strides]
    if 1 not in steps:
        return None
    other = steps[0] if steps[1] == 1 else steps[1]
    if not other or other * buffer.dtype.itemsize % DESCRIPTOR_BYTES:
        return None
    shape = first.size or Expr.of(1), second.size or Expr.of(1)
    return Operand(node.buffer, strides, shape)


def choose_product(
    product: Product, buffers: Mapping[str, Buffer], strategy: str = "", settings: Settings = ()
) -> Choice:
    """Decide how a matrix product is computed, and with what tunables.

    Args:
        product: The product.
        buffers: By name.
        strategy: One of ``STRATEGIES``, where a measurement knows better than the rules.
        settings: Values of tunables, likewise.
    """
    if strategy == "persistent" and not product.described:
        strategy = "tiles"
    if strategy == "split" and not _parts_fit(product):
        strategy = "tiles"
    if strategy == "words" and not product.in_words:
        strategy = "tiles"
    if product.whole_rows or strategy == "rows":
        strategy = "rows" if product.whole_rows else "tiles"
    rule = candidates(product)
    kind, values = next((c for c in rule if c[0] == strategy or not strategy), (strategy, ()))
    chosen = {**_DEFAULTS, "PROGRAMS": sms(), **dict(values), **dict(settings)}
    width = max(power_of_two(known(product.sizes[1])), 16) if product.whole_rows else 0
    if product.group:
        chosen["BLOCK_K"] = min(chosen["BLOCK_K"], max(_steps_of(product.group)))
    knobs = tuple(_knob(name, chosen[name], product.group) for name in _NAMES[kind])
    if kind == "words":
        knobs = tuple(replace(k, choices=_OF_WORDS.get(k.name, k.choices)) for k in knobs)
    return Choice(kind, (), knobs=knobs, row_block=width)


def better_transposed(product: Product) -> bool:
    """Whether the transposed product is computed, as ``(right.T @ left.T).T``.

    A warpgroup of Hopper's tensor cores multiplies 64 rows by any multiple of 8 columns and reads
    both from shared memory. Fewer rows would go the older way, warp by warp and through registers:
    16 x 11008 over 4096 in float16 took 34.5 us so, 32.4 transposed; reading the weight and nothing
    else takes 32.0.
    """
    rows, columns, _ = (known(size) for size in product.sizes)
    few = FEW_ROWS if product.packed else 32  # what is unpacked is in registers then
    return rows <= few and columns >= 64 and product.node.args[0].dtype.itemsize == 2


def scales_sums(product: Product) -> bool:
    """Whether the sums of a step are multiplied by a scale that all of its weights have.

    Of up to 16 rows a thread has 8 sums where it has 64 weights, and numbers of 4 bits may be
    halves without an exponent.  Microseconds among launches of a CUDA graph on an H100, each weight
    scaled; the sums; with such halves: 16 x 11008 over 4096 15.4, 14.7, 14.1; 16 x 4096 over 11008
    16.2, 15.4, 14.9.
    """
    return known(product.sizes[0]) <= 16


def _parts_fit(product: Product) -> bool:
    """Whether 32-bit positions reach all parts of all sums."""
    elements = (product.sizes[0] * product.sizes[1] * product.count).constant
    return elements is not None and elements * max(_KNOBS["SPLITS"][0]) < LIMIT


_DEFAULTS = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "NUM_WARPS": 4}
_DEFAULTS |= {"NUM_STAGES": 3, "SPLITS": 4, "STEPS": 4}
_TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
_NAMES = {
    "tiles": (*_TILE, "NUM_WARPS", "NUM_STAGES"),
    "persistent": (*_TILE, "PROGRAMS", "NUM_WARPS", "NUM_STAGES"),
    "split": (*_TILE, "SPLITS", "NUM_WARPS", "NUM_STAGES"),
    "rows": ("BLOCK_M", "BLOCK_K", "NUM_WARPS", "NUM_STAGES"),
    "words": ("BLOCK_N", "STEPS", "NUM_WARPS"),
}
_OF_WORDS = {"BLOCK_N": (16, 32, 64), "NUM_WARPS": (1, 2, 4, 8, 16)}
_KNOBS: dict[str, tuple[tuple[int, ...], str]] = {
    "BLOCK_M": ((16, 32, 64, 128, 256), "rows of a tile"),
    "BLOCK_N": ((16, 32, 64, 128, 256), "columns of a tile"),
    "BLOCK_K": ((32, 64, 128, 256), "products added up a step"),
    "GROUP_M": ((1, 4, 8, 16), "tiles below each other that come first"),
    "PROGRAMS": ((), "programs that share the tiles"),  # half of the SMs, as many, two each
    "SPLITS": ((1, 2, 3, 4, 6, 8, 16), "programs that share a tile's sum"),
    "STEPS": ((1, 2, 4, 8), "steps of the sum whose words a warp loads at once"),
    "NUM_WARPS": ((2, 4, 8), "warps a program, 32 threads each"),
    "NUM_STAGES": ((2, 3, 4, 5, 6, 8, 10), "steps of the loop that are loaded ahead"),
}


def _steps_of(group: int) -> tuple[int, ...]:
    """Return the steps of a loop that lie within a group each."""
    return tuple(n for n in (32, 64, 128, 256) if group % n == 0)


def _knob(name: str, value: int, group: int) -> Knob:
    choices, meaning = _KNOBS[name]
    if name == "BLOCK_K" and group:
        choices = _steps_of(group)
    if name == "PROGRAMS":
        choices = (sms() // 2, sms(), 2 * sms())
    return Knob(name, value, choices, meaning)


def _setting(
    block_m: int, block_n: int, block_k: int, stages: int, warps: int, **more: int
) -> Settings:
    found = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k}
    found |= {"NUM_STAGES": stages, "NUM_WARPS": warps, **more}
    return tuple(found.items())


def candidates(product: Product) -> list[tuple[str, Settings]]:
    """Return what is worth trying, the rules' own choice first."""
    rows, columns, inner = (known(size) for size in product.sizes)
    if product.whole_rows:
        found = _whole_rows(product, rows, columns)
    elif product.node.args[0].dtype == torch.float32 and product.node.precision == "ieee":
        found = _exact(rows, columns, inner)
    elif min(rows, columns) <= FEW_ROWS and product.packed:
        found = _packed(rows, columns, inner, known(product.count))
        if product.in_words:
            better = product.in_words == 8 and rows <= 8
            found = [*_words(rows, columns), *found] if better else [*found, *_words(rows, columns)]
    elif min(rows, columns) <= FEW_ROWS:
        found = _few_rows(rows, columns, inner, known(product.count))
    else:
        found = _many_rows(product, rows, columns, known(product.count))
    itemsize = product.node.args[0].dtype.itemsize
    fitted = [
        (kind, values if kind == "words" else _fitted(values, itemsize, inner))
        for kind, values in found
    ]
    return list(dict.fromkeys(fitted))


def _few_rows(rows: int, columns: int, inner: int, count: int) -> list[tuple[str, Settings]]:
    """Few rows (or columns): every program streams its part of the large operand, once.

    The memory is busy with 48 to 200 KiB on their way for each SM. Where there are too few tiles
    for all SMs, several programs share the sum of each, or each has more steps on their way: 16 x
    4096 over 11008 takes 34.2 us with ten steps ahead in 64 programs, or with the sums shared by
    four; cuBLAS 36.8. With 64 rows, 64 x 11008 over 4096, 8 warps and 128 columns took 35.8 us,
    42.3 with 4 warps and 64; cuBLAS with a kernel for the epilogue 38.7.
    """
    tall = columns <= FEW_ROWS and columns < rows
    short = max(power_of_two(min(rows, columns)), 16)
    long = max(rows, columns)
    many = ((128, 64, 6, 8), (32, 128, 6, 4), (128, 128, 4, 8), (32, 128, 3, 4), (64, 64, 5, 4))
    few = ((64, 128, 4, 4), (64, 64, 6, 4), (128, 64, 4, 4), (64, 256, 3, 4), (32, 256, 5, 4))
    found: list[tuple[str, Settings]] = []
    for width, depth, stages, warps in many if min(rows, columns) > 32 else few:
        tile = (width, short) if tall else (short, width)
        programs = -(-long // width) * count
        values = _setting(*tile, depth, stages, warps, GROUP_M=1)
        splits = min(max(sms() // programs, 2), inner // 512, 16)  # one program for each SM
        enough = programs >= sms() * 15 // 16 or inner < 1024 or splits < 2
        if enough or rows * columns * count * 16 >= LIMIT:
            found.append(("tiles", values))
        else:
            found.append(("split", (*values, ("SPLITS", splits))))
            if programs >= sms() * 7 // 16 and len(found) < 3:
                found.append(("tiles", _setting(*tile, 128, 10, warps, GROUP_M=1)))
    return found


def _packed(rows: int, columns: int, inner: int, count: int) -> list[tuple[str, Settings]]:
    """Few rows and a weight of few bits: its unpacking takes as long as its bytes, or longer.

    Sixteen warps an SM overlap the two, in programs which share the sums of a tile where there are
    fewer tiles.  All run at once: 16 x 11008 over 4096 with 4 bits on an H100 23.6 us with three
    programs of four warps a tile, 25.0 with four, of which a few have to wait; 64 rows, which
    every program reads, 31.7 us in tiles of 128 columns, 37.7 in tiles of 64.
    """
    tall = columns <= FEW_ROWS and columns < rows
    short = max(power_of_two(min(rows, columns)), 16)
    long = max(rows, columns)
    found: list[tuple[str, Settings]] = []
    tiles = ((64, 128, 3, 4), (128, 128, 3, 8), (64, 128, 4, 4))
    for width, depth, stages, warps in tiles if short <= 32 else (tiles[1], *tiles[::2]):
        tile = (width, short) if tall else (short, width)
        programs = -(-long // width) * count
        values = _setting(*tile, depth, stages, warps, GROUP_M=1)
        splits = min(16 // warps * sms() // programs, inner // 512, 16)
        if splits < 2 or rows * columns * count * 16 >= LIMIT:
            found.append(("tiles", values))
        else:
            found.append(("split", (*values, ("SPLITS", splits))))
    return found


def _words(rows: int, columns: int) -> list[tuple[str, Settings]]:
    """Words straight into registers: 4 bits and at most 8 rows, a copy of which each L1 has.

    Microseconds a launch among launches of a CUDA graph, each with another weight, on an H100: 1 x
    11008 over 4096 12.3 to 12.6 with 16 columns a program and 4 warps; 15.0 with sums shared by
    programs (``split``), 9.4 for reading the words and nothing else, 35.6 for the product of
    halves.  8 rows 13.8 with 32 columns and two steps at once, ``split`` 14.9.  1 x 4096 over 11008
    13.2 to 14.4 with 16 columns and 8 warps, ``split`` 15.8.  More warps add up more: 16 of them 24
    to 27; fewer have too little on its way: one or two 13.2 at best.  16 rows are loaded by every
    program: 17.3, where ``split`` takes 15.2.  With 8 bits neither is quicker.
    """
    found = [(32, 2, 4), (16, 1, 4), (16, 2, 4), (16, 2, 8)]
    if columns < 64 * sms():
        found.reverse()
    elif rows == 1:
        found[:2] = reversed(found[:2])
    return [
        ("words", (("BLOCK_N", width), ("STEPS", steps), ("NUM_WARPS", warps)))
        for width, steps, warps in found
    ]


def _whole_rows(product: Product, rows: int, columns: int) -> list[tuple[str, Settings]]:
    """Tiles as wide as a row, and as high as registers allow while the SMs have enough to do."""
    width = max(power_of_two(columns), 16)
    exact = product.node.args[0].dtype == torch.float32 and product.node.precision == "ieee"
    found: list[tuple[str, Settings]] = []
    shapes = ((128, 64, 3, 8), (64, 64, 4, 4), (32, 64, 4, 4), (16, 128, 3, 4))
    few = rows * known(product.count) <= 32 * sms() // 2  # more programs are over sooner
    for block_m, block_k, stages, warps in reversed(shapes) if few else shapes:
        tiles = -(-rows // block_m) * known(product.count)
        fits = block_m * width <= (32 * 256 if exact else 128 * 256)
        if fits and (tiles >= sms() or block_m <= 32):
            found.append(("rows", _setting(block_m, width, block_k, stages, warps)))
    return found


def _exact(rows: int, columns: int, inner: int) -> list[tuple[str, Settings]]:
    """float32 without tensor cores: small tiles, for which the registers suffice.

    Few rows wait for memory: with four programs for the sum of each tile 16 x 4096 over 4096 takes
    29.8 us, with one 39.6 at best; cuBLAS 88.9.
    """
    if rows <= 16 and columns >= 1024 and inner >= 2048:
        splits = min(max(sms() // -(-columns // 128), 2), inner // 512, 16)
        shared = ("SPLITS", splits)
        return [
            ("split", (*_setting(16, 128, 128, 4, 4, GROUP_M=1), shared)),
            ("split", (*_setting(16, 128, 64, 5, 4, GROUP_M=1), shared)),
            ("tiles", _setting(16, 32, 256, 6, 4, GROUP_M=1)),
        ]
    short = max(min(power_of_two(rows), 64), 16)
    wide = max(min(power_of_two(columns), 64), 16)
    return [
        ("tiles", _setting(short, wide, 64, 3, 4)),
        ("tiles", _setting(short, max(wide // 2, 16), 64, 3, 4)),
        ("tiles", _setting(short, wide, 32, 4, 8)),
    ]


def _many_rows(product: Product, rows: int, columns: int, count: int) -> list[tuple[str, Settings]]:
    """Many rows: large tiles, so that what a tile loads is multiplied often.

    128 x 256 needs 8 warps to hold its sums in registers. Where such tiles are too few for the
    SMs, smaller ones.
    """
    stay: list[tuple[str, Settings]] = []
    each: list[tuple[str, Settings]] = []
    for block_m, block_n, block_k, stages, warps in (
        (128, 256, 64, 3, 8),
        (128, 256, 64, 4, 8),
        (256, 128, 64, 3, 8),
        (128, 128, 64, 4, 8),
        (128, 128, 64, 4, 4),
        (64, 128, 64, 4, 4),
        (64, 64, 64, 4, 4),
        (64, 64, 128, 3, 4),
        (32, 64, 128, 4, 4),
        (32, 32, 128, 4, 2),
    ):
        tiles = -(-rows // block_m) * -(-columns // block_n) * count
        values = _setting(block_m, block_n, block_k, stages, warps)
        small = block_m * block_n <= 64 * 64
        if tiles >= 4 * sms() if small else tiles < sms() // 2:
            continue
        each.append(("tiles", values))
        if product.described:
            stay.append(("persistent", values))
    return [*stay[:4], *each[:3]] if stay else each[:6]


def _fitted(values: Settings, itemsize: int, inner: int) -> Settings:
    """Return settings whose stages fit into shared memory, for elements of ``itemsize`` bytes."""
    found = dict(values)
    if itemsize > 2:
        found["BLOCK_K"] //= 2
    found["BLOCK_K"] = max(min(found["BLOCK_K"], power_of_two(inner)), 16)
    shared = current_machine().gpu.shared
    step = (found["BLOCK_M"] + found["BLOCK_N"]) * found["BLOCK_K"] * itemsize
    while found["NUM_STAGES"] > 2 and step * found["NUM_STAGES"] > shared:
        found["NUM_STAGES"] -= 1
    while found["BLOCK_K"] > 16 and step * found["NUM_STAGES"] > shared:
        found["BLOCK_K"] //= 2
        step //= 2
    return tuple(found.items())
