"""Products of few rows whose weight's words go straight into the registers of tensor cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.ir.index import Expr, Symbol
from fusec.targets.triton.plan import choices_matmul, word_products
from fusec.targets.triton.toolchain.build import build_triton
from fusec.targets.triton.toolchain.cross_compile import artifacts
from fusec.tunables import read_tunables, set_tunables
from support.few_bits import high_first, in_turns

HALF, BF16 = torch.float16, torch.bfloat16
COLUMNS, INNER, GROUP = 44, 384, 128
ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # of AWQ's numbers within a word
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words go into registers wherever they can, whatever is quicker."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    candidates = choices_matmul.candidates
    monkeypatch.setattr(
        choices_matmul, "candidates", lambda p: sorted(candidates(p), key=lambda c: c[0] != "words")
    )
    torch._dynamo.reset()


def scaled(w: Tensor, s: Tensor) -> Tensor:
    grouped = w.to(s.dtype).reshape(w.shape[0], -1, GROUP)
    return ((grouped - 8) * s[:, :, None]).reshape(w.shape)


def down_columns(q: Tensor) -> Tensor:
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    return ((q[:, None, :] >> shifts[None, :, None]) & 15).reshape(-1, q.shape[1]).t()


def awq(q: Tensor) -> Tensor:
    shifts = torch.tensor([4 * n for n in ORDER], dtype=torch.int32)
    return ((q[..., None] >> shifts) & 15).reshape(q.shape[0], -1)


def of_bytes(x: Tensor, q: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, q.to(x.dtype) * s[:, :1])


FORMS: dict[str, tuple[Callable[[Tensor], Tensor] | None, tuple[int, int], torch.dtype]] = {
    "in turns": (in_turns, (COLUMNS, INNER // 2), torch.uint8),
    "high first": (high_first, (COLUMNS, INNER // 2), torch.uint8),
    "down columns": (down_columns, (INNER // 8, COLUMNS), torch.int32),
    "bytes": (None, (COLUMNS, INNER), torch.int8),
}


def make(form: str, dtype: torch.dtype) -> tuple[Any, Tensor, Tensor]:
    """Return a product, its weight, its scales: the rows of a unit matrix take single weights."""
    unpack, shape, of = FORMS[form]
    torch.manual_seed(0)
    info = torch.iinfo(of)
    q = torch.randint(info.min, info.max, shape, dtype=of)
    s = (torch.rand(COLUMNS, INNER // GROUP) * 2 - 1).to(dtype)
    s[3, 1], s[5, 0] = 2.0**-24, 0.0
    if unpack is None:
        return of_bytes, q, s
    return lambda x, q, s: x @ scaled(unpack(q), s).t(), q, s


@pytest.mark.parametrize(
    ("form", "dtype", "rows"),
    [
        ("in turns", HALF, 16),
        ("high first", BF16, 7),
        ("down columns", HALF, 16),
        ("bytes", HALF, 4),
    ],
    ids=str,
)
def test_every_weight_is_as_eager_unpacks_it(form: str, dtype: torch.dtype, rows: int) -> None:
    product, q, s = make(form, dtype)
    compiled = fusec.compile(product, target="triton", matmul="template")
    for first in (0, INNER - rows):
        x = torch.eye(INNER, dtype=dtype)[first : first + rows]
        assert torch.equal(compiled(x, q, s), product(x, q, s))
    (kernel,) = compiled.kernels.values()
    assert "SHARES" in kernel.source
    assert not compiled.graphs[0].externs


def test_what_is_of_many_products_or_of_any_length_has_no_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    real = word_products.in_words
    monkeypatch.setattr(choices_matmul, "in_words", lambda *a: asked.append(a) or real(*a))
    _, q, s = make("bytes", HALF)
    compiled = fusec.compile(of_bytes, target="triton", matmul="template")
    compiled(torch.eye(INNER, dtype=HALF)[:4], q, s)
    product, *others = asked[0]
    assert real(product, *others) is not None
    assert real(replace(product, batch=product.row), *others) is None
    for axis in ("row", "column", "inner"):
        of_any = Symbol("n", size=Expr.of(Symbol("size", "size")))
        assert real(replace(product, **{axis: of_any}), *others) is None


def test_tunables_and_odd_sums() -> None:
    """Warps whose steps lie beyond the sum, steps of several, columns beyond the last."""
    product, q, s = make("in turns", HALF)
    compiled = fusec.compile(product, target="triton", matmul="template")
    x = torch.randn(5, INNER).to(HALF)
    wanted = compiled(x, q, s)
    exact = product(x.double(), q, s.double())
    assert (wanted.double() - exact).abs().max() <= 0.002 * exact.abs().max()
    (kernel,) = compiled.kernels.values()
    assert {k.name for k in read_tunables(kernel.source)} == {"BLOCK_N", "STEPS", "NUM_WARPS"}
    for width, steps, warps in ((16, 1, 1), (32, 2, 2), (16, 1, 4)):
        chosen = {"BLOCK_N": width, "STEPS": steps, "NUM_WARPS": warps}
        built = build_triton(set_tunables(kernel.source, chosen), kernel.signature)
        result = torch.full_like(wanted, float("nan"))
        built([x, q, s, result], [])
        assert (result.double() - exact).abs().max() <= 0.002 * exact.abs().max(), chosen


def test_what_is_infinite_stays_in_its_row_and_column() -> None:
    """What is loaded in place of steps and columns that are not there adds nothing."""
    product, q, s = make("in turns", HALF)
    s[2, 2] = float("inf")
    x = torch.randn(3, INNER).to(HALF)
    x[1, INNER - 1] = float("nan")
    result = fusec.compile(product, target="triton", matmul="template")(x, q, s)
    wanted = product(x, q, s)
    assert torch.equal(result.isnan(), wanted.isnan())
    assert torch.equal(result.isinf(), wanted.isinf())


@pytest.mark.parametrize("form", ["in turns", "down columns", "bytes"])
def test_nothing_goes_through_shared_memory_before_the_sums_do(form: str) -> None:
    product, q, s = make(form, HALF)
    compiled = fusec.compile(product, target="triton", matmul="template")
    compiled(torch.randn(16, INNER).to(HALF), q, s)
    (kernel,) = compiled.kernels.values()
    text = set_tunables(kernel.source, {"BLOCK_N": 16, "STEPS": 1, "NUM_WARPS": 2})
    ptx = artifacts(text, kernel.signature, kinds=("ptx",))["ptx"]
    loop = ptx[: ptx.rindex("mma.sync")]
    assert "mma.sync.aligned.m16n8k16" in loop
    assert loop.count("shfl.sync") == 0
    assert loop.count("st.shared") <= 2, "a scale a column may change places"
