"""C++ kernels read well: the kernel first, its helpers at the end, its values by their names."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.errors import CompileError
from fusec.helper_block import HEAD, INCLUDE, kernel_first, with_helpers, without_helpers
from fusec.targets.cpp.text.writer import wrap
from fusec.toolchain.build import build
from fusec.toolchain.compiler import find_compiler
from support.cpp_bodies import random_bench
from support.paths import GOLDEN

TEXTS = sorted((GOLDEN / "cpp").glob("*.cpp"))
KERNEL = f"""\
// adds one
#include <stdint.h>
{INCLUDE}

extern "C" int add(float* x, int64_t n, int64_t threads)
{{
    for (int64_t i = 0; i < n; ++i) x[i] = fx_one(x[i]);
    return 0;
}}

{HEAD}

static inline float fx_one(float x)
{{
    return x + 1.0f;
}}
"""


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_the_kernel_comes_first(path: object) -> None:
    text = path.read_text()  # type: ignore[attr-defined]
    kernel, helpers = without_helpers(text)
    assert kernel.count('extern "C"') == 1
    assert bool(helpers) is (INCLUDE in kernel)
    # nothing is declared ahead
    assert not re.search(r"^(template|static|FX_INLINE)[^{]*\);$", text, re.MULTILINE)
    # the cell's line is named where it changes
    named = re.findall(r"^ *(// line .*)$", kernel.partition("{")[2], re.MULTILINE)
    assert all(a != b for a, b in itertools.pairwise(named))


# What is written and never read; a pair of parentheses in another; factors and terms of no use.
DECLARED = re.compile(
    r"^ *(?:alignas\(64\) )?(?:const )?(?:float|double|int|bool|u?int\d+_t) (\w+)(?: = |\[)"
    r"|^ +(\w+) = (?!tl\.reduce)",
    re.MULTILINE,
)
IDLE = re.compile(
    r"(?<!__)\(\([^()]*\)\)(?! {)|[+-] 0\b(?![.x])|\* 1(?:\.0f?)?(?![.\w])|(\(float\))\1"
)


@pytest.mark.parametrize("target", ["cpp", "plain", "triton"])
def test_nothing_is_there_for_nothing(target: str) -> None:
    for path in sorted((GOLDEN / target).iterdir()):
        kernel, _ = without_helpers(path.read_text())
        for name in {a or b for a, b in DECLARED.findall(kernel)}:
            assert len(re.findall(rf"\b{name}\b", kernel)) > 1, (path.name, name)
        code = re.sub(r"(//|#) line .*|__attribute__\(\(\w+\)\)", "", kernel)
        assert not [m[0] for m in IDLE.finditer(code)], path.name


def test_helpers_are_compiled_where_they_are_included() -> None:
    whole = with_helpers(KERNEL)
    assert whole.index("fx_one(float x)") < whole.index('extern "C"')
    assert INCLUDE not in whole
    assert with_helpers(whole) == whole, "what has no include stays as it is"
    assert build(KERNEL).exists()


def test_an_exported_file_begins_with_the_kernel(tmp_path: Path) -> None:
    alone = kernel_first(KERNEL)
    assert alone.index("fx_one(float x)") > alone.index('extern "C"')
    assert kernel_first(alone) == alone, "what has no include stays as it is"
    # It includes itself, whichever folder the compiler is started in and whatever it is called.
    path = tmp_path / "sub" / "called so.cpp"
    path.parent.mkdir()
    path.write_text(alone)
    compiler = find_compiler()
    for folder, name in ((tmp_path, "sub/called so.cpp"), (path.parent, "called so.cpp")):
        command = compiler.command(name, str(tmp_path / "made.so"))
        subprocess.run(command, cwd=folder, check=True)


@pytest.mark.parametrize("line", ["    return 0;", "    return x + 1.0f;"])
def test_errors_keep_their_lines(line: str) -> None:
    broken = KERNEL.replace(line, line.replace("return", "return unknown +"))
    with pytest.raises(CompileError) as raised:
        build(broken, kind="edits-cpp")
    lines = broken.splitlines()
    assert "unknown" in lines[raised.value.diagnostics[0].line - 1]


def test_lines_break_at_commas_and_before_operators() -> None:
    head = f"int f({', '.join(f'const float* __restrict__ x{n}' for n in range(9))})"
    lines = wrap(head, 60)
    assert all(len(each) <= 60 for each in lines)
    assert all(each.endswith(",") for each in lines[:-1])
    assert " ".join(each.strip() for each in lines) == head
    total = "const float total = first_of_them * second_of_them + third_of_them * fourth;"
    assert wrap(total, 60)[1].strip().startswith("+ third")
    stored = "out[i0 * s2 * 4488 + i1 * s2 * 561 + i2 * 561 + r0] = fx_expm1(smaller);"
    assert wrap(stored, 60)[0].endswith(" =")
    assert wrap("// " + "word " * 30, 60)[1].startswith("// ")


@pytest.mark.parametrize(
    "seeds",
    [range(20), pytest.param(range(20, 60), marks=pytest.mark.slow)],
    ids=["20 seeds", "40 more"],
)
def test_no_loop_of_one_turn_over_outer_points_and_no_zero_added(seeds: range) -> None:
    for seed in seeds:
        bench = random_bench(seed)
        kernel, _ = without_helpers(bench.source().text)
        assert not re.search(r"[+-] 0\b(?![.x])", kernel), (seed, kernel)
        turns = re.findall(r"for \(int64_t (i\d) = 0; \1 < 1; ", kernel)
        assert not turns, (seed, kernel)


def standardized(x: torch.Tensor) -> torch.Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True)
    return (x - mean) / (variance + variance.sqrt())


def oddly_named(x: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, ...]:
    r0 = x.mean()
    lane = (x * count + r0).tanh()
    better = lane.exp() + lane
    place = better * lane
    double = place + better
    return double.argmax(0), place.argmax(1), double.softmax(1)


def test_values_may_be_called_like_what_a_kernel_needs_itself() -> None:
    torch._dynamo.reset()
    x, count = torch.randn(70, 90), torch.rand(90)
    for got, wanted in zip(
        fusec.compile(oddly_named)(x, count), oddly_named(x, count), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


NAMES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[str, ...]]] = {
    "layer_norm": (lambda x: F.layer_norm(x, (90,)), ("mean", "row_squares", "rstd")),
    "variance": (standardized, ("mean", "variance", "row_squares")),
    "rms_norm": (lambda x: F.rms_norm(x, (90,)), ("row_squares", "rrms")),
    "softmax": (lambda x: x.softmax(-1) * 2, ("row_max", "exponential")),
    "count": (lambda x: (x > 0).sum(-1), ("row_count",)),
}


@pytest.mark.parametrize("name", NAMES)
def test_values_have_the_names_that_people_give_them(name: str) -> None:
    torch._dynamo.reset()
    cell, words = NAMES[name]
    x = torch.randn(70, 90)
    compiled = fusec.compile(cell)
    torch.testing.assert_close(compiled(x), cell(x), rtol=1e-4, atol=1e-4)
    (kernel,) = compiled.kernels.values()
    declared = set(re.findall(r"^ *(?:const )?\w+ (\w+) = ", kernel.source, re.MULTILINE))
    assert set(words) <= {re.sub(r"_val$", "", each) for each in declared}, kernel.source
    assert "quotient" not in declared
