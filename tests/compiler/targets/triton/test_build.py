"""Building Triton kernels: errors with their line, two worlds in one process, cross-compilation."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fusec.errors import CompileError, FusecError
from fusec.kernel_source import KernelSource
from fusec.targets.triton.emit import emit_triton
from fusec.targets.triton.toolchain import build as triton_build
from fusec.targets.triton.toolchain import cross_compile as triton_cross
from fusec.targets.triton.toolchain import load as triton_load
from fusec.targets.triton.toolchain.build import TritonRunnable, build_triton, prestart
from fusec.targets.triton.toolchain.cross_compile import artifacts
from fusec.targets.triton.toolchain.interpret import interpreting
from support.triton_bodies import gather, pointwise_chain, softmax, sum_columns


@pytest.fixture
def source() -> KernelSource:
    case = softmax(4, 100)
    return emit_triton("softmax", case.body, case.buffers, label="softmax")


def line_with(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


def broken(source: KernelSource, old: str, new: str) -> CompileError:
    text = source.text.replace(old, new, 1)
    assert text != source.text
    with pytest.raises(CompileError) as caught:
        build_triton(text, source.signature)
    return caught.value


def test_what_is_not_there_is_missed_at_the_end(source: KernelSource) -> None:
    text = "def another():\n    pass\n"
    with pytest.raises(CompileError, match="no function launch") as caught:
        build_triton(text, source.signature)
    assert [d.line for d in caught.value.diagnostics] == [3]


def test_python_errors_carry_their_line(source: KernelSource) -> None:
    error = broken(source, "col = tl.arange(0, RBLOCK)", "col = tl.arange(0, RBLOCK")
    assert error.diagnostics[0].line == line_with(source.text, "col = tl.arange")
    error = broken(source, "XBLOCK = ", "XBLOCK = missing + ")
    assert error.diagnostics[0].line == line_with(source.text, "XBLOCK = ")
    assert "missing" in error.message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tl.store(out_ptr", "tl.stroe(out_ptr", "stroe"),
        ("exp = libdevice", "exp = lidbevice", "lidbevice"),
        (" = tl.reduce(x, 1, ", " = tl.reduce(x, 5, ", "axis"),
        ("row_inside = row < 4", "row_inside = row < out_ptr", "operand"),
    ],
)
def test_triton_errors_carry_their_line(
    source: KernelSource, old: str, new: str, said: str
) -> None:
    error = broken(source, old, new)
    changed = source.text.replace(old, new, 1)
    assert error.diagnostics[0].line == line_with(changed, new.strip())
    assert said in error.output


def test_errors_in_a_helper_are_found_there(source: KernelSource) -> None:
    error = broken(source, "return tl.maximum(a, b,", "return tl.maximum(a, c,")
    assert error.diagnostics[0].line == line_with(source.text, "return tl.maximum(a, b,")


def test_a_missing_or_failing_launch(source: KernelSource) -> None:
    assert "launch" in broken(source, "def launch(", "def start(").message
    error = broken(source, "num_warps=NUM_WARPS", "num_warps=NUM_WRAPS")
    assert "NUM_WRAPS" in error.message


def test_interpreting_leaves_triton_as_it_was(source: KernelSource) -> None:
    import triton
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    modules = (tl, tl.core, tl.math, tl.standard, tl.core.tensor, tl.core.dtype)
    before = [dict(vars(m)) for m in modules]
    kernel = build_triton(source.text, source.signature)
    x, out = torch.randn(4, 100).half(), torch.empty(4, 100).half()
    for _ in range(2):
        kernel([x, out], [])
        torch.testing.assert_close(out, torch.softmax(x, -1))
        for module, names in zip(modules, before, strict=True):
            now = vars(module)
            assert {n for n in names if now.get(n) is not names[n]} == set(), module
        assert "ttgir" in artifacts(source.text, source.signature, kinds=("ttgir",))
    assert isinstance(triton.jit(line_with), JITFunction)
    assert "TRITON_INTERPRET" not in os.environ


def test_a_failing_kernel_leaves_triton_as_it_was() -> None:
    import triton.language as tl

    load = tl.load
    with contextlib.suppress(ZeroDivisionError), interpreting():
        assert tl.load is not load
        raise ZeroDivisionError
    assert tl.load is load


def test_threads_may_run_and_compile_at_once(source: KernelSource) -> None:
    kernel = build_triton(source.text, source.signature)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(3):
                if number % 2:
                    artifacts(source.text, source.signature, kinds=("ttir",))
                else:
                    x, out = torch.randn(4, 100).half(), torch.empty(4, 100).half()
                    kernel([x, out], [])
                    torch.testing.assert_close(out, torch.softmax(x, -1))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_failed_checks_are_index_errors() -> None:
    case = gather(10, 20, 33)
    source = emit_triton("gather", case.body, case.buffers)
    kernel = build_triton(source.text, source.signature)
    tensors = case.inputs()
    tensors["which"][3] = -11
    with pytest.raises(IndexError, match="index out of range"):
        kernel([tensors[a.name] for a in source.signature.arguments], [])


@pytest.mark.sample(2)
@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_every_form_for_every_gpu(gpu: str) -> None:
    case = pointwise_chain(64, 64)
    source = emit_triton("chain", case.body, case.buffers)
    forms = artifacts(source.text, source.signature, gpu=gpu)
    nvidia = gpu.startswith("sm")
    assert tuple(forms) == triton_cross.KINDS["cuda" if nvidia else "hip"]
    assert "tt.load" in forms["ttir"]
    assert "ttg.num-warps" in forms["ttgir"]
    assert "define" in forms["llir"]
    if nvidia:
        assert f".target {gpu}" in forms["ptx"]
        assert "LDG" in forms["sass"]
    else:
        assert "global_load" in forms["amdgcn"]


def test_several_kernels_are_shown_one_after_the_other() -> None:
    case = sum_columns(3000, 40)
    source = emit_triton("total", case.body, case.buffers)
    ptx = artifacts(source.text, source.signature, kinds=("ptx",))["ptx"]
    assert ptx.index("// total_part1") < ptx.index("// total\n")


def test_forms_and_gpus_that_do_not_exist(source: KernelSource) -> None:
    with pytest.raises(FusecError, match="no sass for gfx942") as caught:
        artifacts(source.text, source.signature, gpu="gfx942", kinds=("sass",))
    assert "amdgcn" in caught.value.hint
    with pytest.raises(FusecError, match="no amdgcn for sm_90"):
        artifacts(source.text, source.signature, gpu="sm_90", kinds=("amdgcn",))
    with pytest.raises(FusecError, match="rtx"):
        artifacts(source.text, source.signature, gpu="rtx")


def test_bfloat16_is_rounded_as_torch_rounds() -> None:
    import triton.language as tl
    from triton.runtime import interpreter

    values = torch.cat([torch.randn(1000) * 10.0**p for p in (-40, -3, 0, 38)])
    values = torch.cat([values, torch.tensor([1.999, 2 - 2**-9, 1 + 2**-8, float("nan")])])
    with interpreting():
        bits = interpreter._convert_float(values.numpy(), tl.float32, tl.bfloat16, None)
    got = torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16)
    assert torch.equal(got.nan_to_num(7), values.bfloat16().nan_to_num(7))


def test_edits_may_compute_in_bfloat16() -> None:
    case = pointwise_chain(8, 16, dtype=torch.bfloat16)
    source = emit_triton("chain", case.body, case.buffers)
    text = source.text.replace("inside).to(tl.float32)", "inside)")
    assert text != source.text
    text = text.replace("libdevice.tanh(h)", "libdevice.tanh(h.to(tl.float32))")
    tensors = case.inputs()
    build_triton(text, source.signature)([tensors[n] for n in ("a", "b", "out")], [])
    torch.testing.assert_close(tensors["out"], case.expected(tensors)["out"], rtol=0.02, atol=0.02)


def test_prestart_returns_at_once() -> None:
    prestart()
    prestart()
    assert triton_build._prestart is not None
    triton_build._prestart.join()
    assert "triton" in sys.modules


def test_without_the_cache_a_private_folder_serves(
    source: KernelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fusec.cache", None)
    namespace, path = triton_load.load(source.text)
    assert Path(path).read_text() == source.text
    assert callable(namespace["launch"])


@pytest.mark.slow
def test_the_file_runs_without_fusec(tmp_path: Path) -> None:
    case = sum_columns(100, 20, torch.float32)
    source = emit_triton("total", case.body, case.buffers)
    (tmp_path / "total.py").write_text(source.text)
    program = (
        "import sys; sys.modules['fusec'] = None\n"
        "import torch, total\n"
        "x, out = torch.randn(100, 20), torch.empty(20)\n"
        "total.launch(x, out)\n"
        "torch.testing.assert_close(out, x.sum(0))\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
        timeout=100,
    )


LAUNCH = """
NUM_WARPS = 1
tried = []

def launch(x, out):
    tried.append(NUM_WARPS)
    if NUM_WARPS not in {good}:
        raise RuntimeError("PassManager::run failed")
    out.copy_(x)
"""


@pytest.mark.parametrize(("good", "tried"), [({8}, [1, 4, 8]), (set(), [1, 4, 8, 2, 16])])
def test_other_warps_where_tritons_compiler_fails(
    source: KernelSource,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    good: set[int],
    tried: list[int],
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    namespace: dict[str, Any] = {}
    exec(LAUNCH.replace("{good}", str(good)), namespace)
    kernel = TritonRunnable(namespace, "kernel.py", source.signature, "launch", cpu=False)
    x, out = torch.randn(4), torch.zeros(4)
    if good:
        kernel([x, out], [])
        assert torch.equal(x, out)
        assert "NUM_WARPS = 1; it runs with 8" in caplog.text
        kernel([x, out], [])
        assert kernel._launch.__globals__["tried"] == [*tried, 8]
    else:
        with pytest.raises(CompileError, match="PassManager"):
            kernel([x, out], [])
        assert kernel._launch.__globals__["tried"] == tried
        assert kernel._launch.__globals__["NUM_WARPS"] == 1
