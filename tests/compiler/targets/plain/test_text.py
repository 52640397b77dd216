"""Plain kernels: golden texts, and what they compute beside the reference interpreter."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

import fusec
from fusec.codegen.common.signatures import argument_buffers, body_sizes
from fusec.errors import CompilerNotFound
from fusec.ir.index import Expr, Symbol
from fusec.kernel_source import KernelSource
from fusec.target_api.registry import find_target
from fusec.targets.plain.emit import emit_plain
from fusec.targets.plain.target import TARGET
from fusec.toolchain.loading import load
from support.cpp_bodies import Bench, Built, check, make_inputs, random_bench
from support.paths import GOLDEN
from support.triton_bodies import (
    Case,
    cross_entropy,
    gather,
    gelu_layer_norm,
    logsumexp,
    norm_gradient,
    pointwise_chain,
    random_kept,
    reduce_rows,
    row_windows,
    scans,
    scatter_add,
    softmax,
    sum_all,
    transpose_add,
)

TEXTS = GOLDEN / "plain"
F32, BF16 = torch.float32, torch.bfloat16


def symbolic_softmax() -> Case:
    rows, columns = Symbol("s0", "size", low=0), Symbol("s1", "size", low=0)
    case = softmax(Expr.of(rows), Expr.of(columns), F32)
    case.sizes = {rows: 40, columns: 33}
    return case


CASES: dict[str, Callable[[], Case]] = {
    "pointwise": lambda: pointwise_chain(20, 33, dtype=F32),
    "pointwise_half": lambda: pointwise_chain(60, 128, dtype=BF16),
    "transpose": lambda: transpose_add(30, 20, F32),
    "row_windows": lambda: row_windows(30, 56),
    "gather": lambda: gather(10, 20, 33),
    "scatter_add": lambda: scatter_add(50, 70, 40),
    "random": lambda: random_kept(30, 33),
    "softmax": lambda: softmax(24, 200, F32),
    "softmax_symbolic": symbolic_softmax,
    "logsumexp": lambda: logsumexp(9, 300),
    "layer_norm": lambda: gelu_layer_norm(60, 200, F32),
    "cross_entropy": lambda: cross_entropy(5, 500, F32),
    "sum_all": lambda: sum_all(30, 40, dtype=F32),
    "argmax": lambda: reduce_rows("argmax", 9, 100),
    "scan": lambda: scans(("sum", "max", "argmax"), 9, 100),
    "scan_logsumexp": lambda: scans(("sum", "logsumexp"), 100, 40, down=True),
    "norm_gradient": lambda: norm_gradient(300, 40, 64, F32),
}
TERMS = {"sum_all": 70.0, "layer_norm": 1.0, "norm_gradient": 14.0}


class Plain(Built):
    """A plain kernel, built as the target builds it."""

    def __init__(self, bench: Bench, source: KernelSource) -> None:
        self.bench, self.source = bench, source
        sizes = body_sizes(bench.body, bench.buffers)
        types = [ctypes.c_void_p] * len(source.signature.arguments)
        types += [ctypes.c_int64] * (len(sizes) + 1)  # type: ignore[list-item]
        self.function = load(TARGET.compile(source.text), source.entry, argtypes=types)
        self.order = argument_buffers(bench.body)
        self.sizes = [bench.sizes[symbol] for symbol in sizes]


def emit(case: Case) -> KernelSource:
    return emit_plain(case.name, case.body, case.buffers, label=case.label)


def bench_of(case: Case) -> Bench:
    axes = {"outer": list(case.body.axes), "reduced": list(case.body.reduce_axes)}
    stores, sizes = list(case.body.stores), dict(case.sizes)
    return Bench(case.name, dict(case.buffers), stores=stores, sizes=sizes, **axes)


def filled(case: Case, bench: Bench, seed: int) -> Mapping[str, torch.Tensor]:
    given = case.inputs(seed)
    return make_inputs(bench, seed, **{name: given[name] for name in case.fill})


@pytest.mark.parametrize("name", CASES)
def test_golden_text(name: str) -> None:
    text = emit(CASES[name]()).text
    path = TEXTS / f"{name}.cpp"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), "renew with UPDATE_GOLDEN=1 if the change is meant"
    assert max(len(each) for each in text.splitlines()) <= 100
    assert "#pragma" not in text
    assert "__" not in text  # nothing that only some compilers know


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CASES)
def test_golden_case_computes_what_the_reference_does(name: str) -> None:
    case = CASES[name]()
    bench = bench_of(case)
    built = Plain(bench, emit(case))
    tensors = dict(filled(case, bench, 0))
    check(bench, tensors, built=built, threads=(1,), terms=TERMS.get(name, 0.25), context=name)


def check_random(seed: int) -> None:
    bench = random_bench(seed)
    source = emit_plain(bench.name, bench.body, bench.buffers)
    built = Plain(bench, source)
    check(
        bench, built=built, threads=(1,), seed=seed, special=seed % 3 == 0, context=f"seed {seed}"
    )


@pytest.mark.parametrize("seed", range(6))
def test_random_bodies(seed: int) -> None:
    check_random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 200))
def test_more_random_bodies(seed: int) -> None:
    check_random(seed)


def test_any_compiler_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that knows no OpenMP and no processor."""
    import shutil

    real = shutil.which("g++") or shutil.which("c++")
    modest = tmp_path / "modest-c++"
    modest.write_text(
        "#!/bin/sh\n"
        'for a in "$@"; do case "$a" in -fopenmp*|-march*|-mcpu*|-O3) exit 1;; esac; done\n'
        f'exec {real} "$@"\n'
    )
    modest.chmod(0o700)
    monkeypatch.setenv("CXX", str(modest))
    compiled = fusec.compile(lambda x: x * 2 + 1.25, target="plain", dynamic=False)
    x = torch.randn(7)
    torch.testing.assert_close(compiled(x), x * 2 + 1.25)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompilerNotFound, match="no-such-compiler"):
        find_target("plain").compile("int x;\n")  # type: ignore[attr-defined]


def test_a_product_stays_with_blas() -> None:
    compiled = fusec.compile(lambda x, w: torch.relu(x @ w), target="plain", dynamic=False)
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    torch.testing.assert_close(compiled(x, w), torch.relu(x @ w))
    assert [each.name for each in compiled.graphs[0].externs] == ["aten.mm.default"]
    assert [kernel.target for kernel in compiled.kernels.values()] == ["plain"]


def test_a_long_check_keeps_its_remark_a_remark() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.min(x, 1).values

    x = torch.randn(5, 5, 5, requires_grad=True)
    fusec.compile(f, target="plain", dynamic=False)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.sum() == 25


def test_a_failed_check_raises() -> None:
    compiled = fusec.compile(lambda x, at: x[at] * 2, target="plain", dynamic=False)
    x = torch.randn(8)
    with pytest.raises(IndexError, match="index out of range"):
        compiled(x, torch.tensor([3, 8]))


def test_edits_are_checked_tuned_and_exported(tmp_path: Path) -> None:
    import subprocess
    import sys

    x = torch.randn(40, 50)
    compiled = fusec.compile(lambda x: x.softmax(-1), target="plain", keep_inputs=True)
    compiled(x)
    (kernel,) = compiled.kernels.values()
    assert kernel.keep(kernel.source.replace("double sum", "float sum")).ok
    wrong = kernel.check(kernel.source.replace("- largest", "+ largest"))
    assert (wrong.ok, wrong.stage) == (False, "wrong")
    outside = kernel.check(kernel.source.replace("j < 50", "j < 5000000"))
    assert not outside.ok
    path = kernel.export(tmp_path / "softmax.py")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "softmax" in done.stdout
    assert "-march" not in path.read_text()
    assert kernel.export(tmp_path / "softmax").suffix == ".cpp"
