"""Decisions on Triton kernels at both sides of each bound: nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, cast, index_value, indirect, op, recording
from fusec.machine import using
from fusec.targets.triton.plan import choices
from fusec.targets.triton.plan.choice import known, power_of_two
from fusec.targets.triton.plan.phases import fills_tile, size_of
from fusec.targets.triton.plan.reduction_facts import stores_rows, walked_axes
from fusec.targets.triton.plan.tiling import LIMIT, MOST_TIMES, by_stride, times_reach
from fusec.targets.triton.rewrite.packed_operands import (
    FUSED,
    _converted,
    _narrow,
    _whole,
    _widened,
    narrowed,
)
from fusec.targets.triton.rewrite.word_operands import (
    _constant,
    _field,
    _numbers,
    _view,
    _word_of,
    as_words,
)
from fusec.targets.triton.text.block import is_often_zero
from fusec.targets.triton.text.expressions import number
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.toolchain import packed_kernel
from fusec.targets.triton.toolchain.lines import (
    placed_texts,
    ptx_by_line,
    sass_by_line,
)
from fusec.targets.triton.toolchain.watched_run import collecting
from support.decisions import runs
from support.triton_bodies import F32, at, axes, buffer
from support.whole_programs import MACHINE

U8, I8, I16 = torch.uint8, torch.int8, torch.int16
I32, I64 = torch.int32, torch.int64


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording():
        yield


# -- sizes ------------------------------------------------------------------------------------


def test_sizes_that_are_known_or_guessed() -> None:
    assert runs(power_of_two, range(10)) == "0 to 1: 1; 2: 2; 3 to 4: 4; 5 to 8: 8; 9: 16"
    hinted = Expr.of(Symbol("n", "size", low=0, hint=40))
    assert known(Expr.of(7)) == 7
    assert known(hinted * 2 + 1) == 81
    assert known(Expr.of(Symbol("n", "size", low=0, hint=0))) == 1
    assert size_of(*axes(12)) == 12


def test_rows_that_fill_their_tile() -> None:
    found = [n for n in range(1, 300) if not fills_tile(n)]
    assert [n for n in found if n < 16] == [*range(1, 16)]
    assert [n for n in found if 16 <= n < 128] == [*range(17, 24), *range(33, 48), *range(65, 96)]
    assert [n for n in found if n >= 128] == [*range(129, 192), *range(257, 288)]


def test_positions_that_grow_with_tensors() -> None:
    n, m = (Expr.of(Symbol(name, "size", low=2)) for name in "nm")
    free = Expr.of(Symbol("k", "size", low=0))
    odd = Expr.of(Symbol("o", "size", low=-1))
    (a,), (b,), (c,), (large,) = axes(n), axes(free), axes(100), axes(2**31)
    i, j, k = (Expr.of(each) for each in (a, b, c))
    reach = [n, n * m]
    cases: list[tuple[Expr, int | None]] = [
        (i, 1),
        (2 * i - n + 1, 3),
        (m, 1),
        (Expr.of(5), 0),
        (i + 2**20, None),
        (i + 2**20 - 1, 1),
        (i - 2**20, None),
        (j, None),
        (k, 1),
        (Expr.of(large), None),
        (free, None),
        (odd, None),
        (n * m, None),
        (i // m, 1),
        ((i - k) // m, None),
        (3 * i + 4 * k, 7),
    ]
    assert [(e, times_reach(e, reach)) for e, _ in cases] == cases
    assert times_reach(n, [n * free]) is None, "the other factor may be zero"
    assert times_reach(n, [n + m]) is None, "a sum says less"
    assert times_reach(n, []) is None


# -- loops over rows --------------------------------------------------------------------------


def row(rows: tuple[int, ...], columns: int, computed: bool = False) -> tuple[Body, list[Symbol]]:
    loops = axes(*rows, columns)
    index = at(*loops)
    if computed:
        place = indirect(ops.load("places", index[:1], I64), Expr.of(rows[0]))
        index = (place, *index[1:])
    value = ops.load("x", index, F32)
    return Body(loops, (), (Store("y", at(*loops), value),)), [*loops]


def test_a_loop_over_rows() -> None:
    def knobs(rows: tuple[int, ...], columns: int, programs: int, computed: bool = False) -> Any:
        found = choices.row_loop(*row(rows, columns, computed), programs)
        return tuple(knob.value for knob in found)

    assert knobs((1000,), 512, 1) == (8, 256, 2, 4)
    assert knobs((1000,), 512, 1, computed=True) == (8, 256, 1, 2)
    assert knobs((10, 100), 512, 1) == (8, 256, 2, 4)
    assert knobs((1000,), 47, 1) == ()
    assert knobs((1000,), 48, 1) == (8, 64, 1, 4)
    # programs: 1000 rows by 8, two blocks a row
    assert knobs((1000,), 512, 250) == (8, 256, 2, 4)
    assert knobs((1000,), 512, 251) == (4, 256, 2, 2)
    assert knobs((1000,), 512, 500) == (4, 256, 2, 2)
    assert knobs((1000,), 512, 501) == (2, 256, 2, 1)
    assert knobs((1000,), 512, 1000) == (2, 256, 2, 1)
    assert knobs((1000,), 512, 1001) == ()
    assert knobs((10, 100), 512, 1000) == (2, 256, 2, 1)


def test_tiles_of_rows() -> None:
    def tiles(rows: int, columns: int, block: int = 1024) -> Any:
        body, loops = row((rows,), columns)
        buffers = {n: buffer(n, (rows, columns)) for n in ("x", "y")}
        flat = (choices.Knob("XBLOCK", block, (), ""), choices.warps(4))
        return tuple(k.value for k in choices.row_tiles(body, buffers, loops, flat))

    assert runs(lambda n: tiles(100, n), (1, 15, 16, 17, 23, 24, 32, 33, 47, 48)) == (
        "1 to 15: (); 16: (64, 16, 4); 17 to 23: (); 24 to 32: (32, 32, 4); 33 to 47: ();"
        " 48: (16, 64, 4)"
    )
    assert tiles(100, 2048) == (1, 1024, 4)
    assert tiles(1, 2048) == ()
    assert tiles(100, 64, block=128) == (2, 64, 4)


def test_knobs_of_straight_memory() -> None:
    def flat(points: int, irregular: bool = False, dtype: torch.dtype = F32) -> Any:
        (i,) = axes(points)
        value = ops.binary("add", ops.load("x", at(i), dtype), ops.load("z", at(i), dtype))
        body = Body((i,), (), (Store("y", at(i), value),))
        buffers = {n: buffer(n, (points,), dtype) for n in "xyz"}
        return tuple(k.value for k in choices.flat_knobs(body, buffers, points, irregular))

    with using(MACHINE):
        many = 2 * choices.sms()
        assert flat(1024 * many) == (1024, 4)
        assert flat(1024 * many - 1) == (512, 4)
        assert flat(512 * many - 1) == (256, 4)
        assert flat(256 * many - 1) == flat(1) == (128, 2)
        assert flat(1024 * many, dtype=torch.float64) == (512, 4)
        assert flat(1024 * many, dtype=torch.float16) == (1024, 2)
        assert flat(1024 * many, dtype=U8) == (2048, 4)
        assert flat(1024 * many, irregular=True) == (256, 2)


# -- reductions -------------------------------------------------------------------------------


def sums(*inner: int, kind: str = "sum", scanned: bool = False) -> tuple[Body, tuple[Symbol, ...]]:
    (i,), reduced = axes(4), axes(*inner, prefix="r")
    x = ops.load("x", at(i, *reduced), F32)
    if scanned:
        value = ops.scan("sum", x, reduced[-1], F32)
        return Body((i,), reduced, (Store("y", at(i, *reduced), value),)), reduced
    value = ops.reduce(kind, x, reduced, I64 if kind.startswith("arg") else F32)
    return Body((i,), reduced, (Store("y", at(i), value),)), reduced


@pytest.mark.parametrize(
    ("sizes", "more", "outer"),
    [
        ((6, 256), {}, 1),
        ((6, 255), {}, 0),
        ((6, 8192), {}, 1),
        ((6, 8193), {}, 0),
        ((6, 9216), {}, 1),
        ((6, 9217), {}, 0),
        ((512,), {}, 0),
        ((1, 512), {}, 0),
        ((5, 6, 256), {}, 2),
        ((5, 1, 256), {}, 1),
        ((6, 256), {"kind": "argmax"}, 0),
        ((6, 256), {"kind": "max"}, 1),
        ((6, 256), {"scanned": True}, 0),
    ],
)
def test_axes_that_a_loop_takes_one_by_one(
    sizes: tuple[int, ...], more: dict[str, Any], outer: int
) -> None:
    body, reduced = sums(*sizes, **more)
    wide = tuple(axis for axis in reduced if axis.size != 1)
    found = walked_axes(body, reduced)
    assert found == ((wide[:-1], wide[-1:]) if outer else ((), reduced))
    assert len(found[0]) == outer


def test_who_stores_whole_rows() -> None:
    (i,), (r,) = axes(4), axes(6, prefix="r")
    x = ops.load("x", at(i, r), F32)
    total = ops.reduce("sum", x, (r,), F32)
    one = Store("total", at(i), total)
    each = Store("y", at(i, r), ops.binary("sub", x, total))
    for stores, rows in (((one,), False), ((each,), True), ((one, each), True)):
        assert stores_rows(Body((i,), (r,), stores)) is rows


# -- whole numbers in words -------------------------------------------------------------------


def shifted(node: Node, by: int, name: str = "rshift") -> Node:
    return ops.binary(name, node, ops.const(by, node.dtype))


def test_which_bits_of_memory_a_number_is() -> None:
    (i,) = axes(64)

    def field(make: Callable[[Node], Node], dtype: torch.dtype = U8) -> Any:
        found = _field(make(ops.load("w", at(i), dtype)))
        return None if found is None else (found.shift, found.mask, found.signed)

    assert field(lambda w: w) == (0, 255, False)
    assert field(lambda w: w, I8) == (0, 255, True)
    assert field(lambda w: w, I32) == (0, 2**32 - 1, True)
    assert field(lambda w: w, F32) is None
    assert field(lambda w: shifted(w, 4)) == (4, 15, False)
    assert field(lambda w: shifted(w, 7)) == (7, 1, False)
    assert field(lambda w: shifted(w, 8)) is None
    assert field(lambda w: shifted(w, 31), I32) == (31, 1, True)
    assert field(lambda w: shifted(w, 32), I32) is None
    assert field(lambda w: shifted(w, 15, "bitwise_and")) == (0, 15, False)
    assert field(lambda w: shifted(shifted(w, 4), 3, "bitwise_and")) == (4, 3, False)
    assert field(lambda w: shifted(w, 15, "bitwise_and"), I8) == (0, 15, False)
    assert field(lambda w: shifted(shifted(w, 4), 15, "bitwise_and"), I8) == (4, 15, False)
    assert field(lambda w: shifted(w, -1, "bitwise_and"), I8) is None
    assert field(lambda w: shifted(shifted(w, 0, "bitwise_and"), 1)) is None
    assert field(lambda w: ops.cast(shifted(w, 15, "bitwise_and"), I32)) == (0, 15, False)
    assert field(lambda w: ops.cast(w, I8)) is None, "it may not fit"
    assert field(lambda w: ops.cast(shifted(w, 127, "bitwise_and"), I8)) == (0, 127, False)
    assert field(lambda w: ops.cast(w, I32), I8) is None, "of a sign there are copies"
    assert field(lambda w: ops.binary("add", w, w)) is None
    masked = ops.load("w", at(i), U8, ops.load("ok", at(i), torch.bool))
    assert _field(masked) is None


def test_numbers_of_a_word_are_as_far_apart_as_is_known() -> None:
    """Four bytes beside each other are a word; not where a step is as long as a tensor is."""
    (i,), (word,) = axes(64), axes(16)
    n = Expr.of(Symbol("n", "size", low=2))

    def found(step: Expr | int) -> Any:
        w = Buffer("w", (Expr.of(64) * step,), (Expr.of(1),), U8)
        number = ops.load("w", (Expr.of(i) * step,), U8)
        return _word_of(number, i, word, 4, False, {"w": w})

    read, order, flip, views = found(1)
    assert (read.dtype, order, flip, list(views)) == (I32, (0, 1), 0, ["w words"])
    assert read.index == (Expr.of(word),)
    assert found(n) is None
    assert found(2) is None


def test_words_begin_where_every_fourth_byte_does() -> None:
    i, j = axes(64, 64)
    bytes_of = Buffer("w", (Expr.of(1022),), (Expr.of(1),), U8)

    def index(base: Expr) -> Expr | None:
        found = _view(base, bytes_of, "words")
        if found is None:
            return None
        words, (place,) = found
        assert (words.name, words.shape, words.dtype) == ("words", (Expr.of(256),), I32)
        return place

    row, column = Expr.of(i), Expr.of(j)
    assert index(row * 4) == row
    assert index(row * 8 + column * 4 + 12) == row * 2 + column + 3
    assert index(row * 4 + column * 2) is None
    assert index(row * 4 + 2) is None
    for other in (column // 3, column % 3):
        assert index(other * 4) is None, "no place that steps evenly"
        assert index(row * 4 + other * 4) is None, "nor one that does so along another loop alone"


def test_numbers_of_a_word_are_of_one_tensor() -> None:
    """Those of even places and those of odd ones may be of two, or of two types."""
    (i,), (word,) = axes(64), axes(16)
    bytes_of = {name: Buffer(name, (Expr.of(64),), (Expr.of(1),), U8) for name in "ab"}
    even = ops.binary("eq", index_value(Expr.of(i) % 2, I64), ops.const(0, I64))

    def found(other: str) -> Any:
        number = ops.where(even, ops.load("a", at(i), U8), ops.load(other, at(i), U8))
        return _word_of(number, i, word, 4, False, bytes_of)

    assert found("a") is not None
    assert found("b") is None


def test_words_are_whole() -> None:
    """Four threads read a word each at once: of other sizes the last would have a part of one."""

    def found(size: int) -> Any:
        (i,) = axes(size)
        byte = ops.load("w", at(i), U8)
        buffers = {"w": Buffer("w", (Expr.of(size),), (Expr.of(1),), U8)}
        return as_words(ops.cast(byte, torch.float16), i, 0, buffers)

    assert found(64) is not None
    assert found(72) is None


def test_whole_numbers_that_an_operand_is_made_of() -> None:
    """Signed bytes are taken as they lie; others have to be known to fit, of whatever type."""
    (i,) = axes(64)
    byte, signed, short = (ops.load(n, at(i), d) for n, d in (("b", U8), ("s", I8), ("h", I16)))

    def numbers(whole: Node, to: torch.dtype = torch.float16) -> tuple[bool, int] | None:
        found = _numbers(ops.cast(whole, to), i)
        assert found is None or found[0] is whole
        return None if found is None else found[1:]

    assert numbers(signed) == (True, 8)
    assert numbers(byte) == (False, 8)
    assert numbers(short) is None, "its numbers are larger"
    assert numbers(shifted(byte, 4)) == numbers(shifted(byte, 15, "bitwise_and")) == (False, 4)
    assert numbers(shifted(byte, 16, "bitwise_and")) == (False, 8)
    assert numbers(shifted(signed, 15, "bitwise_and")) == (False, 4), "no sign is left"
    assert numbers(shifted(signed, 127, "bitwise_and")) == (False, 8)
    assert numbers(shifted(signed, 4)) is None, "it has a sign, and is not what lies there"
    assert numbers(shifted(short, 255, "bitwise_and")) == (False, 8)
    assert numbers(shifted(short, 256, "bitwise_and")) is None
    for whole, few in ((signed, None), (byte, None), (shifted(byte, 4), (False, 4))):
        assert numbers(whole, torch.bfloat16) == few, "eight bits fit no bfloat16 exactly"
    assert _numbers(ops.binary("add", *(ops.cast(n, F32) for n in (byte, signed))), i) is None


def test_numbers_that_are_known() -> None:
    (i,) = axes(64)
    assert _constant(ops.const(7, I32)) == 7
    assert _constant(ops.cast(ops.const(7, I32), I64)) == 7
    assert _constant(ops.load("w", at(i), I32)) is None


def test_what_is_zero_where_a_condition_does_not_hold() -> None:
    (i,) = axes(64)
    ok, x = ops.load("ok", at(i), torch.bool), ops.load("x", at(i), F32)
    assert is_often_zero(ops.where(ok, x, ops.const(0.0, F32)))
    assert not is_often_zero(ops.where(ok, x, ops.const(1.0, F32)))
    assert not is_often_zero(ops.where(ok, x, ops.unary("neg", x)))
    assert not is_often_zero(ops.where(ok, ops.const(0.0, F32), x))
    assert not is_often_zero(x)


# -- the machine's instructions by line -------------------------------------------------------


def test_instructions_by_line() -> None:
    ptx = """
    .file 1 "/tmp/kernel.py"
    .file 2 "/tmp/triton/language/standard.py"
    .reg .b32 %r<4>;
    mov.u32 %r1, 1;
    .loc 1 12 4   // kernel.py:12
    ld.global  %r2,   [%rd1];  // x
    .reg .f32 %f1;
    $L__BB0:
    .loc 1 13 8
    add.s32 %r3, %r2, 1;
    .loc 2 12 8
    add.s32 %r3, %r3, 5;
    .loc 1 12 4
    st.global [%rd1], %r3;
    .section .debug_info
    .loc 1 14 4
    ret;
    """
    assert ptx_by_line(ptx, "kernel.py") == {
        12: ["ld.global %r2, [%rd1];", "st.global [%rd1], %r3;"],
        13: ["add.s32 %r3, %r2, 1;"],
    }
    sass = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
    //## File "/tmp/kernel.py", line 12
        /*0010*/                   LDG.E R2, [R2.64] ;
        /*0020*/                   NOP ;
    //## File "/tmp/kernel.py", line 13
        /*0030*/              @!P0 IADD3 R3, R2, 0x1, RZ ;
    .L_x_0:
        /*0040*/                   EXIT ;
    //## File "/tmp/triton/language/standard.py", line 12
        /*0050*/                   SHFL.BFLY PT, R2, R3 ;
    """
    assert sass_by_line(placed_texts(sass, "kernel.py")) == {
        12: ["LDG.E R2, [R2.64]"],
        13: ["@!P0 IADD3 R3, R2, 0x1, RZ", "EXIT"],
    }


# -- constants --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1, torch.bool, "True"),
        (0.0, torch.bool, "False"),
        (7, I32, "7"),
        (-7.0, I64, "-7"),
        (float("nan"), F32, 'float("nan")'),
        (float("inf"), F32, 'float("inf")'),
        (float("-inf"), F32, '-float("inf")'),
        (2, F32, "2.0"),
        (0, F32, "0.0"),
        (-0.0, F32, "tl.full([], -(2**31), tl.int32).to(tl.float32, bitcast=True)"),
        (-0.0, torch.float64, "tl.full([], -(2**63), tl.int64).to(tl.float64, bitcast=True)"),
        (0.1, torch.float64, "tl.full([], 0.1, tl.float64)"),
        (0.5, torch.float64, "0.5"),
    ],
)
def test_constants(value: float, dtype: torch.dtype, text: str) -> None:
    assert number(value, dtype).text == text


# -- axes by what they step over --------------------------------------------------------------


def test_axes_from_the_slowest() -> None:
    i, j, k = axes(4, 6, 5)
    x, buffers = ops.load("x", at(k, i, j), F32), {"x": buffer("x", (5, 4, 6))}

    def order(value: Node, index: tuple[Expr, ...], shape: tuple[int, ...]) -> str:
        body = Body((i, j, k), (), (Store("y", index, value),))
        found = by_stride(body, {**buffers, "y": buffer("y", shape)}, body.axes)
        return "".join("ijk"[(i, j, k).index(axis)] for axis in found)

    assert order(x, at(i, j, k), (4, 6, 5)) == "ijk", "a store before a load of the same size"
    assert order(x, at(j, i, k), (6, 4, 5)) == "jik"
    assert order(x, at(i, j), (4, 6)) == "kij", "it says nothing of k"
    turned = ops.load("x", (Expr.of(k), Expr.of(3) - Expr.of(i), Expr.of(j)), F32)
    assert order(turned, at(i, j), (4, 6)) == "kij"
    folded = ops.load("x", (Expr.of(k) // 2, *at(i, j)), F32)
    assert order(folded, at(i, j), (4, 6)) == "ijk", "nothing is known: as they were"


# -- positions in 32 bits ---------------------------------------------------------------------


def test_positions_that_the_index_type_holds() -> None:
    (a,) = axes(Expr.of(Symbol("n", "size", low=2)))
    i, known = Expr.of(a), Expr.of(axes(100)[0])
    assert a.size is not None

    def fits(expr: Expr, index_type: str = "INDEX") -> tuple[bool, bool]:
        kernel: Any = SimpleNamespace(
            reach=[a.size], index_type=index_type, needs=SimpleNamespace(reaching=False)
        )
        return KernelWriter.fits_index(kernel, expr), kernel.needs.reaching

    assert fits(known) == (True, False)
    assert fits(known * 0 + LIMIT - 1) == (True, False)
    assert fits(known * 0 - LIMIT + 1) == (True, False)
    assert fits(known * 0 + LIMIT) == (False, False)
    assert fits(known * 0 - LIMIT) == (False, False)
    assert fits(i) == (True, False)
    assert fits(i * 2) == (True, True)
    assert fits(i * MOST_TIMES) == (True, True)
    assert fits(i * (MOST_TIMES + 1)) == (False, False)
    assert fits(i, "tl.int32") == (False, False)
    assert fits(known, "tl.int32") == (True, False)


# -- halves that are computed as themselves ---------------------------------------------------

F16, BF16 = torch.float16, torch.bfloat16


def f32(value: float) -> Node:
    return ops.const(value, F32)


def test_whole_numbers_and_their_range() -> None:
    (i,) = axes(64)
    byte, signed = ops.load("b", at(i), U8), ops.load("s", at(i), I8)
    wide, below = ops.cast(byte, F32), ops.cast(signed, F32)
    assert _whole(f32(3.0)) == (3.0, 3.0)
    assert _whole(f32(3.5)) is None
    assert _whole(wide) == (0, 255)
    assert _whole(ops.binary("add", wide, below)) == (-128, 382)
    assert _whole(ops.binary("sub", wide, below)) == (-127, 383)
    assert _whole(ops.binary("mul", wide, below)) == (-128 * 255, 127 * 255)
    assert _whole(ops.binary("mul", below, below)) is not None
    assert _whole(ops.binary("truediv", wide, below)) is None
    assert _whole(ops.binary("add", wide, f32(0.5))) is None
    assert _whole(ops.load("x", at(i), F32)) is None


def test_bytes_as_floats_by_their_bits() -> None:
    (i,) = axes(64)
    byte, signed, word = (ops.load(n, at(i), d) for n, d in (("b", U8), ("s", I8), ("w", I32)))

    def name(node: Node, dtype: torch.dtype) -> str:
        found = _converted(ops.cast(node, F32), dtype)
        return "" if found is None else found.name  # type: ignore[attr-defined]

    nibble = ops.binary("bitwise_and", byte, ops.const(15, U8))
    large = ops.binary("bitwise_and", word, ops.const(255, I32))
    larger = ops.binary("bitwise_and", word, ops.const(511, I32))
    assert [name(n, F16) for n in (byte, signed, word, large, larger)] == [
        "half_of_byte", "half_of_signed_byte", "", "half_of_byte", "",
    ]  # fmt: skip
    assert [name(n, F32) for n in (byte, signed)] == ["float_of_byte", "float_of_signed_byte"]
    assert [name(n, BF16) for n in (nibble, byte, signed)] == ["bfloat_of_nibble", "", ""]
    assert _converted(ops.load("x", at(i), F32), F16) is None
    assert _converted(ops.cast(ops.load("h", at(i), F16), F32), F16) is None


def test_a_byte_by_way_of_bfloat16() -> None:
    """Every byte is a bfloat16; what else is rounded to one stays rounded."""
    (i,) = axes(64)
    byte, single = ops.load("b", at(i), U8), ops.load("x", at(i), F32)
    made = _converted(ops.cast(byte, F32), F32)
    assert made is not None

    def widened(node: Node) -> Node | None:
        return _widened(cast(cast(node, BF16), F32))

    assert widened(made) is made
    assert widened(op("neg", (single,), F32)) is None
    assert widened(op("add", (made, made), F32)) is None, "508 is no bfloat16"
    assert widened(single) is None
    assert _widened(ops.cast(byte, F32)) is made
    assert _widened(ops.cast(byte, BF16)) is cast(made, BF16)
    assert _widened(ops.cast(single, BF16)) is None
    assert _widened(ops.cast(byte, F16)) is None
    assert _widened(cast(ops.load("w", at(i), I32), F32, bitcast=True)) is None
    assert _widened(made) is None


def test_a_half_computed_by_one_operation() -> None:
    (i,) = axes(64)
    x, y, z = (ops.cast(ops.load(name, at(i), F16), F32) for name in "xyz")
    single = ops.load("single", at(i), F32)

    def found(value: Node, few: bool = False, dtype: torch.dtype = F16) -> tuple[str, str]:
        node = narrowed(ops.cast(value, dtype), few)
        return getattr(node, "name", "cast"), str(node.dtype)

    for name in ("add", "sub", "mul"):
        assert found(ops.binary(name, x, y)) == (name, "torch.float16")
        assert found(ops.binary(name, x, single)) == ("cast", "torch.float16")
    assert found(ops.binary("truediv", x, y)) == ("cast", "torch.float16")
    assert found(ops.binary("add", x, f32(0.5))) == ("add", "torch.float16")
    assert found(ops.binary("add", x, f32(0.1))) == ("cast", "torch.float16")
    product = ops.binary("mul", x, y)
    assert found(ops.binary("add", product, z)) == ("cast", "torch.float16")
    assert found(ops.binary("add", product, z), few=True) == (FUSED, "torch.float16")
    assert found(ops.binary("add", z, product), few=True) == (FUSED, "torch.float16")
    assert found(ops.binary("sub", product, z), few=True) == ("cast", "torch.float16")
    assert found(ops.binary("add", product, single), few=True) == ("cast", "torch.float16")
    assert narrowed(single) is single
    assert _narrow(single, F16) is None
    assert _narrow(ops.unary("neg", x), F16) is None


# -- starts -----------------------------------------------------------------------------------


def test_starts_are_collected_and_nothing_runs() -> None:
    triton = pytest.importorskip("triton")

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def kernel(x):  # type: ignore[no-untyped-def]
        pass

    namespace: dict[str, Any] = {"kernel": kernel, "BLOCK": 64}
    x = torch.ones(3)
    with collecting(namespace) as starts:
        namespace["kernel"][(2,)](x, num_warps=4)
        assert namespace["BLOCK"] == 64
    assert [(s.function, s.args, s.kwargs, s.grid) for s in starts] == [
        (kernel, (x,), {"num_warps": 4}, (2,))
    ]
    assert namespace == {"kernel": kernel, "BLOCK": 64}


def test_several_starts_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    made = SimpleNamespace(num_warps=4, shared=1024)
    compiled = SimpleNamespace(run="loaded", metadata=made, function="77")
    metadata = SimpleNamespace(target="gpu")
    kernel: Any = SimpleNamespace(src=SimpleNamespace(fn="function"), metadata=metadata)
    monkeypatch.setattr(packed_kernel, "packed_source", lambda source, count: (source, count))
    monkeypatch.setattr(packed_kernel, "_options", lambda metadata: {"of": metadata})
    monkeypatch.setattr(
        packed_kernel.triton_pool, "compile_source", lambda *given: asked.append(given)
    )

    def compile_packed(source: Any, metadata: Any) -> Any:
        asked.append((source, metadata))
        return compiled

    monkeypatch.setattr(packed_kernel, "compile_packed", compile_packed)
    found = packed_kernel._build(kernel, 3)
    source = (kernel.src, 3)
    assert asked == [
        (source, {"of": metadata}, "gpu", {"kernel": "function"}),
        (source, metadata),
    ]
    assert found == packed_kernel.PackedKernel(compiled, 77, 128, 1024)
