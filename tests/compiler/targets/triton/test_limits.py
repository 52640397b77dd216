"""What Triton's kernels are decided by, just at the limits, and texts that only start kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr
from fusec.ir.node import indirect, recording
from fusec.machine import using
from fusec.targets.triton.plan import choices_attention
from fusec.targets.triton.plan.phases import are_places, fills_tile
from fusec.targets.triton.plan.tiling import index_guards
from fusec.targets.triton.toolchain import lines
from fusec.targets.triton.toolchain.candidate import load_file
from fusec.targets.triton.toolchain.launch_records import (
    RecordedLaunch,
    is_recording,
    note,
    only_launches,
    record_of,
)
from fusec.targets.triton.toolchain.launch_records import (
    recording as recording_launches,
)
from fusec.targets.triton.toolchain.lines import placed_texts
from fusec.targets.triton.toolchain.load import (
    _words,
    compile_error,
    is_compiler_failure,
    is_triton_error,
)
from fusec.targets.triton.toolchain.watched_run import _interpreted
from support.triton_bodies import F32, at, axes
from support.whole_programs import MACHINE


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with using(MACHINE), recording():
        yield


# -- which texts only start kernels -----------------------------------------------------------

FILE = """
import triton
import triton.language as tl
import torch
import math

BLOCK, NAMES, HALF = 64, [1], 0.5

@triton.jit
def kernel(x): pass

def helper(x): return x

def launch(x, y, n):
    {}
"""
PLAIN = (
    "kernel[(1,)](x)",
    "'a text'",
    "kernel[(triton.cdiv(n, BLOCK), 1)](x, y, n, SIZE=BLOCK, num_warps=4)",
    "kernel[n, 1](x)",
    "size = triton.next_power_of_2(n); kernel[(size,)](x, size)",
    "a = b = n + 1; kernel[(min(a, b), max(a, 1))](len((a, b)), int(HALF))",
    "made = torch.empty((n, 4), device=x.device, dtype=x.dtype); kernel[(1,)](made)",
    "made = torch.empty([n], device=x.device, dtype=torch.float32); kernel[(1,)](made)",
    "kernel[(1,)](x, tl.float16)",
    "if n > 4 and not n % 2: kernel[(1,)](x)\n    else: kernel[(2,)](x)",
    "if x.data_ptr() % 16 == 0: kernel[(1,)](x)",
    "assert n > 0; kernel[(1,)](x)",
    "assert n > 0, 'too few'; kernel[(1,)](-n if n else BLOCK)",
)
OTHER = (
    "return x",
    "x.add_(1)",
    "helper(x)",
    "print(n)",
    "kernel(x)",
    "helper[(1,)](x)",
    "n[(1,)](x)",
    "kernel[(helper(n),)](x)",
    "kernel[(1,)](helper(x))",
    "kernel[(1,)](x, SIZE=helper(n))",
    "kernel[(1,)](x, **NAMES)",
    "kernel[(1,)](*x)",
    "kernel[(1,)](NAMES)",
    "kernel[(1,)](unknown)",
    "kernel[(1,)](x.shape)",
    "kernel[(1,)](math.pi)",
    "kernel[(1,)](math.floor(n))",
    "kernel[(1,)](triton.language)",
    "kernel[(1,)](torch.zeros((n,)))",
    "kernel[(1,)](triton.cdiv(helper(n), 4))",
    "kernel[(1,)](torch.float16.itemsize)",
    "kernel[(1,)](torch.empty)",
    "kernel[(1,)](BLOCK.device)",
    "kernel[(1,)](abs(n))",
    "kernel[(1,)](x[0])",
    "x.y = n; kernel[(1,)](x)",
    "a, b = n, n; kernel[(1,)](x)",
    "a = helper(n)",
    "triton = n; kernel[(1,)](triton.cdiv(n, 4))",
    "kernel = n; kernel[(1,)](x)",
    "min = n; kernel[(1,)](min(n, 4))",
    "if helper(n): kernel[(1,)](x)",
    "if n: helper(n)",
    "if n: pass\n    else: helper(n)",
    "if x.data_ptr() % 32 == 0: kernel[(1,)](x)",
    "if x.data_ptr() % 16 == 1: kernel[(1,)](x)",
    "if x.data_ptr() % 16 != 0: kernel[(1,)](x)",
    "if x.data_ptr(1) % 16 == 0: kernel[(1,)](x)",
    "if BLOCK.data_ptr() % 16 == 0: kernel[(1,)](x)",
    "if x.item() % 16 == 0: kernel[(1,)](x)",
    "if x.data_ptr() // 16 == 0: kernel[(1,)](x)",
    "assert helper(n)",
    "assert n, helper(n)",
    "for i in NAMES: kernel[(1,)](x)",
    "global BLOCK",
    "import os",
)


@pytest.mark.triton
@pytest.mark.parametrize(
    ("line", "plain"), [(line, True) for line in PLAIN] + [(line, False) for line in OTHER]
)
def test_which_texts_only_start_kernels(line: str, plain: bool) -> None:
    launch = load_file(FILE.format(line), "kernel.py")["launch"]
    assert only_launches(launch) is plain


@pytest.mark.triton
@pytest.mark.parametrize(
    "text",
    [
        "def launch(x, *rest):\n    kernel[(1,)](x)\n",
        "def launch(x, **rest):\n    kernel[(1,)](x)\n",
        "import functools\n@functools.cache\ndef launch(x):\n    kernel[(1,)](x)\n",
        "launch = lambda x: kernel[(1,)](x)\n",
        "launch = len\n",
    ],
)
def test_functions_of_other_forms(text: str) -> None:
    start = FILE.partition("def launch")[0]
    assert not only_launches(load_file(start + text, "kernel.py")["launch"])


@pytest.mark.triton
def test_functions_without_a_text_of_their_own() -> None:
    start = FILE.partition("def launch")[0]
    closed = "def around(n):\n    def launch(x):\n        kernel[(n,)](x)\n    return launch\n"
    assert not only_launches(load_file(start + closed, "kernel.py")["around"](3))
    unknown: dict[str, Any] = {}
    exec("def launch(x):\n    kernel[(1,)](x)\n", unknown)
    assert not only_launches(unknown["launch"]), "no text is known"
    pair = [
        lambda x: x, 1,
    ]  # fmt: skip
    assert not only_launches(pair[0]), "its text is a part of something"  # type: ignore[arg-type]


def launched(types: dict[str, str], args: tuple[Any, ...], **metadata: Any) -> RecordedLaunch:
    usual = {"num_warps": 4, "shared": 120, "name": "kernel"}
    kernel = SimpleNamespace(
        metadata=SimpleNamespace(**(usual | metadata)),
        src=SimpleNamespace(signature=types),
        function=77,
    )
    return RecordedLaunch(kernel, tuple(types), (3, 2), args)


def test_what_a_launch_did_is_repeated_or_not() -> None:
    x, y, inner = torch.ones(4), torch.ones(4), torch.ones(2, 3, dtype=torch.int32)
    types = {"x": "*fp32", "n": "i32", "SIZE": "constexpr", "z": "*i32", "LAST": "constexpr"}
    good = launched(types, (y, 5, 64, inner))
    record = record_of([good, good], [x, y])
    assert record is not None
    (first, second) = record.starts
    assert first == second
    assert record_of([good], [x]).starts != record_of([good], [y]).starts  # type: ignore[union-attr]
    shown = repr(first)
    assert "grid=(3, 2, 1), threads=128, shared=120" in shown
    assert "((1, 0), (None, 5), (2, 0), (None, 0), (None, 0))" in shown
    (made,) = record.temporaries
    assert repr(made) == repr(type(made)((2, 3), (3, 1), torch.int32))
    bad = [
        None,
        launched(types, (y, 5.0, 64, inner)),
        launched(types, (y, True, 64, inner)),
        launched(types, (5, 5, 64, inner)),
        launched({**types, "n": "fp32"}, (y, 5, 64, inner)),
        launched({**types, "LAST": "i32"}, (y, 5, 64, inner)),
        *(
            launched(types, (y, 5, 64, inner), **{name: value})
            for name, value in (
                ("num_ctas", 2), ("launch_cooperative_grid", True), ("launch_pdl", True),
                ("global_scratch_size", 8), ("profile_scratch_size", 8),
            )
        ),
    ]  # fmt: skip
    assert [record_of([good, each], [x, y]) for each in bad] == [None] * len(bad)
    fine = launched(types, (y, 5, 64, inner), num_ctas=None, launch_pdl=False)
    assert record_of([fine], [x, y]) is not None


def test_launches_are_noted_while_somebody_records() -> None:
    assert not is_recording()
    note(None)
    with recording_launches() as outer:
        note(None)
        with recording_launches() as inner:
            assert is_recording()
            note(None)
            note(None)
        assert is_recording()
        assert (len(outer), len(inner)) == (1, 2)
    assert not is_recording()


# -- Triton's words ---------------------------------------------------------------------------


def test_what_triton_says_of_a_line() -> None:
    def said(message: str | None, inner: BaseException | None, text: str = "first\nlast") -> str:
        error = type("Odd", (Exception,), {"error_message": message})(text)
        error.__cause__ = inner
        return _words(error, "  y = libdevice.f(x)  ")

    assert said("a message", None) == "a message"
    assert said("a message", ValueError("inner\nmore")) == "a message"
    assert said(None, ValueError("inner\nmore")) == "more"
    assert said(None, None) == "last"
    wanted = "no form of this function takes 'fp16': y = libdevice.f(x)"
    assert said("a message", KeyError("fp16")) == wanted


def test_the_line_of_an_error_is_that_of_the_function_it_is_of() -> None:
    from triton.compiler.errors import CompilationError

    source = "def kernel(x):\n    y = x.stroe()\n"
    node = SimpleNamespace(lineno=2, col_offset=4)
    raw = ["@triton.jit\n", *source.splitlines(keepends=True)]
    kernel = SimpleNamespace(raw_src=raw, src=source, starting_line_number=10)
    half = SimpleNamespace(src=source)  # anything else that has a text
    for space in (
        {"half": half, "kernel": kernel},
        {"raw": SimpleNamespace(raw_src=1), "k": kernel},
    ):
        found = compile_error(CompilationError(source, node, "no such thing"), space, "k.py")
        ((line, column),) = [(d.line, d.column) for d in found.diagnostics]
        assert (line, column) == (12, 5)
    other = compile_error(CompilationError("another", node, "no"), {"kernel": kernel}, "k.py")
    assert not other.diagnostics


def test_whose_error_it_is() -> None:
    of_triton = type("Refused", (ValueError,), {"__module__": "triton.compiler.errors"})
    assert is_triton_error(of_triton("x"))
    assert is_triton_error(type("More", (of_triton,), {})("x"))
    assert not is_triton_error(type("Other", (ValueError,), {"__module__": "tritonx"})("x"))
    assert is_compiler_failure(RuntimeError("PassManager::run failed"))
    assert not is_compiler_failure(RuntimeError("failed"))
    assert not is_compiler_failure(ValueError("PassManager::run failed"))


# -- places that are read in phases -----------------------------------------------------------


def table(*phases: list[int]) -> torch.Tensor:
    return torch.tensor(phases).t().reshape(-1)


UP, TWICE, ODD = [3, 4, 5, 6, 7], [0, 2, 4, 6, 8], [0, 1, 5, 2, 3]


@pytest.mark.parametrize(
    ("places", "phases", "are"),
    [
        (table(UP), 1, True),
        (table(TWICE), 1, True),
        (table(ODD), 1, False),
        (table(UP, UP), 2, True),
        (table(UP, ODD), 2, False),
        (table(ODD, UP), 2, False),
        (table(UP, TWICE), 2, False),
        (table(TWICE, TWICE), 2, False),
        (table(TWICE, TWICE, UP), 3, True),
        (table(UP[::-1], UP), 2, True),
        (table(UP[:4]), 1, True),
        (table(UP[:3]), 1, False),
        (table(UP[:4], UP[:4]), 2, True),
        (table(UP[:3], UP[:3]), 2, False),
        (torch.arange(9), 2, False),
    ],
)
def test_which_tables_are_places(places: torch.Tensor, phases: int, are: bool) -> None:
    assert are_places(places, phases) is are


def test_rows_that_fill_a_tile() -> None:
    filling = [n for n in range(1, 400) if fills_tile(n)]
    wanted = range(16, 400)
    across = {n: min(1 << (n - 1).bit_length(), 128) for n in wanted}
    idle = {n: -(-n // across[n]) * across[n] for n in wanted}
    assert filling == [n for n in wanted if 3 * idle[n] <= 4 * n]


# -- heads of queries that share keys ---------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "grouped"),
    [
        ({}, True),
        ({"shared": 1}, False),
        ({"rows": choices_attention.FEW_QUERIES}, True),
        ({"rows": choices_attention.FEW_QUERIES + 1}, False),
        ({"rows": None}, False),
        ({"lists": [(16, False)]}, True),
        ({"lists": [(1, False)]}, True),
        ({"lists": [(16, True)]}, False),
        ({"rows": 2, "lists": [(1, False)]}, False),
        ({"rows": 2, "lists": [(2, False)]}, True),
        ({"rows": 2, "lists": [(2, False), (1, False)]}, False),
        ({"rows": 2, "lists": [(2, False), (2, True)]}, False),
    ],
)
def test_whose_rows_are_of_several_heads(
    change: dict[str, Any], grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"rows": 1, "shared": 4, "lists": [], **change}
    batch, head, row = axes(2, 8, given["rows"] or 1)
    (r,) = axes(64, prefix="r")
    value = ops.reduce("sum", ops.load("x", at(batch, head, row, r), F32), (r,), F32)
    body = Body((batch, head, row), (r,), (Store("y", at(batch, head, row), value),))
    lists = [
        SimpleNamespace(rows=rows, place=ops.load("p", at(head if own else batch), torch.int64))
        for rows, own in given["lists"]
    ]
    found = SimpleNamespace(
        head=head, row=row,
        sizes=(SimpleNamespace(constant=given["rows"]),),
        partial=lists[0] if lists else None, full=lists[1] if len(lists) > 1 else None,
    )  # fmt: skip
    monkeypatch.setattr(choices_attention, "match_attention", lambda body: found)
    monkeypatch.setattr(choices_attention, "_sharing", lambda found: given["shared"])
    made = choices_attention.group_heads(body)
    assert (made is not body) is grouped
    if grouped:
        assert [axis.size for axis in made.axes] == [2, 2, 4 * given["rows"]]
        (load,) = made.loads()
        group, each = map(Expr.of, made.axes[1:])
        rows = given["rows"]
        assert load.index[1:3] == (group * 4 + each // rows, each % rows)


# -- checks of places that are computed -------------------------------------------------------


def test_conditions_of_computed_places() -> None:
    (i,) = axes(8)
    number, ok = ops.load("n", at(i), torch.int64), ops.load("ok", at(i), torch.bool)
    sure = ops.load("sure", at(i), torch.bool)
    both = ops.check(sure, ops.check(ok, number, "out of range"), "out of range")
    place = indirect(ops.binary("add", both, both), Expr.of(8))
    assert index_guards((place,)) == [sure, ok], "each once"
    assert index_guards(at(i)) == []
    # what is read at such a place guards itself
    read = ops.load("table", (place,), torch.int64)
    assert index_guards((indirect(read, Expr.of(8)),)) == []


# -- a kernel that is interpreted ---------------------------------------------------------------


class Compiled:
    def __init__(self, fn: Any) -> None:
        self.fn = fn


class Rewritten(Compiled):
    rewritten_fn: ClassVar[dict[Any, str]] = {}


def test_a_kernel_and_what_it_calls_are_interpreted_for_a_while() -> None:
    space: dict[str, Any] = {"number": 3}
    exec("def kernel(): pass\ndef helper(): pass", space)
    kernel, helper = (Compiled(space[name]) for name in ("kernel", "helper"))
    space |= {"kernel": kernel, "helper": helper}
    before = dict(space)
    with _interpreted(kernel, Compiled, Rewritten) as function:
        assert isinstance(function, Rewritten)
        assert function.fn is kernel.fn
        assert isinstance(space["helper"], Rewritten)
        assert space["helper"].fn is helper.fn
        assert space["number"] == 3
        space["of the interpreter"] = 1
        Rewritten.rewritten_fn |= {kernel.fn: "", helper.fn: "", len: ""}
    assert space == before
    assert list(Rewritten.rewritten_fn) == [len]


# -- machine code of a kernel -------------------------------------------------------------------


def test_machine_code_stands_beside_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    ptx = """
    .file 1 "/tmp/kernel.py"
    .loc 1 8 4
    mov.u32 %r1, 1;
    """
    sass = """
    //## File "/tmp/kernel.py", line 9
        /*0010*/                   EXIT ;
    """
    compiled = SimpleNamespace(asm={"ptx": ptx, "cubin": b""})
    function = SimpleNamespace(starting_line_number=7, raw_src=["def k(x):\n", "  a\n", "  b\n"])
    monkeypatch.setattr(lines, "compiling", nullcontext)
    monkeypatch.setattr(lines, "triton_cache", nullcontext)
    monkeypatch.setattr(lines, "gpu_target", lambda gpu: gpu)
    monkeypatch.setattr(lines, "compile_start", lambda *given: compiled)
    monkeypatch.setattr(lines, "kernel_file", lambda text: "kernel.py")
    monkeypatch.setattr(lines, "_instructions_of", lambda *given: placed_texts(sass, "kernel.py"))
    start: Any = SimpleNamespace(function=function)
    found = [(each.number, each.ptx, each.sass) for each in lines.machine_code(start, {}, "", "")]
    assert found == [(7, (), ()), (8, ("mov.u32 %r1, 1;",), ()), (9, (), ("EXIT",))]
