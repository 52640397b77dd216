"""Exported files: run for real, in a process in which fusec cannot be imported."""

from __future__ import annotations

import subprocess

import pytest
import torch

from fusec.errors import FusecError
from fusec.ir.index import Expr
from fusec.kernel import Kernel
from fusec.kernel_source import Argument, KernelSource, Signature
from support import handwritten_kernels as vk
from support.exported import python, symbolic

USE = """
import torch, exported
x = torch.randn(777)
assert torch.allclose(exported.run(x), x * 2 + 1)
wide = torch.randn(30, 2)[:, 0]
assert torch.allclose(exported.run(wide), wide * 2 + 1)
for wrong in ([x.double()], [x, x], [x[None]]):
    try:
        exported.run(*wrong)
    except TypeError as error:
        print(error)
    else:
        raise AssertionError
assert "fusec" not in sys.modules
"""


@pytest.mark.parametrize("target", ["cpp", pytest.param("triton", marks=pytest.mark.slow)])
def test_python_file_as_a_module(target, tmp_path):
    path = symbolic(target).export(tmp_path / "exported.py")
    assert path == tmp_path / "exported.py"
    done = python(USE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "x must be torch.float32 of shape (777,)" in done.stdout
    assert "takes 1 tensors, not 2" in done.stdout


@pytest.mark.parametrize("target", [pytest.param("cpp", marks=pytest.mark.slow), "triton"])
def test_python_file_as_a_program(target, tmp_path):
    symbolic(target).export(tmp_path / "exported.py")
    done = python("import runpy; runpy.run_path('exported.py', run_name='__main__')", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "out: float32 (256,)" in done.stdout
    assert "scale: median" in done.stdout


def test_a_failing_check_is_raised(tmp_path):
    text = vk.cpp().replace("return 0", "return n == 5")
    symbolic(text=text).export(tmp_path / "exported.py")
    done = python("import torch, exported; exported.run(torch.ones(5))", tmp_path)
    assert "IndexError: index out of range" in done.stderr


def test_no_compiler(tmp_path):
    symbolic().export(tmp_path / "exported.py")
    code = "import os; os.environ['CXX'] = 'no-such-compiler'\nimport torch, exported\n"
    done = python(code + "exported.run(torch.ones(5))", tmp_path)
    assert "no C++ compiler found" in done.stderr


def test_cpp_file_builds_as_its_header_says(tmp_path):
    path = symbolic().export(tmp_path / "exported")
    assert path.name == "exported.cpp"
    lines = path.read_text().splitlines()
    command = next(line for line in lines if "g++" in line).strip("/ ").split()
    subprocess.run(command, cwd=tmp_path, check=True)
    calls = [line[2:].strip() for line in lines if "ctypes" in line]
    code = "import torch\nx = torch.randn(9); out = torch.empty(9); n, threads = 9, 2\n"
    code += "\n".join(calls) + "\nassert torch.allclose(out, x * 2 + 1)\n"
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_the_user_edited_is_exported(tmp_path):
    kernel = symbolic()
    kernel._text = vk.cpp().replace("2.0f", "3.0f") + "// '''quotes''' and \\ backslash\n"
    path = kernel.export(tmp_path / "exported.py")
    assert "Edited with Fuselab" in path.read_text()
    code = "import torch, exported; assert exported.run(torch.ones(4)).tolist() == [4.0] * 4"
    assert python(code, tmp_path).returncode == 0


def test_several_arguments_and_an_update(tmp_path):
    text = (
        "#include <stdint.h>\n"
        'extern "C" int both(float* total, const int64_t* i, const bool* keep, double* out,'
        " int64_t threads) {\n"
        "    for (int k = 0; k < 6; k++) {\n"
        "        total[k] += i[k]; out[(k % 3) * 2 + k / 3] = keep[k] ? total[k] : 0;\n"
        "    }\n    return 0;\n}\n"
    )
    shape = (Expr.of(2), Expr.of(3))
    rows, columns = (Expr.of(3), Expr.of(1)), (Expr.of(1), Expr.of(2))
    signature = Signature(
        (
            Argument("total", torch.float32, shape, rows, "inout"),
            Argument("i", torch.int64, shape, rows, "in"),
            Argument("keep", torch.bool, shape, rows, "in"),
            Argument("out", torch.float64, shape, columns, "out"),
        )
    )
    source = KernelSource("both", "cpp", "both", text, signature)
    Kernel(source, None, vk.Host()).export(tmp_path / "exported.py")
    code = """
import torch, exported
total, i = torch.zeros(2, 3), torch.arange(6).reshape(3, 2).t()
keep = torch.tensor([[True, False, True]] * 2)
updated, out = exported.run(total, i, keep)
assert updated is total and torch.equal(total, i.float())
assert out.stride() == (1, 2) and torch.equal(out, torch.where(keep, i, 0).double())
try:
    exported.run(torch.zeros(3, 2).t(), i, keep)
except TypeError as error:
    assert "strides" in str(error)
exported.main()
"""
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("target", "name"), [("triton", "a.cpp"), ("cpp", "a.txt")])
def test_a_suffix_that_does_not_fit(target, name, tmp_path):
    with pytest.raises(FusecError, match="end the name in"):
        symbolic(target).export(tmp_path / name)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FusecError, match="cannot write"):
        symbolic().export(tmp_path / "nowhere" / "a.py")
