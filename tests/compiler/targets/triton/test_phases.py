"""Results between the elements of a tensor, cut into phases: places, shares, stores in turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.ir import ops
from fusec.ir.along import KnownValues, line_of
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Const, IndexValue, Load, cast, const, index_value, recording
from fusec.targets.triton.plan import phases
from fusec.targets.triton.plan.phases import cut_into_phases
from fusec.targets.triton.toolchain.cross_compile import artifacts
from support.triton_cases import emit
from support.triton_windows import blended

Function = Callable[..., object]
CASES: dict[str, Function] = {
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "aligned": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
    "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "four times": lambda x: F.interpolate(x, scale_factor=(4, 2), mode="bilinear"),
    "half": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
    "by a third": lambda x: F.interpolate(x, size=(33, 48), mode="bilinear"),
    "linear": lambda x: F.interpolate(x[0], scale_factor=2, mode="linear"),
    "trilinear": lambda x: F.interpolate(x[None], scale_factor=2, mode="trilinear"),
    "mask": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") > 0,
    "rounded": lambda x: (F.interpolate(x, scale_factor=2, mode="bilinear") * 9).to(torch.int8),
    "two results": lambda x: (
        F.interpolate(x, scale_factor=2, mode="bilinear"),
        F.interpolate(x, scale_factor=2, mode="nearest").sigmoid(),
    ),
    "row of weights": lambda x: (
        F.interpolate(x, scale_factor=2, mode="bilinear") * torch.linspace(0, 1, 2 * x.shape[-1])
    ),
    "whole row": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear").softmax(-1),
    "flipped": lambda x: x[..., x.shape[-1] - 1 - torch.arange(x.shape[-1])],
    "rolled": lambda x: x[..., (torch.arange(x.shape[-1]) + 3) % x.shape[-1]],
    "reflected": lambda x: F.pad(x, (0, 0, 2, 2), mode="reflect"),
    "channels-last": lambda x: F.interpolate(
        x.to(memory_format=torch.channels_last), scale_factor=2, mode="bilinear"
    ),
}


def kernels(function: Function, *inputs: torch.Tensor) -> str:
    """Check a function against eager; return the text of its kernels without comments."""
    torch._dynamo.reset()
    compiled = fusec.compile(function, target="triton")
    got, expected = compiled(*inputs), function(*inputs)
    # what eager rounds to half precision once is held to one step of it
    tolerance = 4e-3 if inputs[0].dtype == torch.float16 else 3e-6
    if inputs[0].dtype == torch.bfloat16:
        tolerance = 2e-2
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert not compiled.fallbacks
    text = "".join(kernel.source for kernel in compiled.kernels.values())
    return "\n".join(line for line in text.splitlines() if not line.strip().startswith("#"))


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(2, 3, 16, 32), (1, 2, 24, 48), (1, 1, 5, 7), (1, 2, 6, 61)])
@pytest.mark.parametrize("name", CASES)
def test_same_as_eager(name: str, shape: tuple[int, ...]) -> None:
    kernels(CASES[name], torch.randn(shape))


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["bilinear", "nearest", "bicubic"])
def test_other_types(name: str, dtype: torch.dtype) -> None:
    kernels(CASES[name], torch.randn(1, 2, 16, 64).to(dtype))


def test_memory_that_is_not_one_stretch() -> None:
    kernels(CASES["bilinear"], torch.randn(2, 3, 32, 40)[:, :, ::2, 4:36])
    kernels(CASES["nearest"], torch.randn(32, 16, 3, 2).permute(3, 2, 1, 0))
    kernels(CASES["bilinear"], torch.randn(0, 3, 16, 32))


def test_something_of_the_larger_size_is_loaded_in_pairs() -> None:
    text = kernels(
        lambda x, y: F.interpolate(x, scale_factor=2, mode="nearest") + y,
        torch.randn(1, 2, 16, 32),
        torch.randn(1, 2, 32, 64),
    )
    assert text.count("tl.load(x_ptr") == 1
    assert text.count("tl.load(y_ptr") == 2
    assert text.count("tl.store(") == text.count("tl.interleave(") == 2


def test_phases_share_their_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 2, 16, 64)
    text = kernels(CASES["nearest"], x)
    assert (text.count("tl.load("), text.count("tl.interleave(")) == (1, 2)
    text = kernels(CASES["bilinear"], x)
    assert (text.count("tl.load("), text.count("tl.interleave(")) == (16, 2)
    assert "0.25" in text
    assert ".to(tl.int64).to(tl.float32)" not in text, "no share is computed at run time"
    larger = torch.randn(1, 2, 32, 64)  # of which there are few programs still
    assert kernels(CASES["nearest"], larger).count("tl.interleave(") == 2
    # rows go together where programs are many
    monkeypatch.setattr(phases, "LEAST_WAVES", 0)
    text = kernels(CASES["nearest"], x)
    assert (text.count("tl.load("), text.count("tl.interleave(")) == (4, 8)
    text = kernels(CASES["bilinear"], x)
    assert (text.count("tl.load("), text.count("tl.interleave(")) == (28, 8)
    assert kernels(CASES["bilinear"], torch.randn(1, 2, 12, 64)).count("tl.interleave(") == 2
    # two phases more, and so fewer rows
    assert kernels(CASES["trilinear"], torch.randn(1, 8, 16, 32)).count("tl.interleave(") == 16


def test_infinity_and_nan_stay_where_they_are() -> None:
    x = torch.randn(1, 1, 8, 32)
    x[0, 0, 3, 5], x[0, 0, 6, 20] = float("nan"), float("inf")
    compiled = fusec.compile(CASES["bilinear"], target="triton")
    got, expected = compiled(x), CASES["bilinear"](x)
    assert isinstance(got, torch.Tensor)
    assert isinstance(expected, torch.Tensor)
    near = torch.zeros(16, 64, dtype=torch.bool)
    near[5:9, 9:13] = near[11:15, 39:43] = True
    assert bool(got.isfinite()[0, 0][~near].all())
    finite = expected.isfinite() & got.isfinite()
    torch.testing.assert_close(got[finite], expected[finite])
    assert bool(got.isnan()[expected.isnan()].all())


def test_places_that_are_none() -> None:
    # as many results as elements: nothing is shared, and no store lies in turns
    assert "interleave" not in kernels(CASES["reflected"], torch.randn(1, 2, 32, 64))
    # places that come from memory
    text = kernels(lambda x, i: x[..., i], torch.randn(1, 2, 8, 32), torch.arange(64) // 2)
    assert "interleave" not in text


def test_stores_in_turns_are_whole_accesses() -> None:
    source = emit(blended(64, 512, torch.float16))
    assert source.text.count("tl.store(") == source.text.count("tl.interleave(") == 1
    code = artifacts(source.text, source.signature, gpu="sm_90")
    assert "st.global.v4.b32" in code["ptx"]
    assert "st.global.b16" not in code["ptx"]


def test_a_body_with_another_size_is_left_alone() -> None:
    case = blended(5, 33)  # rows of 66: too short a tile would be half empty
    assert cut_into_phases(case.body, case.buffers) is case.body


def test_lines() -> None:
    j = torch.arange(9)
    assert line_of(j) == (1, 0, 0, 8)
    assert line_of((2 * j - 3).clamp(0, 11)) == (2, -3, 0, 11)
    assert line_of(8 - j) == (-1, 8, 0, 8)
    assert line_of(torch.full((9,), 4)) == (0, 4, 4, 4)
    assert line_of(j // 2) is None
    assert line_of((j - 4).abs()) is None
    assert line_of(j[:2]) is None


def test_values_are_settled_only_where_they_are_the_same_everywhere() -> None:
    with recording():
        axis, other = (Symbol(n, "axis", Expr.of(10)) for n in "ij")
        size = Symbol("n", "size")
        known_values = KnownValues()
        at = index_value(Expr.of(axis), torch.int64)
        number = cast(at, torch.float32)
        zero = ops.binary("mul", number, const(0.0, torch.float32))
        settled = known_values.simplified(zero)
        assert isinstance(settled, Const)
        assert settled.value == 0.0
        # (j - 1) * 0 is -0.0 at the first
        less = ops.binary("sub", number, const(1.0, torch.float32))
        mixed = known_values.simplified(ops.binary("mul", less, const(0.0, torch.float32)))
        assert mixed is not None
        assert not isinstance(mixed, Const)
        assert known_values.simplified(number) is None
        place = ops.binary(
            "minimum", ops.binary("add", at, const(3, torch.int64)), const(99, torch.int64)
        )
        assert isinstance(known_values.simplified(place), IndexValue)
        both = ops.binary(
            "mul", number, cast(index_value(Expr.of(other), torch.int64), torch.float32)
        )
        assert known_values.axis_of(both) is None
        symbolic = cast(index_value(Expr.of(axis) + Expr.of(size), torch.int64), torch.float32)
        assert known_values.axis_of(symbolic) is None
        loaded = ops.load("x", (Expr.of(axis),), torch.float32)
        assert isinstance(loaded, Load)
        assert known_values.axis_of(loaded) is None
        nothing = ops.unary(
            "sqrt", ops.unary("neg", ops.binary("add", number, const(1.0, torch.float32)))
        )
        assert known_values.simplified(nothing) is None, "NaN stays what computes it"
