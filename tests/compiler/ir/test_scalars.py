"""The table of scalar operations: complete, and the same in every interpretation of it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from fusec.ir import ops
from fusec.ir.bounds import bounds
from fusec.ir.interpret import run_body
from fusec.ir.node import const, op, recording
from fusec.ir.scalars import (
    ALL,
    COMPARISONS,
    FLOATS,
    RANDOM_BITS,
    RANDOM_WORD,
    SCALARS,
    Scalar,
    cost_of,
    root_of,
    word_of,
)
from fusec.kernel_source import KernelSource
from fusec.targets.cpp.emit import emit_cpp
from fusec.targets.cpp.mathlib import available
from fusec.targets.plain.emit import emit_plain
from fusec.targets.plain.target import TARGET
from fusec.targets.triton.text.helpers import HELPERS
from fusec.targets.triton.toolchain import interpret
from fusec.targets.triton.toolchain.build import build_triton
from fusec.toolchain.build import build
from fusec.toolchain.loading import load
from support.operations import FORMS, operation_case, operations, special
from support.triton_bodies import Case
from support.triton_cases import emit

Tensors = Mapping[str, torch.Tensor]
DTYPES = sorted(ALL, key=str)
# Relative: our library's and torch's own errors together.
CLOSE = {torch.float32: 8e-7, torch.float64: 4e-15}
CROSSES_ZERO = {"digamma": 1e-14, "lgamma": 1e-14}
EITHER_ZERO = {"fmax", "fmin"}  # as in C
# Where eager's vector code yields NaN for a subnormal divisor, which its scalar code does not.
VECTOR_DEFECTS = {"fmod", "remainder"}


def by_interpreter(case: Case, tensors: Tensors) -> None:
    run_body(case.body, tensors)


def run_library(source: KernelSource, path: Path, case: Case, tensors: Tensors) -> None:
    order = [*case.body.reads(), *case.body.writes()]
    types = [ctypes.c_void_p] * len(order) + [ctypes.c_int64]
    kernel = load(path, source.entry, argtypes=types)
    assert kernel(*(tensors[n].data_ptr() for n in order), 1) == 0


def by_cpp(case: Case, tensors: Tensors) -> None:
    source = emit_cpp(case.name, case.body, case.buffers)
    run_library(source, build(source.text), case, tensors)


def by_plain(case: Case, tensors: Tensors) -> None:
    source = emit_plain(case.name, case.body, case.buffers)
    run_library(source, TARGET.compile(source.text), case, tensors)


def by_triton(case: Case, tensors: Tensors) -> None:
    source = emit(case)
    kernel = build_triton(source.text, source.signature)
    order = [*case.body.reads(), *case.body.writes()]
    kernel([tensors[n] for n in order], [])


RUNS = [by_interpreter, by_cpp, by_plain, by_triton]


def eager(scalar: Scalar, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if scalar.traps and not a.dtype.is_floating_point:
        b = torch.where(b == 0, torch.tensor(3, dtype=b.dtype), b)
    given = (a <= b, a, b) if scalar.arity == 3 else (a, b)[: scalar.arity]
    function = torch.where if scalar.arity == 3 else scalar.reference
    return function(*given).to(scalar.gives or a.dtype)


def differs(name: str, got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return where results are not those of torch."""
    if not got.is_floating_point():
        return got != wanted
    close = CLOSE[got.dtype]
    info = torch.finfo(got.dtype)
    atol = CROSSES_ZERO.get(name, 0) * close / CLOSE[torch.float64] + info.tiny * info.eps
    same = torch.isclose(got, wanted, rtol=close, atol=atol, equal_nan=True)
    if name not in EITHER_ZERO:
        same &= (torch.signbit(got) == torch.signbit(wanted)) | wanted.isnan()
    return ~same


@pytest.mark.sample(16)
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_operation_on_special_values(
    dtype: torch.dtype, run: Callable[[Case, Tensors], None]
) -> None:
    names = operations(dtype)
    assert names
    case = operation_case(dtype, names)
    tensors = case.inputs()
    run(case, tensors)
    a, b = tensors["a"], tensors["b"]
    for name in names:
        got, wanted = tensors[f"{name}_out"], eager(SCALARS[name], a, b)
        wrong = differs(name, got, wanted)
        if name in VECTOR_DEFECTS and dtype == torch.float32:
            wrong &= differs(name, got, eager(SCALARS[name], a.double(), b.double()).float())
        wrong = wrong.nonzero().flatten()[:4]
        shown = [(a[w].item(), b[w].item(), got[w].item(), wanted[w].item()) for w in wrong]
        assert not shown, f"{name} of {dtype}: (a, b, got, wanted) {shown}"


@pytest.mark.parametrize("name", SCALARS)
def test_entries(name: str) -> None:
    scalar = SCALARS[name]
    assert scalar.name == name
    assert name.isidentifier()
    assert scalar.takes
    assert callable(scalar.reference)
    assert scalar.cost == cost_of(name) >= 1
    assert not scalar.on_bool or torch.bool in SCALARS[scalar.on_bool].takes
    assert scalar.fold is None or scalar.arity == 2
    assert word_of(name).isidentifier()
    assert root_of(name) in SCALARS
    if name in FORMS:  # some target has it
        assert f"{name}.f32" in available() or name in HELPERS


@pytest.mark.parametrize(
    "name", [n for n, s in SCALARS.items() if s.domain != (-math.inf, math.inf)]
)
def test_domains(name: str) -> None:
    scalar = SCALARS[name]
    low, high = scalar.domain
    for value in special(torch.float64).tolist():
        result = scalar.reference(torch.tensor(value, dtype=torch.float64))
        inside = low <= value <= high
        assert inside or bool(result.isnan()), f"{name}({value}) is {result}"
        assert not inside or math.isinf(value) or not bool(result.isnan()), f"{name}({value})"


@pytest.mark.parametrize("name", [n for n, s in SCALARS.items() if s.keeps_zero])
def test_what_keeps_zero(name: str) -> None:
    for dtype in SCALARS[name].takes:
        assert SCALARS[name].reference(torch.zeros(2, dtype=dtype)).eq(0).all()


@pytest.mark.parametrize("name", [n for n, s in SCALARS.items() if s.commutes])
def test_what_commutes(name: str) -> None:
    for dtype in SCALARS[name].takes:
        x = special(dtype)
        a, b = x.repeat_interleave(len(x)), x.repeat(len(x))
        first, second = SCALARS[name].reference(a, b), SCALARS[name].reference(b, a)
        torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [n for n, s in SCALARS.items() if s.arity == 2])
def test_identities_and_folding(name: str, dtype: torch.dtype) -> None:
    """What is folded while a body is recorded is what torch computes, to the bit."""
    scalar = SCALARS[name]
    if dtype not in scalar.takes:
        return
    values = special(dtype)
    with recording():
        x = ops.load("x", (), dtype)
        for value in values.tolist():
            constant = const(value, dtype)
            for first, second in ((x, constant), (constant, x)):
                if ops.binary(name, first, second) is x:
                    given = torch.full_like(values, value)
                    args = (values, given) if first is x else (given, values)
                    assert same_bits(scalar.reference(*args), values), (name, value)
            for other in values.tolist() if scalar.fold else ():
                folded = ops.binary(name, constant, const(other, dtype))
                if hasattr(folded, "value"):
                    one, two = torch.tensor(value, dtype=dtype), torch.tensor(other, dtype=dtype)
                    made = torch.tensor(folded.value, dtype=folded.dtype)
                    assert same_bits(made, scalar.reference(one, two)), (name, value, other)


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    same = (x == y) | ((x != x) & (y != y))
    if x.is_floating_point():
        same &= (torch.signbit(x) == torch.signbit(y)) | x.isnan()
    return bool(same.all())


@pytest.mark.parametrize("name", [n for n, s in SCALARS.items() if s.interval])
def test_intervals(name: str) -> None:
    """What lies in the intervals of the arguments yields what lies in that of the result."""
    scalar = SCALARS[name]
    dtype = torch.float64 if torch.float64 in scalar.takes else torch.int64
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        with recording():
            args, given = [], []
            for _ in range(scalar.arity):
                low, high = sorted(torch.randint(-9, 9, (2,), generator=generator).tolist())
                if scalar.arity == 2 and args and scalar.traps:
                    low = high = max(high, 1)
                x = ops.load(f"x{len(args)}", (), dtype)
                bounded = op(
                    "minimum",
                    (op("maximum", (x, const(low, dtype)), dtype), const(high, dtype)),
                    dtype,
                )
                whole = ops.cast(ops.cast(bounded, torch.int8), dtype)
                args.append(
                    ops.where(
                        op("lt", (whole, const(low, dtype)), torch.bool),
                        const(low, dtype),
                        ops.where(
                            op("gt", (whole, const(high, dtype)), torch.bool),
                            const(high, dtype),
                            whole,
                        ),
                    )
                )
                given.append(torch.arange(low, high + 1).to(dtype))
            found = bounds(op(name, tuple(args), dtype))
        if found is None:
            continue
        grids = torch.meshgrid(*given, indexing="ij")
        results = scalar.reference(*grids).double()
        results = results[results.isfinite()]
        assert not results.numel() or found[0] <= results.min() <= results.max() <= found[1]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("dtype", sorted(FLOATS, key=str), ids=str)
def test_an_entry_is_all_of_a_function_that_c_has(
    dtype: torch.dtype, run: Callable[[Case, Tensors], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No target has a text of its own for a cube root."""

    def cube_root(x: torch.Tensor) -> torch.Tensor:
        return torch.copysign(x.abs().double().pow(1 / 3), x).to(x.dtype)

    scalar = Scalar("cbrt", 1, FLOATS, cube_root, c_name="cbrt", keeps_zero=True)
    monkeypatch.setitem(SCALARS, "cbrt", scalar)
    monkeypatch.setitem(interpret._LIBDEVICE, "cbrt", cube_root)  # made of the table already
    case = operation_case(dtype, ["cbrt"])
    tensors = case.inputs()
    run(case, tensors)
    assert not differs("cbrt", tensors["cbrt_out"], cube_root(tensors["a"])).any()


def test_comparisons() -> None:
    assert {"eq", "ne", "lt", "le", "gt", "ge"} == COMPARISONS
    assert all(SCALARS[n].takes == ALL for n in COMPARISONS)
    assert {RANDOM_BITS, RANDOM_WORD} < SCALARS.keys()
    assert all(s.takes & FLOATS for s in SCALARS.values() if s.c_name)
