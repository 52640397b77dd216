"""Tensors that are called what a kernel's text has a use for: each keeps a name of its own."""

from __future__ import annotations

import re

import pytest
import torch

import fusec
from fusec.codegen.common.signatures import identifier
from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.node import recording
from fusec.targets.cpp.emit import emit_cpp
from fusec.targets.cpp.text.support import OWN_NAMES, helper_texts
from support.triton_bodies import F32, at, axes, buffer

HELPERS = """div_floor mod_floor log_add_exp random_bits random_word random_group random_words
prefetch prefetch_to_second prefetch_to_write interleave at_most nan_max.f32 nan_min.f64
number_max.f32 stream
end_stream turn_over.1 turn_over.2 turn_over.4 turn_over.8 running_sums wrap_add.i32 wrap_add.i64
wrap_sub.i32 wrap_sub.i64 wrap_mul.i32 wrap_mul.i64""".split()
WORDS = """failed lane count LINE GRAIN ROWS COLUMNS PIECES BLOCK UNROLL TILE_ROWS INFINITY
TILE_COLUMNS NAN mark better pair""".split()


def functions() -> set[str]:
    """Return the names of the functions that helpers' texts define."""
    text = "".join(helper_texts([name]) for name in HELPERS)
    found = set(re.findall(r"^static inline [^\n(]*?\b(\w+)\(", text, re.MULTILINE))
    return {name for name in found if not name.startswith("fx_")}


def test_all_helpers_have_their_names_to_themselves() -> None:
    assert functions() == OWN_NAMES


@pytest.mark.parametrize("name", sorted({*OWN_NAMES, *WORDS}))
def test_a_tensor_of_that_name_has_another_in_the_text(name: str) -> None:
    with recording():
        (i,) = axes(64)
        body = Body((i,), (), (Store("out", at(i), ops.load(name, at(i), F32)),))
        kernel = emit_cpp("copy", body, {n: buffer(n, (64,)) for n in (name, "out")})
    gap = "_" if name[-1].isdigit() else ""
    assert [each.name for each in kernel.signature.arguments] == [f"{name}{gap}2", "out"]


def test_a_kernel_of_such_tensors_computes() -> None:
    def f(log_add_exp: torch.Tensor, INT64_MIN: torch.Tensor) -> torch.Tensor:
        return torch.logcumsumexp(log_add_exp, 1) + INT64_MIN

    compiled, given = fusec.compile(f), (torch.randn(5, 77), torch.randn(77))
    torch.testing.assert_close(compiled(*given), f(*given))
    assert not compiled.fallbacks
    assert identifier("log_add_exp", set(OWN_NAMES), "x") != "log_add_exp"


def test_tables_of_nests_that_follow_each_other() -> None:
    """What the rows of each part of a result share has a name of its own."""

    def f(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        v = torch.addcmul(a, a, a, value=0.1)
        return torch.cat([x * v.clamp(-1, 1) / (v * v + 1), x * v.clamp(-2, 2) / (v * v + 2)])

    compiled, given = fusec.compile(f), (torch.randn(40, 17), torch.randn(17))
    torch.testing.assert_close(compiled(*given), f(*given))
    assert not compiled.fallbacks
    (graph,) = compiled.graphs
    tables = re.findall(r"float (\w+_table\w*)\[17\]", graph.kernels[0].source)
    assert len(set(tables)) == len(tables) == 4


ROWS = {
    "a position of what a softmax is": lambda x: (
        (p := torch.softmax(x, -1)),
        (i := p.argmax(-1, keepdim=True)),
        (p - i).argmax(-1),
    ),
    "positions of running sums": lambda x: (
        (i := x.cumsum(-1).argmax(-1, keepdim=True)),
        (j := (x - i).cumsum(-1).argmax(-1, keepdim=True)),
        (x + j).cumsum(-1).amax(-1),
    ),
    "halves": lambda x: torch.softmax(torch.softmax(x.half(), -1) * 3, -1).argmax(-1),
}


@pytest.mark.parametrize("case", ROWS)
@pytest.mark.parametrize("shape", [(7,), (700,), (2, 5000)])
def test_what_passes_over_a_row_declare_beside_their_loops(
    case: str, shape: tuple[int, ...]
) -> None:
    """Each pass has names of its own, where no block is around its loop."""
    f, x = ROWS[case], torch.randn(shape)
    compiled = fusec.compile(f)
    torch.testing.assert_close(compiled(x), f(x))
    assert not compiled.fallbacks
