"""Half precision that is stored and read again on the way: the loop is vector code all the same."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

import fusec
from fusec.helper_block import with_helpers
from fusec.machine import this_machine
from fusec.toolchain.compiler import find_compiler


def gelu_gradient(gradient: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What a linear layer reads: the gradient, which autocast casts there and back; its sum."""
    result = torch.ops.aten.gelu_backward(gradient, x).float().to(gradient.dtype)
    return result, result.float().sum(0)


def expected(gradient: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    result = torch.ops.aten.gelu_backward(gradient, x)
    return result, result.sum(0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_loops_are_vector_code(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    gradient, x = (torch.randn(96, 1024).to(dtype) for _ in range(2))
    compiled = fusec.compile(gelu_gradient)
    for mine, right in zip(
        compiled(gradient, x), expected(gradient.double(), x.double()), strict=True
    ):
        # eager rounds in between, and sums what was rounded
        scale = right.abs().max()
        step = torch.finfo(torch.bfloat16).eps
        assert (mine.double() - right).abs().max() <= 4 * step * scale
    compiler = find_compiler()
    if compiler.family != "gcc":
        pytest.skip("reads the messages of g++")
    (kernel,) = compiled.graphs[0].kernels
    (tmp_path / "kernel.cpp").write_text(with_helpers(kernel.source, "kernel.cpp"))
    command = compiler.command("kernel.cpp", "kernel.so", "-fopt-info-vec")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"kernel\.cpp:(\d+):\d+: optimized: loop vectorized", done.stderr)
    lines = kernel.source.splitlines()
    loops = [n for n, line in enumerate(lines) if "#pragma omp simd" in line]
    stores = [n for n in loops if "fx_to_" in "".join(lines[n : end_of_loop(lines, n)])]
    assert stores
    for begin in stores:
        end = end_of_loop(lines, begin)
        assert any(begin < int(line) <= end for line in said), "\n".join(lines[begin:end])


def end_of_loop(lines: list[str], pragma: int) -> int:
    """Return the line after the loop that follows a pragma."""
    depth = 0
    for number in range(pragma + 1, len(lines)):
        depth += lines[number].count("{") - lines[number].count("}")
        if not depth and "}" in lines[number]:
            return number + 1
    raise AssertionError("a loop without an end")


@pytest.mark.sample(5)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 15, 64, 1000, 5000])
def test_every_kind_of_number_is_rounded_as_eager_does(dtype: torch.dtype, count: int) -> None:
    torch.manual_seed(count)
    bits = torch.randint(-(2**31), 2**31, (count,), dtype=torch.int64).to(torch.int32)
    x = bits.view(torch.float32)  # subnormal numbers, infinities and NaN among them
    special = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 1.1754942e-38, 3.4e38, float("inf")])
    x[: min(count, 7)] = special[: min(count, 7)]
    ordinary = torch.randn(count)  # no subnormals: the quick way
    compiled = fusec.compile(lambda x: (x * 1.0).to(dtype))
    for given in (x, ordinary):
        torch._dynamo.reset()
        found, wanted = compiled(given), given.to(dtype)
        assert torch.equal(found.isnan(), wanted.isnan())
        there = ~wanted.isnan()
        assert torch.equal(found.view(torch.int16)[there], wanted.view(torch.int16)[there])


@pytest.mark.parametrize(
    "shape", [(300, 1000), (4096, 64), (700, 255), (90, 9), (33, 4096), (0, 64)]
)
@pytest.mark.parametrize("what", ["sum", "amax", "norm"])
def test_columns_of_halves_are_converted_many_at_a_time(shape: tuple[int, int], what: str) -> None:
    """Not one by one in the loop over the columns, where there is no instruction for it."""
    if what == "amax" and not shape[0]:
        pytest.skip("there is no maximum of nothing")
    torch.manual_seed(0)
    x = torch.randn(shape).half()
    x[: 1 + shape[0] // 50, :3] = torch.tensor([float("inf"), float("nan"), -0.0]).half()
    functions = {
        "sum": lambda x: x.sum(0),
        "amax": lambda x: x.amax(0),
        "norm": lambda x: (x.float() - x.float().mean(0)).square().sum(0),
    }
    torch._dynamo.reset()
    compiled = fusec.compile(functions[what])
    got, exact = compiled(x), functions[what](x.double() if what != "norm" else x)
    torch.testing.assert_close(got.double(), exact.double(), rtol=2e-3, atol=1e-2, equal_nan=True)
    if shape[0] and this_machine().isa in ("avx512", "avx2"):
        (kernel,) = compiled.kernels.values()
        assert "fx_to_floats(" in kernel.source.partition("---- helpers.h")[0]
