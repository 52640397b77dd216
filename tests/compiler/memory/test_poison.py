"""The mode in which memory that nothing has written holds values that show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.call import native
from fusec.call.huge_pages import empty_cpu
from fusec.call.native_program import NativeProgram
from fusec.memory.poison import fill, poisoned, value_of


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FUSEC_POISON", "1")
    monkeypatch.setenv("FUSEC_STRICT", "1")
    native.types(wait=True)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(dtype: torch.dtype) -> None:
    made = fill(torch.zeros(2, 3, dtype=dtype))
    if dtype.is_floating_point or dtype.is_complex:
        assert made.to(torch.complex128).isnan().all()
    else:
        assert made.tolist() == [[value_of(dtype)] * 3] * 2
    assert made._version == 0


def test_off_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSEC_POISON")
    assert poisoned(empty_cpu) is empty_cpu


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(x), x.shape[-1:])


def in_steps(x: torch.Tensor) -> torch.Tensor:
    """Two kernels and a temporary between them, which the first one sums up."""
    return (x * x.sum(0, keepdim=True)).sum(1, keepdim=True) + x


def with_product(x: torch.Tensor) -> torch.Tensor:
    return in_steps(x @ x.T) + 1


@pytest.mark.parametrize("function", [norm, in_steps, with_product])
def test_what_a_kernel_leaves_out_shows(function: object) -> None:
    """A kernel that writes all but the last rows: what reads or returns them has NaN."""
    assert callable(function)
    compiled = fusec.compile(function, keep_inputs=True)
    x = torch.randn(96, 96)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4)
    planted = 0
    for kernel in compiled.kernels.values():
        text = kernel.source
        for size in ("96", "9216"):
            less = text.replace(f"i0 < {size}; ++i0", f"i0 < {int(size) - 2}; ++i0")
            if less == text:
                continue
            kernel.use(less)
            for _ in range(2):
                assert compiled(x).isnan().any(), less
            kernel.revert()
            planted += 1
    assert planted
    torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4)


def test_there_are_temporaries_to_fill() -> None:
    compiled = fusec.compile(in_steps)
    x = torch.randn(96, 96)
    compiled(x)
    (graph,) = compiled.graphs
    (part,) = graph.parts
    program = part.native()
    assert isinstance(program, NativeProgram)
    assert program.scratch
    for _ in range(2):
        torch.testing.assert_close(compiled(x), in_steps(x), rtol=1e-4, atol=1e-4)
