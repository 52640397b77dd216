"""C++ text: golden files, and each of those kernels against the reference interpreter."""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.ir import ops
from fusec.ir.node import const, index_value, recording
from fusec.kernel_source import KernelSource
from fusec.machine import this_machine, using
from fusec.report import SourceLine
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.split_ranges import split_ranges
from fusec.targets.cpp.text.writer import WIDTH, Writer
from fusec.toolchain.build import build
from fusec.tunables import read_tunables, set_tunables
from support.cpp_bodies import Bench, Built, check, make_inputs, references
from support.cpp_golden import CASES, FULL, TERMS, bench_of, emit, filled
from support.paths import GOLDEN

TEXTS = GOLDEN / "cpp"
F32, BF16 = torch.float32, torch.bfloat16


FULL_SAMPLED = [
    name if name == "transpose_full" else pytest.param(name, marks=pytest.mark.slow)
    for name in FULL
]


@pytest.mark.parametrize("name", CASES)
def test_golden_text(name: str) -> None:
    with using(this_machine().with_isa("avx2")):  # without fma, its maths has another text
        text = emit(CASES[name]()).text
    path = TEXTS / f"{name}.cpp"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), "renew with UPDATE_GOLDEN=1 if the change is meant"
    assert max(len(each) for each in text.splitlines()) <= 100


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", CASES)
def test_golden_case_computes_what_the_reference_does(name: str) -> None:
    case = CASES[name]()
    bench = bench_of(case)
    built = Built(bench, emit(case))
    for seed in (0, 1):
        tensors = filled(case, bench, seed)
        terms = TERMS.get(name, 0.25)
        check(bench, tensors, built=built, threads=(1, 2, 3), terms=terms, context=name)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", [*CASES, *FULL_SAMPLED])
def test_every_value_of_a_tunable_computes_the_same(name: str) -> None:
    case = (CASES | FULL)[name]()
    source, bench = emit(case), bench_of(case)
    tunables = read_tunables(source.text)
    texts = [
        set_tunables(source.text, {tunable.name: value})
        for tunable in tunables
        for value in (tunable.choices[0], tunable.choices[-1])
        if value != tunable.value
    ]
    tensors, terms = filled(case, bench, 2), TERMS.get(name, 0.25)
    known = references(bench, tensors) if texts else None
    for text in dict.fromkeys(texts):
        changed = KernelSource(**{**vars(source), "text": text})
        built = Built(bench, changed)
        check(bench, tensors, built=built, terms=terms, context=name, known=known)


@pytest.mark.parametrize("name", ["pointwise_flat", "layer_norm", "sum_all", "transpose"])
def test_kernels_large_enough_for_threads_have_tunables(name: str) -> None:
    expected = {
        "pointwise_flat": {"BLOCK", "UNROLL"},
        "pointwise_long": {"UNROLL"},
        "layer_norm": {"ROWS", "UNROLL"},
        "sum_all": {"PIECES"},
        "transpose": {"TILE_ROWS", "TILE_COLUMNS", "UNROLL"},
    }
    assert {t.name for t in read_tunables(emit(CASES[name]()).text)} == expected[name]


def test_unrolled_loops_compute_several_vectors_a_turn() -> None:
    """The directive is one that the compiler accepts and that changes the code."""
    text = emit(CASES["pointwise_flat"]()).text
    once, often = (build(set_tunables(text, {"UNROLL": n})).read_bytes() for n in (1, 8))
    code = [machine_code(library) for library in (once, often)]
    assert len(code[1]) > 1.5 * len(code[0])


def machine_code(library: bytes) -> bytes:
    """Return the ``.text`` section of a 64-bit little-endian ELF library."""
    table, size, count, names = struct.unpack_from("<Q10xHHH", library, 40)
    headers = [struct.unpack_from("<IIQQQQ", library, table + size * i) for i in range(count)]
    strings = headers[names][4]
    for name, _kind, _flags, _address, offset, length in headers:
        if library[strings + name :].startswith(b".text\0"):
            return library[offset : offset + length]
    raise AssertionError("a library without code")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_half_precision_hides_is_computed_in_short(dtype: torch.dtype) -> None:
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 6e4, -6e4, 1e-7, -100.0])
    x = torch.cat([torch.linspace(-8, 8, 200_001), special]).to(dtype)
    torch._dynamo.reset()
    compiled = fusec.compile(torch.nn.functional.gelu)
    actual = compiled(x)
    (kernel,) = compiled.kernels.values()
    short = "bfloat16" if dtype == torch.bfloat16 else "half"
    assert f"fx_one_plus_erf_for_{short}" in kernel.source
    exact = x.double() * torch.special.erfc(-x.double() * math.sqrt(0.5)) / 2
    # eager makes NaN of infinity where oneDNN computes it
    wanted = (x[-9:].double() / 2 * (1 + torch.erf(x[-9:].double() * math.sqrt(0.5)))).to(dtype)
    torch.testing.assert_close(actual[-9:], wanted, equal_nan=True, atol=1e-6, rtol=1e-2)
    off = (actual.double() - exact).abs()[:-9]
    # half a unit of the result's last place, and a twentieth
    unit = torch.finfo(dtype).eps * exact[:-9].abs() + torch.finfo(dtype).smallest_normal
    assert (off <= 0.55 * unit + 2**-22 * 8).all()
    # float32 that is stored stays exact
    torch._dynamo.reset()
    wide = fusec.compile(lambda x: torch.nn.functional.gelu(x.float()))
    wide(x)
    assert all("erf_half" not in kernel.source for kernel in wide.kernels.values())


@pytest.mark.parametrize(
    ("function", "short"),
    [
        (lambda x: F.gelu(x) * x, "bfloat16"),
        (lambda x: F.gelu(x.float()) * 3, ""),
        (lambda x: (F.gelu(x.float()) * 3).to(torch.float16), "half"),
        (lambda x: (F.gelu(x.float()) - 0.35).to(x.dtype), "half"),
        (lambda x: F.layer_norm(F.gelu(x), (64,)), "half"),
    ],
)
def test_eight_bits_hide_more_where_only_multiples_are_stored(
    function: Callable[[torch.Tensor], torch.Tensor], short: str
) -> None:
    torch._dynamo.reset()
    x = torch.randn(50, 64, dtype=torch.bfloat16)
    compiled = fusec.compile(function)
    torch.testing.assert_close(compiled(x), function(x), rtol=2e-2, atol=2e-2)
    (kernel,) = compiled.kernels.values()
    found = re.findall(r"[=*] fx_one_plus_erf(?:_for_(\w+))?\(", kernel.source)
    assert found == [short]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["exp", "sigmoid"])
def test_exponentials_in_short(name: str, dtype: torch.dtype) -> None:
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 88.7, -200.0, 200.0])
    x = torch.cat([torch.linspace(-86, 88, 200_001), torch.linspace(-9, 9, 50_001), special])
    x = x.to(dtype)
    torch._dynamo.reset()
    function = getattr(torch, name)

    def cell(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = function(x)
        return result

    compiled = fusec.compile(cell)
    actual, exact = compiled(x), function(x.double())
    (kernel,) = compiled.kernels.values()
    assert f"fx_{name}_for_half" in kernel.source
    torch.testing.assert_close(actual[-8:], exact[-8:].to(dtype), equal_nan=True)
    finite = exact[:-8].abs() < torch.finfo(dtype).max
    off = (actual.double() - exact)[:-8][finite].abs()
    # half a unit of the result's last place, and a twentieth; subnormal halves have fewer bits
    unit = torch.finfo(dtype).eps * exact[:-8][finite].abs()
    assert (off <= 0.55 * unit + torch.finfo(dtype).eps * torch.finfo(dtype).tiny).all()
    assert (actual[:-8][~finite] == math.inf).all()


def test_masked_weights_are_zero() -> None:
    x = torch.randn(40, 200).half()
    x[:, ::3] = -math.inf
    torch._dynamo.reset()
    found = fusec.compile(lambda x: x.softmax(-1))(x)
    assert (found[:, ::3] == 0).all()
    torch.testing.assert_close(found, x.double().softmax(-1).half(), atol=1e-4, rtol=2e-3)


def test_one_plus_erf_is_as_good_as_the_sum() -> None:
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 3e38, -3e38, 1e-40, -100.0])
    x = torch.cat([torch.linspace(-8, 8, 200_001), special])
    compiled = fusec.compile(lambda x: 1 + torch.erf(x))
    actual, exact = compiled(x), torch.special.erfc(-x.double())
    (kernel,) = compiled.kernels.values()
    assert "fx_one_plus_erf" in kernel.source
    torch.testing.assert_close(actual[-9:], 1 + torch.erf(x[-9:]), equal_nan=True)
    off = (actual.double() - exact).abs()[:-9]
    above = x[:-9] > 0
    assert (off[above] / exact[:-9][above]).max() < 2**-23
    assert off[~above].max() < 2**-23


def _slope(x: torch.Tensor, scale: float = -0.5) -> torch.Tensor:
    share = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    return share + x * torch.exp(x * x * scale) * (1 / math.sqrt(2 * math.pi))


@pytest.mark.parametrize(
    ("function", "one"),
    [
        (lambda x: torch.ops.aten.gelu_backward(x + 1, x), True),
        (_slope, True),
        (lambda x: _slope(x, -0.25), False),
        (lambda x: _slope(x) + torch.exp(x * x * -0.5), False),  # which the sum needs as well
        (lambda x: _slope(x) * torch.erf(x * math.sqrt(0.5)), False),
        (lambda x: _slope(x.double()), False),
    ],
)
def test_the_slope_of_gelu_takes_one_exponential(
    function: Callable[[torch.Tensor], torch.Tensor], one: bool
) -> None:
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 3e38, -3e38, 1e-40, 13.3])
    x = torch.cat([torch.linspace(-15, 15, 999), special])
    compiled = fusec.compile(function)
    actual = compiled(x)
    (kernel,) = compiled.kernels.values()
    assert ("= fx_gelu_slope(" in kernel.source or "* fx_gelu_slope(" in kernel.source) == one
    torch.testing.assert_close(actual, function(x), equal_nan=True, rtol=1e-6, atol=5e-6)


@pytest.mark.parametrize(
    ("function", "never_positive"),
    [
        (lambda x, y: torch.exp(-x.abs()), True),
        (lambda x, y: torch.exp(-(x * x)), True),
        (lambda x, y: torch.exp(x * x * -0.5), True),
        (lambda x, y: torch.exp(x.abs() * -0.0), True),
        (lambda x, y: torch.exp(x * x * 0.5), False),
        (lambda x, y: torch.exp(-(x * y)), False),
        (lambda x, y: torch.exp(x * -0.5), False),
        (lambda x, y: torch.exp(x.abs()), False),
    ],
)
def test_a_power_of_what_is_never_positive(
    function: Callable[..., torch.Tensor], never_positive: bool
) -> None:
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 3e38, 1e-40, 11.0, -9.0])
    x = torch.cat([torch.linspace(-15, 15, 999), special])
    y = x.flip(0)
    compiled = fusec.compile(function)
    actual = compiled(x, y)
    (kernel,) = compiled.kernels.values()
    assert ("fx_exp_nonpositive(" in kernel.source) == never_positive
    # Eager's own argument, which is rounded as ours is; its exponential is not held to an error.
    torch.testing.assert_close(actual, function(x, y), rtol=1e-6, atol=1e-44, equal_nan=True)


def test_a_size_that_only_a_place_names_is_a_parameter() -> None:
    bench = Bench("shifted")
    shift, i = bench.size("n", 3), bench.axis(4)
    bench.buffer("x", [4])
    bench.buffer("y", [10])
    with recording():
        bench.store("y", (i + shift,), bench.load("x", i), "add")
    check(bench, make_inputs(bench, 0))


SHARED: dict[str, Callable[[torch.Tensor], object]] = {
    "pointwise": lambda x: x * 2 + 1,
    "rows": lambda x: x.softmax(-1),
    "columns": lambda x: x.sum(0),
    "columns of several": lambda x: x.view(4, -1, x.shape[1]).softmax(1),
    "narrow rows": lambda x: x.view(-1, 8).softmax(-1),
    "a sum of all": lambda x: x.sum(),
    "a scan": lambda x: x.cumsum(-1),
    "a scan down": lambda x: x.cumsum(0),
    "a transpose": lambda x: x.t().contiguous() + 1,
    "updates": lambda x: torch.zeros(7, x.shape[1]).index_add(0, torch.arange(len(x)) % 7, x),
    "windows": lambda x: F.max_pool2d(x.view(4, 64, 64, -1), 3, 2),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SHARED)
def test_threads_share_what_is_large(name: str) -> None:
    for rows, shared in ((1024, True), (4, False)):
        if name == "windows" and not shared:
            continue
        torch._dynamo.reset()
        compiled = fusec.compile(SHARED[name])
        x = torch.randn(rows, 512)
        torch.testing.assert_close(compiled(x), SHARED[name](x), rtol=1e-3, atol=1e-3)
        text = "".join(kernel.source for kernel in compiled.kernels.values())
        assert ("omp parallel" in text) is shared


def test_a_loop_is_split_into_a_few_parts_at_most() -> None:
    bench = Bench("pieces")
    i = bench.axis(200)
    bench.buffer("y", [200])
    with recording():
        value = const(0.0, F32)
        for n in range(1, 13):
            inside = ops.binary("lt", index_value(i, torch.int64), const(15 * n, torch.int64))
            value = ops.where(inside, ops.binary("add", value, const(float(n), F32)), value)
        bench.store("y", (i,), value)
    parts = split_ranges(bench.body, bench.body.axes)
    assert len(parts) == choices.MAX_RANGES
    assert sum(part.axes[0].size.constant for part in parts) == 200


@pytest.mark.parametrize("masked", [False, True])
def test_a_read_under_a_condition_has_a_statement_of_its_own(masked: bool) -> None:
    """Within a longer expression it would become a vector's read, of what must not be read."""
    bench = Bench("read")
    i = bench.axis(40)
    for name, dtype in (("x", F32), ("y", F32), ("ok", torch.bool)):
        bench.buffer(name, [40], dtype)
    with recording():
        mask = bench.load("ok", i) if masked else None
        bench.store("y", (i,), ops.unary("exp", bench.load("x", i, mask=mask, other=0.5)))
    text = bench.source().text
    assert bool(re.search(r"const float \w+ = .*\? .*x\[", text)) is masked
    assert bool(re.search(r"exp\w*\(.*x\[", text)) is not masked


@pytest.mark.parametrize("target", ["cpp", "plain"])
def test_a_statement_that_goes_on_in_the_next_line(target: str) -> None:
    """The backslash is in the comment that names the user's line; C++ would take it for its own."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + \
            x.cos() * 2  # fmt: skip
        return y.exp().sum(-1)

    compiled = fusec.compile(function, target=target, keep_inputs=True)
    x = torch.randn(8, 40)
    torch.testing.assert_close(compiled(x), function(x))
    (graph,) = compiled.graphs
    assert not graph.fallback
    (kernel,) = compiled.kernels.values()
    assert "x.sin() + \\ ..." in kernel.source


def test_a_comment_that_is_cut_says_so() -> None:
    writer = Writer(depth=2)
    writer.line("x = 1;", SourceLine("cell", 3, "total = " + " + ".join(["number"] * 20)))
    comment, statement = writer.text.splitlines()
    assert comment.endswith(" ...")
    assert len(comment) <= WIDTH
    assert statement.strip() == "x = 1;"
