"""Numbers beside tensors: which are odd, asked of one call, and which of those raise in eager."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from fusec.graph.refusals.numbers import _is_odd, has_odd_number, raises_in_eager
from support.captured import call_of

I64, F32, F64, HALF, U8 = torch.int64, torch.float32, torch.float64, torch.float16, torch.uint8
BOOL, C64 = torch.bool, torch.complex64


def of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.ones(shape or (3,), dtype=dtype)


# Whether a number is odd, and, where it is, whether eager raises.
CASES: list[tuple[str, bool, bool, Any, tuple[Any, ...], dict[str, Any]]] = [
    ("a fraction of integers", True, False, operator.mul, (of(I64), 0.5), {}),
    ("an integer of integers", False, False, operator.mul, (of(I64), 5), {}),
    ("an integer of bools", True, False, operator.mul, (of(BOOL), 5), {}),
    ("a bool of bools", False, False, operator.mul, (of(BOOL), True), {}),
    ("a bool of floats", False, False, operator.mul, (of(F32), True), {}),
    ("the last byte", False, False, "add", (of(U8), 255), {}),
    ("one more", True, False, "add", (of(U8), 256), {}),
    ("no byte", True, False, "add", (of(U8), -1), {}),
    ("the first byte", False, False, "add", (of(U8), 0), {}),
    ("the largest half", False, False, "add", (of(HALF), 65504.0), {}),
    ("more than a half", True, False, "add", (of(HALF), 65505.0), {}),
    ("less than a half", True, False, "add", (of(HALF), -65505.0), {}),
    ("infinity of halves", False, False, "add", (of(HALF), float("inf")), {}),
    ("nothing of halves", False, False, "add", (of(HALF), float("nan")), {}),
    ("a large integer of halves", True, False, "add", (of(HALF), 70000), {}),
    ("a complex number", True, True, "sub_", (of(F32), 2j), {}),
    ("a complex number of its kind", False, False, "sub_", (of(C64), 2j), {}),
    ("a large number of complex ones", True, True, "fill_", (of(C64), 1e40), {}),
    ("a factor that is a fraction", True, True, torch.add, (of(I64), of(I64)), {"alpha": 0.5}),
    ("a factor", False, False, torch.add, (of(I64), of(I64)), {"alpha": 2}),
    ("a factor that is a bool", True, True, torch.add, (of(F32), of(F32)), {"alpha": True}),
    ("a bool of bools as a factor", False, False, torch.add, (of(BOOL), of(BOOL)),
     {"alpha": True}),
    ("a bool of bools beside a number", True, True, torch.add, (of(BOOL), 2), {"alpha": True}),
    ("beta that is a bool", True, False, torch.addmm, (of(F32, 3, 3),) * 3, {"beta": True}),
    ("a bound", True, True, "clamp", (of(HALF),), {"min": 1e40}),
    ("a fraction as a bound of integers", True, False, "clamp", (of(I64), 0.5), {}),
    ("filled", True, True, torch.full, ((2,), 1e40), {"dtype": HALF}),
    ("filled with what fits", False, False, torch.full, ((2,), 1e4), {"dtype": HALF}),
    ("assigned", True, True, operator.setitem, (of(U8), 0, 300), {}),
    ("assigned at a place", False, False, operator.setitem, (of(U8), 300, 3), {}),
    ("a place", False, False, operator.getitem, (of(U8, 600), 300), {}),
    ("random numbers up to one", True, True, "random_", (of(U8), 0, 300), {}),
    ("random numbers", False, False, "random_", (of(U8), 0, 200), {}),
    ("random numbers like those", True, True, torch.randint_like, (of(U8), 300), {}),
    ("a dimension", False, False, torch.softmax, (of(HALF), 0), {}),
    ("a power", True, False, "pow", (of(I64), 0.5), {}),
    ("bits of a fraction", True, True, operator.and_, (of(I64), 0.5), {}),
    ("padding", True, True, torch.nn.functional.pad, (of(HALF), (1, 1)), {"value": 1e40}),
    ("padding by a size", False, False, torch.nn.functional.pad, (of(HALF), (1, 1)),
     {"value": 2}),
    ("a size of a function in Python", False, False, torch.nn.functional.interpolate,
     (of(U8, 1, 1, 4),), {"size": 300}),
    ("a fraction of a function in Python", True, False, torch.nn.functional.gumbel_softmax,
     (of(HALF), 1e40), {}),
    ("no number", False, False, torch.add, (of(I64), of(F32)), {}),
    ("a text", False, False, torch.div, (of(I64), of(I64)), {"rounding_mode": "floor"}),
    ("a function of the user's", False, False, len, (of(I64), 0.5), {}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: CASES[n][0])
def test_numbers(number: int) -> None:
    _, odd, raises, target, args, kwargs = CASES[number]
    node = call_of(target, *args, **kwargs)
    assert has_odd_number(node) is odd
    if odd:
        state = torch.get_rng_state()
        assert raises_in_eager(node) is raises
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(3, dtype=I64, device="meta"),
        torch.ones(3, 3, dtype=I64).to_sparse(),
        torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8),
        "a text",
        None,
    ],
    ids=["no memory", "sparse", "quantized", "a text", "nothing"],
)
def test_of_what_no_small_tensor_stands_for_nothing_is_said(value: object) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = value
    assert not raises_in_eager(graph.call_function(torch.add, (x, 2j), {"alpha": 0.5}))
    assert not raises_in_eager(graph.call_method("add_", (x, 2j)))


def test_sizes_and_numbers_that_are_known() -> None:
    graph = fx.Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    x.meta["example_value"] = of(F32, 100, 200)
    for number, raises in ((2j, True), (1.5, False)):
        assert raises_in_eager(graph.call_method("sub_", (x, number))) is raises
    n.meta["example_value"] = 2
    # a place that is there whatever the size of what stands for x
    call = graph.call_function(torch.add, (x, n), {"alpha": 2j})
    assert raises_in_eager(call)
    assert not raises_in_eager(graph.call_method("add", (3, n)))


def test_of_zeros_or_of_ones_it_is_enough() -> None:
    """A divisor of nothing raises, and so it does with another number: that says nothing."""
    node = call_of(operator.floordiv, of(I64), 0)
    assert not raises_in_eager(node)
    assert raises_in_eager(call_of("__iand__", of(I64), 2.5))


def test_one_tensor_that_cannot_hold_a_number_is_enough() -> None:
    wide, narrow, whole = torch.float64, torch.float16, torch.int64
    assert _is_odd(1e30, [wide, narrow])
    assert _is_odd(1e30, [narrow, wide])
    assert not _is_odd(1e30, [wide, wide])
    assert _is_odd(0.5, [wide, whole])
    assert not _is_odd(1.0, [])
    assert not _is_odd(True, [narrow]), "a bool is a number to every type"


def test_one_complex_tensor_holds_a_complex_number() -> None:
    real, complex_ = torch.float32, torch.complex64
    assert _is_odd(2j, [real, real])
    assert _is_odd(2j, [])
    for types in ([complex_], [real, complex_], [complex_, real]):
        assert not _is_odd(2j, types)
