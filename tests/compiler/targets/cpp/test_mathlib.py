"""The maths of C++ kernels: exact where it must be, within its stated error elsewhere.

Each helper states its largest error in its file (`//@ accuracy: 1.5 ulp`); the tests hold it to
that. float32 is compared with torch in float64, float64 with extended precision (numpy's
longdouble, or mpmath). `tests/bench/mathlib_accuracy.py` goes through every float32.
"""

from __future__ import annotations

import ctypes
import math
import platform
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import fusec
from fusec.ir.scalars import COMPARISONS
from fusec.machine import this_machine
from fusec.targets.cpp import mathlib
from fusec.targets.cpp.mathlib import (
    Helper,
    available,
    expand,
    helper_sources,
    without_fma,
)
from fusec.toolchain.compiler import Compiler, find_compiler
from fusec.toolchain.loading import load
from support.operations import operations

FUSED = this_machine().isa != "sse2"
Array = np.ndarray[Any, Any]
LONG = np.longdouble
# The head of a function, up to its body; one may have several lines.
HEAD = re.compile(r"^(?:template <[^\n]*>\n)?FX_INLINE [^{;]*?(?=\n?\s*\{)", re.MULTILINE)
C_TYPES = {
    "f32": "float",
    "f64": "double",
    "i8": "int8_t",
    "i16": "int16_t",
    "i32": "int32_t",
    "i64": "int64_t",
    "u8": "uint8_t",
    "u16": "uint16_t",
    "u32": "uint32_t",
    "u64": "uint64_t",
    "bool": "bool",
    "bf16": "fx_bf16",
    "f16": "fx_f16",
}
DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "bool": torch.bool,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
}
INTEGERS = ("i8", "i16", "i32", "i64", "u8")
REAL = ("f32", "f64")


def loops() -> dict[str, tuple[str, list[str], str]]:
    """Every public function on every type: name -> (helper, argument types, result type)."""
    found = {}
    for helper in mathlib.library().values():
        if not helper.public:
            continue
        stem, kind = helper.name.split(".")
        head = HEAD.search(helper.text)
        assert head is not None, helper.name
        result = re.search(r"FX_INLINE (\w+)", head[0])
        assert result is not None
        if result[1] == "void":
            continue  # of arrays; tests/compiler/graph/test_halves.py has these
        # Whether an argument is near is no value: these are called as what says that it is.
        count = head[0].replace(", Moderate moderate", "").count(",") + 1
        for each in INTEGERS if kind == "int" else (kind,):
            types = {C: short for short, C in C_TYPES.items()}
            found[f"{stem}_{each}"] = (helper.name, [each] * count, types.get(result[1], each))
    return found


LOOPS = loops()


def loop_text(name: str) -> str:
    helper, arguments, result = LOOPS[name]
    stem = helper.partition(".")[0]
    parameters = "".join(
        f"const {C_TYPES[kind]}* __restrict__ x{i}, " for i, kind in enumerate(arguments)
    )
    values = ", ".join(f"x{i}[i]" for i in range(len(arguments)))
    values += ", fx_flag<true>()" if stem.startswith("moderate_") else ""
    return (
        f'extern "C" int {name}({parameters}{C_TYPES[result]}* __restrict__ out, int64_t n)\n'
        "{\n#pragma omp simd\n"
        f"    for (int64_t i = 0; i < n; i++) out[i] = fx_{stem}({values});\n"
        "    return 0;\n}\n"
    )


def file_text(names: list[str]) -> str:
    helpers = helper_sources({LOOPS[name][0] for name in names}, fused=FUSED)
    body = "".join(loop_text(name) for name in names)
    return "#include <stdint.h>\n" + helpers + body


@dataclass
class Built:
    """All loops as functions, and the names of those that the compiler says are vector code."""

    functions: dict[str, Any]
    vector: set[str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build all loops, in a few files side by side, and load them."""
    folder = tmp_path_factory.mktemp("mathlib")
    compiler = find_compiler()
    found = Built({}, set())

    def compile_part(part: int) -> None:
        names = list(LOOPS)[part::4]
        text = file_text(names)
        source, library = f"part{part}.cpp", f"part{part}.so"
        (folder / source).write_text(text)
        extra = ["-fopt-info-vec"] if has_messages(compiler) else []
        done = subprocess.run(
            compiler.command(source, library, *extra, plain=True),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        message = rf"{re.escape(source)}:(\d+):\d+: optimized: loop vectorized"
        lines = {int(line) for line in re.findall(message, done.stderr)}
        heads = [line.partition("(")[0].rpartition(" ")[2] for line in text.splitlines()]
        for name in names:
            found.functions[name] = load(folder / library, name)
            # The loop is the fourth line of its function.
            if heads.index(name) + 4 in lines:
                found.vector.add(name)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_part, range(4)))
    return found


@pytest.fixture(scope="module")
def run(built: Built) -> Callable[..., torch.Tensor]:
    def call(name: str, *arguments: torch.Tensor) -> torch.Tensor:
        out = torch.empty(arguments[0].shape, dtype=DTYPES[LOOPS[name][2]])
        given = [argument.contiguous() for argument in arguments]
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*given, out)]
        assert built.functions[name](*pointers, ctypes.c_int64(out.numel())) == 0
        return out

    return call


# --- the texts -------------------------------------------------------------------------------


def test_order_depends_on_the_set_only() -> None:
    assert helper_sources(["tanh.f32", "exp.f32"]) == helper_sources(
        iter(["exp.f32", "tanh.f32", "exp.f32"])
    )
    assert helper_sources([]) == ""


def test_what_is_needed_comes_along() -> None:
    text = helper_sources(["sigmoid.f32"])
    assert text.startswith("#define FX_INLINE")
    assert text.index("fx_exp_poly(float r)\n{") < text.index("fx_sigmoid(float x)\n{")
    assert "double" not in text


def test_a_name_without_a_type_is_every_overload() -> None:
    assert [helper.name for helper in expand("exp")] == ["exp.f32", "exp.f64"]
    assert helper_sources(["exp"]) == helper_sources(["exp.f32", "exp.f64"])


def test_types_precede_what_they_are_used_in() -> None:
    text = helper_sources(["to_bf16.f32"])
    assert text.index("struct fx_bf16") < text.index("fx_to_bf16(")


@pytest.mark.parametrize("name", ["_bits.f32", "exp.f16", "nothing", ""])
def test_unknown_names(name: str) -> None:
    assert name not in available()
    if not name.startswith("_"):
        with pytest.raises(KeyError):
            helper_sources([name])


def test_every_need_exists_and_every_operation_is_there() -> None:
    for helper in mathlib.library().values():
        for need in helper.needs:
            assert need in mathlib.library(), (helper.name, need)
    by_hand = {"truediv", "add", "sub", "mul", "neg", "where"} | COMPARISONS
    for name in operations(torch.float32):
        if name not in by_hand:
            assert {f"{name}.f32", f"{name}.f64"} <= available(), name


@pytest.mark.parametrize("name", sorted(n for n in available() if "." in n))
def test_each_helper_stands_alone(name: str) -> None:
    """Every function that a helper's text calls is there before it: nothing is declared ahead."""
    text = helper_sources([name])
    assert not re.search(r"^FX_INLINE [^{]*\);", text, re.MULTILINE)
    begins: dict[str, int] = {}
    for head in HEAD.finditer(text):
        name = head[0].partition("(")[0].rpartition(" ")[2]
        begins.setdefault(name, head.start())
    code = re.sub(r"//.*", lambda comment: " " * len(comment[0]), text)
    for call in re.finditer(r"\b(fx_\w+)\(", code):
        assert begins[call[1]] <= call.start(), call[1]


# --- vector code -----------------------------------------------------------------------------


def vector_exceptions() -> set[str]:
    """Functions that this machine has no vector instructions for."""
    if platform.machine() == "aarch64":
        return {"to_f16_f32", "to_f16_f64", "to_i64_f32"}
    if this_machine().isa == "avx512":
        return set()
    return {"to_i64_f32", "to_i64_f64", "to_u8_f64"}


def claims(name: str, helper: Helper) -> bool:
    # Division of 64-bit integers exists nowhere as a vector instruction.
    divides = {"truncdiv", "floordiv", "fmod", "remainder"}
    return helper.vectorizes and not (
        name.endswith("_i64") and helper.name.partition(".")[0] in divides
    )


def has_messages(compiler: Compiler) -> bool:
    """Whether a compiler can say, in g++'s words, which loops it made vector code of."""
    return compiler.family == "gcc"


def test_what_claims_to_vectorize_does(built: Built) -> None:
    if not has_messages(find_compiler()):
        pytest.skip("reads the messages of g++")
    if this_machine().isa == "sse2":
        pytest.skip("SSE2 neither rounds, nor compares or shifts 64-bit integers, in vectors")
    claimed = {name for name, (helper, _, _) in LOOPS.items() if claims(name, expand(helper)[0])}
    claimed.remove("abs_u8")  # a plain copy
    assert claimed - vector_exceptions() <= built.vector
    assert "digamma_f32" not in built.vector  # a check of the check


# --- accuracy --------------------------------------------------------------------------------

UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sigmoid tanh sinh cosh asinh acosh atanh erf erfc erfinv "
    "sin cos tan asin acos atan rsqrt sqrt"
).split()


def declared_ulp(name: str, *, fused: bool = FUSED) -> float:
    helper = expand(name)[0]
    accuracy = (helper if fused else without_fma(helper)).accuracy
    if accuracy == "exact rounding":
        return 0.5
    found = re.fullmatch(r"([\d.]+) ulp", accuracy)
    assert found is not None, (name, accuracy)
    return float(found[1])


def ulp_error(got: Array, exact: Array, digits: int, least: int) -> Array:
    """Return the error in units of the last place; infinity for what is wrong in kind."""
    dtype = got.dtype
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype)
        size = np.abs(exact)
        ordinary = np.isfinite(size) & (size > 0)
        exponent = np.frexp(np.where(ordinary, size, 1))[1] - 1
        unit = np.ldexp(np.ones_like(exact), np.maximum(exponent, least) - (digits - 1))
        error = np.abs(got.astype(exact.dtype) - exact) / unit
        error = np.where(np.isinf(got) | np.isinf(rounded), np.inf, error)
        # Overflow may come one unit early or late.
        largest = np.finfo(dtype).max
        edge = (size > largest * (1 - 4 * np.finfo(dtype).eps)) & (np.abs(got) >= largest)
        edge &= size < largest * (1 + 4 * np.finfo(dtype).eps)
        error = np.where(edge, 1.0, error)
        error = np.where(got == rounded, np.minimum(error, 0.5), error)
        error = np.where(np.isnan(got) & np.isnan(exact), 0.0, error)
        error = np.where(np.isnan(got) != np.isnan(exact), np.inf, error)
        zero = (got == 0) & (exact == 0)
        return np.where(zero & (np.signbit(got) != np.signbit(exact)), np.inf, error)


def assert_within(limit: float, error: Array, *columns: Array) -> None:
    worst = int(np.argmax(error))
    shown = ", ".join(repr(column[worst]) for column in columns)
    assert error[worst] <= limit, f"{error[worst]} ulp at {shown}"


def sigmoid_exact(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(-x.abs())
    return torch.where(x < 0, e, torch.ones_like(e)) / (1 + e)


@pytest.fixture(scope="module")
def float_samples() -> torch.Tensor:
    """Every sign and exponent with random mantissas, and every float that is special somehow."""
    rng = np.random.default_rng(0)
    heads = np.arange(512, dtype=np.uint32)[:, None] << np.uint32(23)
    mantissas = rng.integers(0, 1 << 23, size=(512, 2048), dtype=np.uint32)
    mantissas[:, :4] = (0, 1, 0x7FFFFF, 0x400000)
    samples = [(heads | mantissas).reshape(-1).view(np.float32)]
    # More of where functions change fastest.
    samples.append(rng.normal(size=500_000).astype(np.float32) * 4)
    samples.append(rng.uniform(-110, 110, size=300_000).astype(np.float32))
    samples.append(
        (1 + rng.normal(size=100_000) * 2.0 ** rng.integers(-24, 0, 100_000)).astype("f4")
    )
    return torch.from_numpy(np.concatenate(samples))


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_moderate_float(
    name: str, run: Callable[..., torch.Tensor], float_samples: torch.Tensor
) -> None:
    """What is far is said to be, and what is not has the quick form's result."""
    far = run("is_far_f32", float_samples)
    assert torch.equal(far, ~(float_samples.abs() < 2**15))
    x = torch.cat([float_samples[~far], torch.linspace(-32767, 32767, 1_000_003)])
    got, want = run(f"moderate_{name}_f32", x).numpy(), getattr(torch, name)(x.double()).numpy()
    assert_within(declared_ulp(f"moderate_{name}.f32"), ulp_error(got, want, 24, -126), x.numpy())


@pytest.mark.parametrize("name", UNARY)
def test_float(name: str, run: Callable[..., torch.Tensor], float_samples: torch.Tensor) -> None:
    x = float_samples
    exact = {"sigmoid": sigmoid_exact, "erfinv": torch.special.erfinv}.get(name) or getattr(
        torch, name
    )
    got, want = run(f"{name}_f32", x).numpy(), exact(x.double()).numpy()
    assert_within(declared_ulp(f"{name}.f32"), ulp_error(got, want, 24, -126), x.numpy(), got, want)


def test_one_plus_erf(run: Callable[..., torch.Tensor], float_samples: torch.Tensor) -> None:
    got = run("one_plus_erf_f32", float_samples).double()
    exact = torch.special.erfc(-float_samples.double())
    assert torch.equal(got.isnan(), exact.isnan())  # whatever a NaN carries
    assert (got - exact)[~exact.isnan()].abs().max() <= 2.0**-23 * 2


def test_gelu_slope(run: Callable[..., torch.Tensor], float_samples: torch.Tensor) -> None:
    """Its error is that of a number of about 1; far below zero digits are kept as well."""
    x = torch.cat([float_samples, torch.linspace(-14, 14, 100_001)])
    got, wide = run("gelu_slope_f32", x).double(), x.double()
    exact = torch.special.erfc(-wide * 0.5**0.5) / 2
    exact += wide * torch.exp(-wide * wide / 2) / (2 * torch.pi) ** 0.5
    assert torch.equal(got.isnan(), exact.isnan())  # of infinities, as in eager
    off, there = (got - exact).abs(), ~exact.isnan()
    assert off[there].max() <= 2.0**-22
    far = (x < -1) & (x > -9)
    assert (off / exact.abs())[far].max() < 1e-4


@pytest.mark.parametrize(
    ("name", "kind"),
    [("exp", "half"), ("sigmoid", "half"), ("one_plus_erf", "half"), ("one_plus_erf", "bfloat16")],
)
def test_forms_for_half_precision(
    name: str, kind: str, run: Callable[..., torch.Tensor], float_samples: torch.Tensor
) -> None:
    """Their errors are relative, in powers of two; small results have an absolute one."""
    stated = expand(f"{name}_for_{kind}.f32")[0].accuracy
    relative = 2.0 ** float(re.match(r"2\^(-\d+)", stated)[1])  # type: ignore[index]
    small = re.search(r"2\^(-\d+) absolutely", stated)
    absolute = 2.0 ** float(small[1]) if small else 2.0**-125  # beside a subnormal result
    functions = {"exp": torch.exp, "sigmoid": sigmoid_exact}
    x = float_samples.double()
    exact = torch.special.erfc(-x) if name == "one_plus_erf" else functions[name](x)
    got = run(f"{name}_for_{kind}_f32", float_samples).double()
    assert torch.equal(got.isnan(), exact.isnan())
    large = exact > torch.finfo(torch.float32).max
    assert (got[large] == torch.inf).all()
    there = ~(exact.isnan() | large)
    off = (got - exact)[there].abs()
    assert (off <= torch.maximum(exact[there].abs() * relative, torch.tensor(absolute))).all()
    # and it is not much better than it says
    assert (off > exact[there].abs() * relative / 4).any()
    ends = torch.tensor([-torch.inf, -1e30])
    assert (run(f"{name}_for_{kind}_f32", ends) == 0).all()


@pytest.mark.parametrize(
    ("kind", "ends"), [("f32", (-87.3, -103.98, -110.0)), ("f64", (-708.4, -745.2, -800.0))]
)
def test_powers_of_what_is_never_above_0(
    kind: str, ends: tuple[float, ...], run: Callable[..., torch.Tensor]
) -> None:
    """The same bits as of ``exp``: down to 0, by way of subnormal numbers."""
    lowest, x = ends[-1], torch.tensor([0.0, -0.0, -torch.inf, torch.nan, -1e-30, *ends])
    x = torch.cat([x, torch.linspace(lowest, 0, 20_001)]).to(DTYPES[kind])
    got, exp = run(f"exp_nonpositive_{kind}", x), run(f"exp_{kind}", x)
    assert torch.equal(got.isnan(), x.isnan())
    assert torch.equal(got[~x.isnan()], exp[~x.isnan()])
    smallest = torch.finfo(DTYPES[kind]).smallest_normal
    assert ((got > 0) & (got < smallest)).any()


@pytest.fixture(scope="module")
def double_samples() -> Array:
    rng = np.random.default_rng(1)
    count = 20_000
    scales = rng.choice([0.01, 0.3, 1.0, 5.0, 30.0, 300.0], size=count)
    # fmt: off
    special = [
        0.0, 1.0, 0.5, 0.6, 2.0, 10.0, 100.0, np.inf, 5e-324, 2.0**-1022, 1.7976931348623157e308,
        709.782712893384, 709.7827128933841, 710.4758600739439, 710.475860073944, 708.4,
        745.1332191019411, 745.1332191019412, 36.0, 26.5, 27.2, 27.3, 1023.9999999999999, 1024.0,
        1074.0, 1075.0, 1e22, 3.141592653589793, 1.5707963267948966, 0.7071067811865476,
        1.4142135623730951,
    ]
    # fmt: on
    parts = [
        rng.integers(0, 2**64, size=count, dtype=np.uint64).view(np.float64),
        rng.normal(size=2 * count) * np.repeat(scales, 2),
        rng.uniform(-1, 1, size=count),
        1 + rng.normal(size=count) * 2.0 ** rng.integers(-52, 0, size=count),
        np.exp2(rng.uniform(-1074, 1024, size=count)),
        np.array(special),
        -np.array(special),
        np.array([np.nan]),
    ]
    return np.concatenate(parts)


NUMPY_NAMES = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}


def extended(name: str, x: Array) -> Array:
    """Return a function of doubles with a longer mantissa than theirs."""
    with np.errstate(all="ignore"):
        if name == "sigmoid":
            e = np.exp(-np.abs(x.astype(LONG)))
            return np.where(x < 0, e, 1) / (1 + e)
        if name == "rsqrt":
            return 1 / np.sqrt(x.astype(LONG))
        return np.asarray(getattr(np, NUMPY_NAMES.get(name, name))(x.astype(LONG)))


def with_mpmath(name: str, x: Array) -> Array:
    """Return erf and the like as sums of two doubles; numpy has none of them."""
    out = np.empty(x.shape, dtype=LONG)
    with mpmath.workdps(40):
        for i, value in enumerate(x):
            exact = getattr(mpmath, name)(mpmath.mpf(float(value)))
            high = float(exact)
            out[i] = LONG(high) + LONG(float(exact - mpmath.mpf(high)))
    return out


@pytest.mark.parametrize("name", [name for name in UNARY if name[:3] != "erf"])
def test_double(name: str, run: Callable[..., torch.Tensor], double_samples: Array) -> None:
    if np.finfo(LONG).nmant < 60:
        pytest.skip("longdouble is no longer than double here")
    x = double_samples
    got = run(f"{name}_f64", torch.from_numpy(x)).numpy()
    want = extended(name, x)
    if expand(f"{name}.f64")[0].vectorizes:
        limit = declared_ulp(f"{name}.f64")
    else:
        limit = 1.0  # the C library's
        got, want, x = (part[np.abs(x) < 1e15] for part in (got, want, x))
    assert_within(limit, ulp_error(got, want, 53, -1022), x, got, want)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("erf", -6.5, 6.5), ("erfc", -6.5, 27.3), ("erfinv", -1.0, 1.0)],
)
def test_double_error_functions(
    name: str, low: float, high: float, run: Callable[..., torch.Tensor]
) -> None:
    rng = np.random.default_rng(2)
    x = rng.uniform(low, high, size=1500)
    x = np.concatenate([x, rng.normal(size=300) * 2.0 ** rng.integers(-60, -2, size=300)])
    if name == "erfinv":
        x = np.concatenate([rng.uniform(-1, 1, 300), 1 - 2.0 ** -rng.uniform(1, 53, size=100)])
    got = run(f"{name}_f64", torch.from_numpy(x)).numpy()
    want = with_mpmath(name, x)
    assert_within(declared_ulp(f"{name}.f64"), ulp_error(got, want, 53, -1022), x, got, want)
    special = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 1e-310]
    )
    special = special.double()
    got_special = run(f"{name}_f64", special)
    assert_same(got_special, getattr(torch.special, name)(special), rtol=1e-15)


# --- against eager ---------------------------------------------------------------------------


def assert_same(got: torch.Tensor, want: torch.Tensor, rtol: float = 0.0) -> None:
    """Equal, NaN and the sign of zero included."""
    torch.testing.assert_close(got, want, rtol=rtol, atol=0, equal_nan=True)
    if got.is_floating_point():
        number = ~want.isnan()
        assert torch.equal(got.signbit()[number], want.signbit()[number])


# fmt: off
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.0, -2.0, 2.5, 3.0, -3.0, 7.0, -7.0, 1e-40, -1e-40,
    0.99999994, 1.0000001, 1e20, -1e20, 1e38, -1e38, 16777215.0, 16777216.0, 16777217.0,
    -16777215.0, 8388607.5, float("inf"), -float("inf"), float("nan"), 5e-324, -5e-324, 1e300,
    -1e300, 9007199254740991.0, -9007199254740993.0, 4503599627370495.5,
]
# fmt: on


def pairs(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = DTYPES[kind]
    rng = np.random.default_rng(3)
    special = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    x, y = torch.meshgrid(special, special, indexing="ij")
    normal = torch.from_numpy(rng.normal(size=(2, 50_000)) * 10).to(dtype)
    whole = torch.from_numpy(rng.integers(-30, 30, size=50_000)).to(dtype)
    bits = rng.integers(0, 2**64, size=(2, 50_000), dtype=np.uint64)
    anything = torch.from_numpy(
        bits.view(np.float64) if kind == "f64" else bits.astype(np.uint32).view(np.float32)
    )
    xs = (x.flatten(), normal[0], normal[1].exp(), normal[0], anything[0])
    ys = (y.flatten(), normal[1], normal[0], whole, anything[1])
    return torch.cat(xs), torch.cat(ys)


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize(("name", "limit"), [("pow", 1.0), ("atan2", 2.0), ("hypot", 1.5)])
def test_functions_of_two(
    name: str, limit: float, kind: str, run: Callable[..., torch.Tensor]
) -> None:
    if kind == "f64" and np.finfo(LONG).nmant < 60:
        pytest.skip("longdouble is no longer than double here")
    x, y = pairs(kind)
    longer = np.float64 if kind == "f32" else LONG
    with np.errstate(all="ignore"):
        function = {"pow": np.power, "atan2": np.arctan2, "hypot": np.hypot}[name]
        want = np.asarray(function(x.numpy().astype(longer), y.numpy().astype(longer)))
    got = run(f"{name}_{kind}", x, y).numpy()
    digits, least = (24, -126) if kind == "f32" else (53, -1022)
    assert limit >= declared_ulp(f"{name}.{kind}")
    assert_within(limit, ulp_error(got, want, digits, least), x.numpy(), y.numpy(), got, want)


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize(
    "name", ["fmod", "nextafter", "copysign", "maximum", "minimum", "fmax", "fmin", "floordiv"]
)
def test_exact_functions_of_two(name: str, kind: str, run: Callable[..., torch.Tensor]) -> None:
    x, y = pairs(kind)
    got = run(f"{name}_{kind}", x, y)
    if name in ("fmod", "fmax", "fmin"):
        # eager gives NaN for large quotients, and for a signaling NaN beside a number
        with np.errstate(all="ignore"):
            want = torch.from_numpy(getattr(np, name)(x.numpy(), y.numpy()))
    else:
        want = {"floordiv": torch.floor_divide}.get(name, getattr(torch, name, None))(x, y)
    if name in ("maximum", "minimum", "fmax", "fmin"):  # which zero is not promised
        got, want = got + 0.0, want + 0.0
    assert_same(got, want)


@pytest.mark.parametrize("kind", REAL)
def test_remainder(kind: str, run: Callable[..., torch.Tensor]) -> None:
    x, y = pairs(kind)
    got = run(f"remainder_{kind}", x, y).numpy()
    with np.errstate(all="ignore"):
        want = np.fmod(x.numpy(), y.numpy())
        want = np.where((want != 0) & ((y.numpy() < 0) != (want < 0)), want + y.numpy(), want)
    np.testing.assert_array_equal(got, want)
    eager = torch.remainder(x, y)
    near = (x / y).abs() < 1e6
    assert_same(torch.from_numpy(got)[near], eager[near])


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("name", "abs floor ceil trunc round sign isnan isinf signbit".split())
def test_exact_functions(name: str, kind: str, run: Callable[..., torch.Tensor]) -> None:
    x = pairs(kind)[0]
    x = torch.cat([x, torch.arange(-100, 100, dtype=x.dtype) / 2])
    got, want = run(f"{name}_{kind}", x), getattr(torch, name)(x)
    if name == "sign":
        got, want = got + 0.0, want + 0.0
    assert_same(got, want)


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_special_functions(name: str, kind: str, run: Callable[..., torch.Tensor]) -> None:
    x = torch.cat([torch.linspace(-20.3, 40, 5000), torch.tensor(SPECIAL[:14]), torch.rand(100)])
    x = x.to(DTYPES[kind])
    want = getattr(torch, name)(x.double())
    got = run(f"{name}_{kind}", x).double()
    torch.testing.assert_close(
        got, want, rtol=2e-6 if kind == "f32" else 1e-12, atol=1e-5 if kind == "f32" else 1e-12,
        equal_nan=True,
    )  # fmt: skip


# --- halves ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_every_half_to_float(kind: str, run: Callable[..., torch.Tensor]) -> None:
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(DTYPES[kind])
    assert_same(run(f"to_float_{kind}", x), x.float())


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("source", REAL)
def test_float_to_half(
    kind: str, source: str, run: Callable[..., torch.Tensor], float_samples: torch.Tensor
) -> None:
    half = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(DTYPES[kind]).float()
    ties = (half[:-1].double() + half[1:].double()).div(2).float()  # halfway between neighbors
    near = torch.cat([ties, ties.nextafter(half[1:]), ties.nextafter(half[:-1])])
    x = torch.cat([float_samples, half, near]).to(DTYPES[source])
    assert_same(run(f"to_{kind}_{source}", x).float(), x.to(DTYPES[kind]).float())


# --- integers --------------------------------------------------------------------------------


def integers(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = DTYPES[kind]
    info = torch.iinfo(dtype)
    edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7]
    edges += [-1, -2, -3] if info.min < 0 else []
    special = torch.tensor(edges, dtype=dtype)
    x, y = torch.meshgrid(special, special, indexing="ij")
    generator = torch.Generator().manual_seed(4)
    half = max(info.min, -(2**62)), min(info.max, 2**62)
    wide = torch.randint(*half, (2, 20_000), generator=generator, dtype=torch.int64).to(dtype)
    small = torch.randint(1, 30, (20_000,), generator=generator).to(dtype)
    return torch.cat([x.flatten(), wide[0], wide[0]]), torch.cat([y.flatten(), wide[1], small])


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("name", "floordiv truncdiv remainder fmod maximum minimum".split())
def test_integer_arithmetic(name: str, kind: str, run: Callable[..., torch.Tensor]) -> None:
    x, y = integers(kind)
    got = run(f"{name}_{kind}", x, y)
    if name in ("maximum", "minimum"):
        assert_same(got, getattr(torch, name)(x, y))
        return
    info = torch.iinfo(x.dtype)
    traps = (x == info.min) & (y == -1) if info.min < 0 else torch.zeros_like(x, dtype=torch.bool)
    if name in ("floordiv", "truncdiv"):
        assert (got[traps] == info.min).all()
    else:
        assert (got[traps] == 0).all()
    assert (got[y == 0] == 0).all()
    defined = (y != 0) & ~traps
    mode = {"floordiv": "floor", "truncdiv": "trunc"}.get(name)
    x, y = x[defined], y[defined]
    want = torch.div(x, y, rounding_mode=mode) if mode else getattr(torch, name)(x, y)
    assert_same(got[defined], want)


@pytest.mark.parametrize("kind", INTEGERS)
def test_shifts_and_powers(kind: str, run: Callable[..., torch.Tensor]) -> None:
    x, _ = integers(kind)
    dtype = DTYPES[kind]
    counts = torch.arange(x.numel()) % 80 - (0 if kind == "u8" else 5)
    counts = counts.to(dtype)
    assert_same(run(f"lshift_{kind}", x, counts), x << counts)
    assert_same(run(f"rshift_{kind}", x, counts), x >> counts)
    exponents = (torch.arange(x.numel()) % 25 - (0 if kind == "u8" else 4)).to(dtype)
    base = x % 11 - (0 if kind == "u8" else 5)
    assert_same(run(f"pow_{kind}", base, exponents), torch.pow(base, exponents))


@pytest.mark.parametrize("kind", INTEGERS)
def test_integer_functions(kind: str, run: Callable[..., torch.Tensor]) -> None:
    x, _ = integers(kind)
    assert_same(run(f"abs_{kind}", x), x.abs())
    assert_same(run(f"sign_{kind}", x), x.sign())
    assert torch.equal(run(f"divides_{kind}", x), x != 0)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="x86 converts so")
@pytest.mark.parametrize("source", REAL)
@pytest.mark.parametrize("kind", [*INTEGERS, "bool"])
def test_casts_to_integers(
    kind: str, source: str, run: Callable[..., torch.Tensor], float_samples: torch.Tensor
) -> None:
    edges = [2.0**n + d for n in (7, 8, 15, 16, 31, 32, 53, 62, 63) for d in (-1, -0.5, 0, 0.5, 1)]
    x = torch.tensor([s * v for v in edges for s in (1, -1)], dtype=torch.float64)
    x = torch.cat([x, torch.randn(10_000, dtype=torch.float64) * 1e10]).to(DTYPES[source])
    x = torch.cat([x, float_samples[::10].to(DTYPES[source])])
    assert_same(run(f"to_{kind}_{source}", x), x.to(DTYPES[kind]))


def test_nothing_is_read_or_written_beyond_the_end(run: Callable[..., torch.Tensor]) -> None:
    for count in range(40):
        x = torch.randn(count)
        assert run("exp_f32", x).shape == (count,)


# --- processors that do not multiply and add at once ---------------------------------------------

FUNCTIONS = (
    torch.exp, torch.log, torch.log1p, torch.expm1, torch.sigmoid, torch.tanh, torch.sinh,
    torch.erf, torch.sin, torch.cos, torch.atan, torch.asin,
)  # fmt: skip


def test_without_fma_nothing_is_called_for_it() -> None:
    text = helper_sources(["tanh.f32", "exp.f32"], fused=False)
    assert "__builtin_fmaf(" not in text
    assert "fx_fma(" in text
    assert "p = p * z + 0x" in text  # a step of a polynomial
    assert "p_odd = p_odd * p_2 + 0x" in text  # ... and of one in two chains
    assert helper_sources(["abs.f32"], fused=False) == helper_sources(["abs.f32"])
    assert "__builtin_fmaf(" in helper_sources(["exp.f32"])


def test_without_fma_float32_is_as_good_as_it_says() -> None:
    """As for processors that have it; not a bit of NaN and infinities is another."""
    if not this_machine().streams:
        pytest.skip("x86 only")
    compiled = fusec.compile(
        lambda x: tuple(function(x) for function in FUNCTIONS),
        dynamic=False,
        machine=this_machine().with_isa("sse2"),
    )
    torch.manual_seed(0)
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, 88.8])
    x = torch.cat([torch.randn(5000) * 3, torch.randn(5000) * 60, torch.rand(5000) * 2 - 1])
    x = torch.cat([x, x * 1e-6, special])
    results = compiled(x)
    assert any("fx_fma" in kernel.source for kernel in compiled.kernels.values())
    for function, found in zip(FUNCTIONS, results, strict=True):
        exact = function(x.double())
        wanted = exact.float()
        assert torch.equal(found.isnan(), wanted.isnan()), function
        assert torch.equal(found[wanted.isinf()], wanted[wanted.isinf()]), function
        zeros = wanted == 0
        assert torch.equal(found[zeros].signbit(), wanted[zeros].signbit()), function
        finite = wanted.isfinite()
        step = torch.nextafter(wanted.abs(), torch.tensor(math.inf)) - wanted.abs()
        error = (found.double() - exact).abs() / step.double()
        limit = declared_ulp(f"{function.__name__}.f32", fused=False)
        assert float(error[finite].max()) <= limit, function
