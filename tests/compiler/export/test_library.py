"""Kernels exported as operators of torch: run where fusec cannot be imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.errors import BadOption, FusecError
from fusec.ir.index import Expr, Symbol
from fusec.kernel import Kernel
from fusec.kernel_source import Argument, KernelSource, Signature
from support import handwritten_kernels as vk
from support.exported import python, symbolic

CHECKED = "print(torch.library.opcheck(op, {inputs}))\n"


def passes(code: str, folder: Path) -> str:
    done = python(code, folder)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


USE = """
import torch, exported
op = torch.ops.fuselab.scale
x = torch.randn(777)
assert torch.equal(op(x), x * 2 + 1)
wide = torch.randn(30, 2)[:, 0]
assert torch.equal(op(wide), wide * 2 + 1)
for given in (x, wide, torch.randn(1), torch.empty(0)):
    assert set(torch.library.opcheck(op.default, (given,)).values()) == {"SUCCESS"}

traced = []
def backend(module, inputs):
    traced.append(module)
    return module
@torch.compile(backend=backend, fullgraph=True, dynamic=True)
def twice(x):
    return op(op(x)).sum()
for n in (5, 9, 1000):
    x = torch.randn(n)
    torch.testing.assert_close(twice(x), (x * 4 + 3).sum())
assert len(traced) == 1, "one graph for every size"
fake = torch.ops.fuselab.scale(torch.empty(12, device="meta"))
assert fake.shape == (12,) and fake.device.type == "meta"

for wrong, kind in (([x.double()], TypeError), ([x[None]], TypeError), ([x.to_sparse()], None)):
    try:
        op(*wrong)
    except Exception as error:
        assert kind is None or type(error) is kind, repr(error)
        print(error)
    else:
        raise AssertionError
assert "fusec" not in sys.modules
"""


@pytest.mark.parametrize("target", ["cpp", pytest.param("triton", marks=pytest.mark.slow)])
def test_an_operator_for_every_size(target: str, tmp_path: Path) -> None:
    path = symbolic(target).export(tmp_path / "exported.py", form="library")
    assert path == tmp_path / "exported.py"
    said = passes(USE, tmp_path)
    assert "x must be torch.float32, not torch.float64" in said
    assert "x must have 1 dimensions, not 2" in said


@pytest.mark.parametrize("target", [pytest.param("cpp", marks=pytest.mark.slow), "triton"])
def test_the_file_checks_itself(target: str, tmp_path: Path) -> None:
    assert symbolic(target).export(tmp_path / "own", form="library").name == "own.py"
    said = passes("import runpy; runpy.run_path('own.py', run_name='__main__')", tmp_path)
    assert said.count("success") == 4
    assert "the same plain and compiled" in said


def test_fixed_sizes_are_checked(tmp_path: Path) -> None:
    signature = Signature(tuple(vk.signature(8).arguments))
    text = vk.cpp().replace("int64_t n, int64_t threads", "int64_t threads")
    text = text.replace("{\n    #pragma", "{\n    const int64_t n = 8;\n    #pragma")
    source = KernelSource("scale", "cpp", "scale", text, signature)
    Kernel(source, None, vk.Host()).export(tmp_path / "exported.py", form="library")  # type: ignore[arg-type]
    code = """
import torch, exported
op = torch.ops.fuselab.scale
assert torch.equal(op(torch.ones(8)), torch.full((8,), 3.0))
print(torch.library.opcheck(op.default, (torch.ones(8),)))
for run in (op, torch.compile(lambda x: op(x), backend="eager")):
    try:
        run(torch.ones(9))
    except Exception as error:
        assert "x must have 8 elements in dimension 0, not 9" in str(error), error
    else:
        raise AssertionError
"""
    passes(code, tmp_path)


def test_an_update_in_place_and_a_size_that_no_tensor_shows(tmp_path: Path) -> None:
    n, half = Expr.of(Symbol("n", "size")), Expr.of(Symbol("half", "size"))
    one = (Expr.of(1),)
    signature = Signature(
        (
            Argument("total", torch.float32, (n,), one, "inout"),
            Argument("lambda", torch.float16, (half * 2,), one, "in"),
            Argument("out", torch.int64, (half, Expr.of(2)), (Expr.of(1), half), "out"),
            Argument("other", torch.bool, (n,), one, "out"),
        ),
        ("n", "half"),
    )
    text = (
        "#include <stdint.h>\n"
        'extern "C" int both(float* total, const uint16_t* lambda, int64_t* out, bool* other,'
        " int64_t n, int64_t half, int64_t threads) {\n"
        "    for (int64_t i = 0; i < n; i++) { total[i] += 1; other[i] = i % 2; }\n"
        "    for (int64_t i = 0; i < 2 * half; i++) out[i] = lambda[i];\n"
        "    return 0;\n}\n"
    )
    source = KernelSource("both", "cpp", "both", text, signature)
    kernel = Kernel(source, None, vk.Host())  # type: ignore[arg-type]
    kernel.export(tmp_path / "exported.py", form="library")
    code = """
import torch, exported
op = torch.ops.fuselab.both.default
print(op._schema)
total, halves = torch.zeros(5), torch.ones(6, dtype=torch.float16)
out, other = op(total, halves, 3)
assert total.tolist() == [1.0] * 5 and other.tolist() == [False, True, False, True, False]
assert out.shape == (3, 2) and out.stride() == (1, 3) and set(out.flatten().tolist()) == {0x3c00}
assert set(torch.library.opcheck(op, (total, halves, 3)).values()) == {"SUCCESS"}
@torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
def run(total, halves):
    out, other = op(total, halves, halves.shape[0] // 2)
    return out.sum() + other.sum()
total = torch.zeros(7)
assert run(total, torch.zeros(4, dtype=torch.float16)) == 3 and total.tolist() == [1.0] * 7
try:
    op(torch.zeros(5, 2)[:, 0], halves, 3)
except ValueError as error:
    assert "strides" in str(error)
else:
    raise AssertionError
"""
    assert "Tensor(a0!) total" in passes(code, tmp_path)


@pytest.mark.slow
def test_generated_kernels(tmp_path: Path) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> Any:
        y = F.gelu(x)
        return F.layer_norm(y, (y.shape[-1],), weight), (y * x).sum(0), y.t().contiguous()

    torch._dynamo.reset()
    compiled = fusec.compile(function, dynamic=True, name="trial")
    x, weight = torch.randn(12, 40), torch.randn(40)
    compiled(x, weight)
    assert len(compiled.kernels) >= 2
    for name, kernel in compiled.kernels.items():
        kernel.export(tmp_path / f"{name}_op.py", form="library")
        code = f"import runpy; runpy.run_path('{name}_op.py', run_name='__main__')"
        assert "the same plain and compiled" in passes(code, tmp_path)


def test_no_tensor_no_operator(tmp_path: Path) -> None:
    signature = Signature((vk.signature(8).arguments[1],))
    kernel = Kernel(KernelSource("fill", "cpp", "fill", "", signature), None, vk.Host())  # type: ignore[arg-type]
    with pytest.raises(FusecError, match="takes no tensor"):
        kernel.export(tmp_path / "a.py", form="library")


def test_forms_and_suffixes(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="file"):
        symbolic().export(tmp_path / "a.py", form="libary")  # type: ignore[arg-type]
    with pytest.raises(FusecError, match=r"as a\.cpp \(a torch\.library operator\)"):
        symbolic().export(tmp_path / "a.cpp", form="library")


@pytest.mark.slow
def test_a_name_that_the_kernel_uses_itself(tmp_path: Path) -> None:
    kernel = symbolic(text=vk.cpp().replace("i < n", "i < n /* scale_op */"))
    kernel.export(tmp_path / "exported.py", form="library")
    passes("import torch, exported; assert exported.scale_op_(torch.ones(3))[0] == 3", tmp_path)
