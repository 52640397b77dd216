"""Rows of half precision that begin anywhere are loaded by 16 bytes, and yield the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.ir.body import Buffer
from fusec.ir.index import Expr
from fusec.targets.triton.emit import emit_triton
from fusec.targets.triton.toolchain.build import build_triton
from fusec.targets.triton.toolchain.cross_compile import artifacts
from fusec.tunables import set_tunables
from support.triton_bodies import Case, buffer, cross_entropy, reduce_rows

HALF, BF16 = torch.float16, torch.bfloat16
GROUPS = "loaded as one"


def text_of(case: Case, **tunables: int) -> str:
    source = emit_triton(case.name, case.body, case.buffers, strategy="looped")
    return set_tunables(source.text, tunables)


def placed(rows: int, columns: int, dtype: torch.dtype, first: int) -> torch.Tensor:
    """Return rows that begin ``first`` elements into memory that is NaN all around."""
    space = torch.full((rows * columns + first + 32,), float("nan")).to(dtype)
    inside = space[first : first + rows * columns].view(rows, columns)
    inside.copy_(torch.randn(rows, columns) * 3)
    return inside


@pytest.mark.sample(9)
@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize("first", [0, 1, 5, 8])
@pytest.mark.parametrize("columns", [1023, 1025, 1027, 2049, 513])
def test_sums_of_exponentials(dtype: torch.dtype, first: int, columns: int) -> None:
    case = cross_entropy(9, columns, dtype)
    text = text_of(case, RBLOCK=512)
    assert GROUPS in text
    source = emit_triton(case.name, case.body, case.buffers, strategy="looped")
    kernel = build_triton(text, source.signature)
    x = placed(9, columns, dtype, first)
    x[3] = -float("inf")
    x[3, columns // 2] = 1.0
    x[4, 0] = float("nan")  # the rows beside it stay clean
    target = torch.randint(0, columns, (9,))
    target[3] = columns // 2
    loss = torch.full((9,), float("nan"))
    kernel([target, x, loss], []) if case.body.reads()[0] == "target" else kernel(
        [x, target, loss], []
    )
    expected = F.cross_entropy(x.float(), target, reduction="none")
    torch.testing.assert_close(loss, expected, rtol=2e-3, atol=2e-3, equal_nan=True)


def test_the_only_row_begins_where_its_tensor_does() -> None:
    lines = text_of(cross_entropy(1, 1023, HALF)).splitlines()
    assert [x.strip() for x in lines if "_row = " in x] == ["logits_row = logits_ptr"]


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", [HALF, BF16, torch.int8, torch.float8_e4m3fn])
def test_other_reductions(kind: str, dtype: torch.dtype) -> None:
    if dtype == torch.float8_e4m3fn and kind != "sum":
        pytest.skip("one kind shows what bytes of floats do")
    torch._dynamo.reset()

    def function(x: torch.Tensor) -> torch.Tensor:
        wide = x.float() if x.is_floating_point() else x
        if kind == "prod":
            return (wide / 8 + 1).prod(1) if wide.is_floating_point() else wide.prod(1)
        if kind == "sum":
            return wide.sum(1)
        return wide.amax(1) if kind == "max" else wide.amin(1)

    x = torch.randint(-3, 4, (600, 17003)).to(dtype)
    compiled = fusec.compile(function, target="triton")
    found = compiled(x)
    torch.testing.assert_close(found, function(x), rtol=1e-3, atol=1e-3)
    (kernel,) = compiled.graphs[0].kernels
    assert ("looped" in kernel.source) == (GROUPS in kernel.source)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("wide", [17008, 17003])
def test_parts_of_rows(wide: int, offset: int) -> None:
    """Rows of a padded result, and columns cut off on both sides."""
    torch._dynamo.reset()

    def function(x: torch.Tensor) -> torch.Tensor:
        return x[:, offset : 17001 + offset].float().logsumexp(1)

    x = torch.randn(600, wide).to(BF16)
    compiled = fusec.compile(function, target="triton")
    torch.testing.assert_close(compiled(x), function(x), rtol=1e-3, atol=1e-3)
    (kernel,) = compiled.graphs[0].kernels
    assert GROUPS in kernel.source


def strided(rows: int, columns: int, stride: int, dtype: torch.dtype) -> Case:
    case = reduce_rows("sum", rows, columns, dtype)
    strides = (Expr.of(stride), Expr.of(1))
    shape = case.buffers["x"].shape
    return Case("sum", case.body, {**case.buffers, "x": Buffer("x", shape, strides, dtype)})


@pytest.mark.parametrize(
    ("case", "odd"),
    [
        (reduce_rows("sum", 9, 5003, HALF), True),
        (reduce_rows("sum", 9, 5002, HALF), True),
        (reduce_rows("sum", 9, 5008, HALF), False),
        (reduce_rows("sum", 9, 5003, torch.float32), False),
        (reduce_rows("argmax", 9, 5003, HALF), False),  # its positions begin where a step does
        (reduce_rows("sum", 9, 5003, HALF, down=True), False),
        (strided(9, 5000, 5003, HALF), True),
        (strided(9, 5003, 5008, HALF), True),
        (strided(9, 16384, 16387, HALF), True),
    ],
)
def test_which_rows(case: Case, odd: bool) -> None:
    assert (GROUPS in text_of(case)) == odd


def test_two_tensors_and_what_is_written_along_the_row() -> None:
    torch._dynamo.reset()
    x, y = (torch.randn(600, 17003).to(BF16) for _ in range(2))
    both = fusec.compile(lambda x, y: (x.float() * y.float()).sum(1), target="triton")
    torch.testing.assert_close(both(x, y), (x.float() * y.float()).sum(1), rtol=1e-3, atol=1e-2)
    written = fusec.compile(lambda x: x.softmax(1), target="triton")
    torch.testing.assert_close(written(x), x.softmax(1))
    kernels = [k for c in (both, written) for g in c.graphs for k in g.kernels]
    assert not any(GROUPS in kernel.source for kernel in kernels)


def test_a_small_vector_beside_the_row() -> None:
    torch._dynamo.reset()
    x, w = torch.randn(600, 17003).to(BF16), torch.randn(17003)
    compiled = fusec.compile(lambda x, w: (x.float() * w).sum(1), target="triton")
    torch.testing.assert_close(compiled(x, w), (x.float() * w).sum(1), rtol=1e-3, atol=1e-2)
    (kernel,) = compiled.graphs[0].kernels
    assert GROUPS in kernel.source


def test_loads_are_of_16_bytes() -> None:
    case = cross_entropy(300, 50257, BF16)
    source = emit_triton(case.name, case.body, case.buffers, strategy="looped")
    code = artifacts(source.text, source.signature, gpu="sm_90")["ptx"]
    assert isinstance(code, str)
    assert code.count("ld.global.v4.b32") > 4
    assert code.count("ld.global.b16") == 1  # the target's score


def test_positions_beyond_32_bits() -> None:
    case = cross_entropy(60000, 50257, HALF)
    assert "tl.int64)" in text_of(case)
    assert buffer("x", (60000, 50257), HALF).elements.constant == 60000 * 50257
