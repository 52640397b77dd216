"""Every C++ compiler that is found builds kernels which compute the same, on one OpenMP runtime.

``make compilers`` has all golden kernels, and other machines; here is a sample.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from compilers import __main__ as compilers
from compilers import cross, here
from compilers.cross import TARGETS, Target, for_target
from compilers.here import with_compiler
from fusec.errors import CompilerNotFound
from fusec.toolchain import compiler as cpp_compiler
from fusec.toolchain.build import build
from fusec.toolchain.compiler import Compiler, bundled_compiler, find_compiler
from fusec.toolchain.families import FAMILIES, family_of
from fusec.toolchain.loading import load
from support import handwritten_kernels as kernels
from support.cpp_bodies import Built, check
from support.cpp_golden import CASES, TERMS, bench_of, emit, filled

CLANGS = ("clang++", "ziglang")
# What the region, its loop and its reduction ask of the runtime, one way each.
REGIONS = """\
#include <omp.h>
#include <stdint.h>
extern "C" int regions(int64_t* out, int64_t n, int64_t threads)
{
    for (int64_t i = 0; i < 8; ++i) out[i] = 0;
    int64_t sum = 0, most = -1;
#pragma omp parallel for num_threads(threads) reduction(+ : sum) reduction(max : most)
    for (int64_t i = 0; i < n; ++i) sum += i, most = i * 7 % n > most ? i * 7 % n : most;
    out[0] = sum, out[1] = most;
#pragma omp parallel for num_threads(threads) schedule(static, 3)
    for (int i = (int)n - 1; i >= 0; i -= 2) {
#pragma omp atomic
        out[2] += i;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 5)
    for (int64_t i = 0; i < n; i += 3) {
#pragma omp critical
        out[3] += i;
    }
#pragma omp parallel num_threads(threads)
    {
#pragma omp single
        out[4] += omp_get_num_threads();
#pragma omp barrier
#pragma omp for schedule(guided) nowait
        for (unsigned i = 0; i < (unsigned)n; ++i) {
#pragma omp atomic
            out[5] += i;
        }
#pragma omp master
        out[6] += 1;
    }
#pragma omp parallel for if (n < 0) num_threads(threads) collapse(2)
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < 3; ++j) out[7] += i * j;
    return 0;
}
"""


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Have kernels built by a compiler, or skip."""
    chosen = bundled_compiler() if name == "ziglang" else name
    monkeypatch.setenv("CXX", chosen or name)
    try:
        return find_compiler()
    except CompilerNotFound as error:
        pytest.skip(error.message)


@pytest.mark.parametrize("compiler", ["g++", *CLANGS])
def test_kernels_compute_the_same(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(compiler, monkeypatch)
    for name in ("softmax", "layer_norm", "sum_all", "scatter_add"):
        case = CASES[name]()
        bench = bench_of(case)
        built = Built(bench, emit(case))
        terms = TERMS.get(name, 0.25)
        check(bench, filled(case, bench, 0), built=built, threads=(1, 3), terms=terms, context=name)


@pytest.mark.parametrize("compiler", ["g++", *CLANGS])
def test_regions(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with more threads than turns, and with no turns at all."""
    use(compiler, monkeypatch)
    function = load(build(REGIONS), "regions")
    for n in (0, 1, 2, 3, 10, 1001):
        for threads in (1, 2, 3, 7):
            out = torch.empty(8, dtype=torch.int64)
            assert function(*map(ctypes.c_int64, (out.data_ptr(), n, threads))) == 0
            wanted = [
                sum(range(n)),
                max((i * 7 % n for i in range(n)), default=-1),
                sum(range(n - 1, -1, -2)),
                sum(range(0, n, 3)),
                threads,
                sum(range(n)),
                1,
                sum(i * j for i in range(n) for j in range(3)),
            ]
            assert out.tolist() == wanted, (n, threads)


@pytest.mark.linux("a linker that asks for every name")
@pytest.mark.parametrize("compiler", CLANGS)
def test_what_the_entry_lacks_is_refused_by_name(
    compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not use(compiler, monkeypatch).entry:
        pytest.skip("runs on a runtime of its own family")
    text = 'extern "C" int f() {\n#pragma omp task\n{ asm volatile(""); }\nreturn 0; }\n'
    with pytest.raises(Exception, match="__kmpc_omp_task"):
        build(text)


EXTREMES = """\
extern "C" int extremes(const float* x, float* out, int n, int threads)
{
    float most = -__builtin_inff(), least = __builtin_inff();
    int flag = 0;
#pragma omp simd reduction(max : most) reduction(min : least) reduction(| : flag)
    for (int i = 0; i < n; ++i) {
        most = most > x[i] ? most : x[i];
        least = least < x[i] ? least : x[i];
        flag |= x[i] != x[i];
    }
    out[0] = most, out[1] = least;
#pragma omp parallel for num_threads(threads) reduction(max : most) reduction(min : least)
    for (int i = 0; i < n; ++i) {
        most = most > x[i] ? most : x[i];
        least = least < x[i] ? least : x[i];
    }
    out[2] = most, out[3] = least;
    return flag;
}
"""


@pytest.mark.parametrize("compiler", CLANGS)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 3e38, -3e38])
def test_extremes_of_infinities(
    compiler: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clang's own reductions begin at the largest finite number, whatever there is."""
    use(compiler, monkeypatch)
    function = load(build(EXTREMES), "extremes")
    x, out = torch.full((37,), value), torch.zeros(4)
    assert function(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()), 37, 2) == 0
    assert out.tolist() == [x[0].item()] * 4


@pytest.mark.parametrize("compiler", CLANGS)
def test_an_edit_is_let_by_or_refused_as_with_gcc(
    compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a compiler and its runtime put into a library is none of the edit's."""
    use(compiler, monkeypatch)
    verdict = kernels.check(kernels.cpp(), timed=False)
    assert verdict.ok, verdict.reason
    own = kernels.cpp("static thread_local int seen; out[0] = seen++;\n" + kernels.RIGHT)
    verdict = kernels.check(own, timed=False)
    assert verdict.stage == "unsafe"
    assert "of each thread from call to call" in verdict.reason


def test_line_numbers_stay_where_reductions_are_ours() -> None:
    text = FAMILIES["clang"].text(EXTREMES)
    before, mark, after = text.partition("#line 1\n")
    assert mark
    assert before.count("fx_max") == before.count("fx_min") == 1
    assert after.count("reduction(fx_max :") == after.count("reduction(fx_min :") == 2
    assert after.count("\n") == EXTREMES.count("\n")
    assert FAMILIES["gcc"].text(EXTREMES) == EXTREMES
    assert FAMILIES["clang"].text("int a;\n") == "int a;\n"


@pytest.mark.linux("that torch's OpenMP is GNU's")
@pytest.mark.parametrize("compiler", CLANGS)
def test_one_runtime(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has torch's OpenMP runtime and no other; it follows the number of threads."""
    found = use(compiler, monkeypatch)
    if sys.platform != "linux" or not found.runtime:
        pytest.skip("reads /proc")
    code = """
import os, torch, fusec
compiled = fusec.compile(lambda x: (x * 2).sum(0))
for n in (1, 3):
    torch.set_num_threads(n)
    compiled(torch.randn(3000, 500))
files = {line.split()[-1] for line in open("/proc/self/maps")}
marks = ("libomp", "libiomp", "libgomp")
print([file for file in files if any(mark in file for mark in marks)], flush=True)
os._exit(0)  # the native part is under way
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FUSEC_STRICT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([found.runtime])


def test_families() -> None:
    assert family_of("/usr/bin/g++", "g++ (Debian 12.2.0) 12.2.0").name == "gcc"
    assert family_of("/usr/bin/g++", "Apple clang version 17.0.0").name == "apple"
    assert family_of("/usr/bin/clang++", "Debian clang version 16.0.6").name == "clang"
    assert family_of("/some/where/zig", "zig 0.17.1").name == "zig"
    assert family_of("C:/some/where/zig.exe", "zig 0.17.1").name == "zig"


def test_directives_are_translated_line_for_line() -> None:
    text = "int a;\n    #pragma GCC unroll UNROLL\n    #pragma GCC ivdep\n    for (;;) {}\n"
    assert FAMILIES["gcc"].text(text) == text
    assert FAMILIES["clang"].text(text) == (
        "int a;\n    #pragma clang loop interleave_count(UNROLL)\n"
        "    #pragma clang loop vectorize(assume_safety)\n    for (;;) {}\n"
    )
    assert FAMILIES["zig"].translate("-march=x86-64-v3") == ("-mcpu=x86_64_v3",)


def test_the_message_offers_the_bundled_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(cpp_compiler, "bundled_compiler", lambda: "")
    cpp_compiler._find_compiler.cache_clear()
    with pytest.raises(CompilerNotFound) as raised:
        find_compiler()
    assert "pip install 'fuselab[compiler]'" in raised.value.hint


ONE = ("layer_norm",)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_other_machines(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    if not bundled_compiler():
        pytest.skip("needs ziglang")
    monkeypatch.setattr(cross, "NATIVE", {})  # make compilers builds it, for some seconds each
    with ThreadPoolExecutor(1) as pool:
        found = for_target(target, pool, ONE)
    assert found.built == 1, found.failed
    assert found.right == (target.emulator is not None), found.failed


def test_a_kernel_that_is_wrong_or_does_not_build_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Continuous integration runs this: what it does not see, nobody sees."""
    compiler = use("g++", monkeypatch).path
    text = emit(CASES["softmax"]()).text
    wrong = text.replace("+=", "-="), "int f( {"
    monkeypatch.setattr(here, "texts_of", lambda name: (text, *wrong))
    with ThreadPoolExecutor(1) as pool:
        found = with_compiler(compiler, pool, ("softmax",))
    assert found.right == 1
    assert len(found.failed) == 2
    assert all(line.startswith("softmax: ") for line in found.failed)


def test_what_is_not_here_is_said_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(compilers, "bundled_compiler", lambda: "")
    with ThreadPoolExecutor(1) as pool:
        assert compilers.here(pool)
        assert compilers.elsewhere(pool)
    said = capsys.readouterr().out
    assert said.count("skipped") == 4
    monkeypatch.setattr(compilers, "bundled_compiler", lambda: "zig")
    monkeypatch.setattr(compilers, "TARGETS", TARGETS[:1])
    monkeypatch.setattr(compilers, "for_target", lambda *_: cross.Cross(failed=("softmax: no",)))
    with ThreadPoolExecutor(1) as pool:
        assert not compilers.elsewhere(pool)
    assert "1 WRONG" in capsys.readouterr().out
