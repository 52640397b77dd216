"""Cases made of a real one: other sizes, one tensor in two places, other magnitudes."""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.verify.check import Case
from fusec.verify.trials.inputs import fresh_inputs
from fusec.verify.trials.variations import (
    beside_numbers,
    fewest,
    lengthened,
    repeated,
    resized,
)


def normal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * y, -1)


@pytest.fixture(scope="module")
def dynamic() -> fusec.Kernel:
    """A kernel for all sizes."""
    compiled = fusec.compile(normal, dynamic=True, keep_inputs=True)
    compiled(torch.randn(6, 40), torch.randn(6, 40))
    (kernel,) = compiled.kernels.values()
    return kernel


def given(kernel, rows=6, columns=40):
    sizes = dict(zip(kernel.signature.sizes, (rows, columns), strict=True))
    tensors = [torch.randn(rows, columns) for _ in kernel.signature.arguments]
    return Case(tuple(tensors), tuple(sizes.values()))


def test_other_sizes(dynamic):
    larger = resized(given(dynamic), dynamic.signature, larger=True)
    assert larger.sizes == (9, 53)
    assert [tuple(t.shape) for t in larger.tensors] == [(9, 53)] * 3
    smaller = resized(given(dynamic), dynamic.signature, larger=False)
    assert smaller.sizes == (3, 21)
    # Nothing is to be had of sizes that are as small as can be.
    assert resized(given(dynamic, 1, 1), dynamic.signature, larger=True) is None


def test_one_tensor_twice(dynamic):
    case = given(dynamic)
    found = repeated(case, dynamic.signature)
    assert found.tensors[0] is found.tensors[1]
    assert found.tensors[2] is case.tensors[2]
    other = Case((case.tensors[0], case.tensors[1].double(), case.tensors[2]), case.sizes)
    assert repeated(other, dynamic.signature) is None


def test_an_edit_that_is_right_for_one_size_alone(dynamic):
    text = dynamic.generated.text
    _, columns = dynamic.signature.sizes
    place = text.index("{", text.index('extern "C"')) + 1
    edited = text[:place] + f"\n    if ({columns} != 40) return 0;" + text[place:]
    verdict = dynamic.check(edited, timed=False)
    assert not verdict.ok
    assert verdict.reason.endswith(("at larger sizes", "at smaller sizes"))
    right = text[:place] + f"\n    if ({columns} < 0) return 0;" + text[place:]
    assert dynamic.check(right, timed=False).ok


@pytest.mark.parametrize(
    "kept",
    [
        "float kept[4096]; for (int64_t i = 0; i < {n}; i++) kept[i] = {x}[i];",
        "float kept[{n}]; for (int64_t i = 0; i < {n}; i++) kept[i] = {x}[i];",
    ],
)
def test_an_edit_that_keeps_a_row_in_an_array_of_its_own(dynamic, kept):
    text = dynamic.generated.text
    place = text.index("{", text.index('extern "C"')) + 1
    _, columns = dynamic.signature.sizes
    code = kept.format(n=columns, x=dynamic.signature.arguments[0].name)
    edited = f"{text[:place]}\n    {code} volatile float v = kept[0]; v = v + 1;{text[place:]}"
    verdict = dynamic.check(edited, timed=False)
    assert verdict.stage == "bounds"
    assert verdict.reason.endswith(f"where {columns} is 2,101,249")


def test_long_sizes_leave_out_what_would_take_long(dynamic):
    case, signature = given(dynamic), dynamic.signature
    rows, columns = signature.arguments[0].shape
    assert [c.sizes for c in lengthened(case, signature, [rows, columns])] == [
        (2, 2101249),
        (70001, 2),
    ]
    assert not list(lengthened(case, signature, [rows, columns, columns, rows]))


def test_an_edit_that_is_wrong_where_one_tensor_is_passed_twice(dynamic):
    text = dynamic.generated.text
    first, second, _ = (argument.name for argument in dynamic.signature.arguments)
    place = text.index("{", text.index('extern "C"')) + 1
    edited = f"{text[:place]}\n    if ({first} == {second}) return 0;{text[place:]}"
    verdict = dynamic.check(edited, timed=False)
    assert not verdict.ok
    assert verdict.reason.endswith("with one tensor in two places")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_magnitudes(dtype):
    original = torch.randn(4096).to(dtype)
    (made,) = fresh_inputs([original], kind="magnitudes", seed=0)
    assert made.dtype == dtype
    assert bool(made.isfinite().all())
    size = made.abs().double()
    wanted = 10 if dtype is torch.float16 else 1e4
    assert size.max() > wanted
    assert size[size > 0].min() < 1 / wanted
    positive = fresh_inputs([original.abs()], kind="magnitudes", seed=0)[0]
    assert bool((positive >= 0).all())


def test_as_many_calls_there_as_here(dynamic):
    verdict = dynamic.check(dynamic.generated.text + "// as it was\n")
    assert verdict.ok
    assert verdict.calls >= 50


def test_sizes_that_may_be_nothing(dynamic):
    case, signature = given(dynamic), dynamic.signature
    assert not list(fewest(case, signature))  # it is compiled for two and more
    rows = next(iter(signature.arguments[0].shape[0].symbols()))
    before = rows.low
    try:
        rows.low = 0
        assert [found.sizes for found in fewest(case, signature)] == [(0, 40), (1, 40)]
    finally:
        rows.low = before


def test_an_edit_that_counts_rows_in_sixteen_bits(dynamic):
    rows = dynamic.signature.sizes[0]
    text = dynamic.generated.text
    place = text.index("{", text.index('extern "C"')) + 1
    loop = f"\n    volatile int rest = 0;\n    for (int16_t r = 0; r < {rows}; ++r) rest = r;"
    verdict = dynamic.check(text[:place] + loop + text[place:], timed=False)
    assert not verdict.ok


def test_an_edit_that_is_slightly_off_beyond_a_size_that_it_names():
    """Rows that are very long show it no more: there it is off by less than rounding."""
    call = fusec.compile(lambda x: x.var(-1), dynamic=True, keep_inputs=True)
    call(torch.randn(33, 70))
    (kernel,) = call.kernels.values()
    columns = kernel.signature.sizes[1]
    found = f"{columns}_f32 - 1.0f"
    assert found in kernel.generated.text
    slip = f"{columns}_f32 - ({columns} > 100 ? 0.0f : 1.0f)"
    verdict = kernel.check(kernel.generated.text.replace(found, slip), timed=False)
    assert (verdict.ok, verdict.stage) == (False, "wrong")
    assert f"{columns} is 101" in verdict.reason


def test_an_edit_that_loses_the_last_element_of_blocks():
    call = fusec.compile(lambda x, y: x * y + x, dynamic=True, keep_inputs=True)
    call(torch.randn(33, 70), torch.randn(33, 70))
    (kernel,) = call.kernels.values()
    rows, columns = kernel.signature.sizes
    loop = f"i0_block < {rows} * {columns}; "
    assert loop in kernel.generated.text
    slip = f"i0_block < {rows} * {columns} - ({columns} > 99); "
    verdict = kernel.check(kernel.generated.text.replace(loop, slip), timed=False)
    assert (verdict.ok, verdict.stage) == (False, "wrong")


def test_sizes_beside_numbers(dynamic):
    case, signature = given(dynamic), dynamic.signature
    found = [other.sizes for other in beside_numbers(case, signature, [100.0, 0.5, -3.0, 1e9])]
    assert {(99, 4), (100, 4), (101, 4), (4, 99), (4, 100), (4, 101), (3, 67)} == {*found}
    assert not [*beside_numbers(given(dynamic, 1, 1), signature, [100.0])]
