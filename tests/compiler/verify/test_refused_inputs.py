"""Edits that take what eager refuses: an index out of range, a division by zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from fusec.kernel import Kernel

INDEX = "const int64_t checked = valid ? wrapped : 0;"
STATUS = "if (!valid) failed = 1;"


def kernel(function: Callable[..., Any], *given: torch.Tensor) -> Kernel:
    """Return the kernel of a function that has one."""
    call = fusec.compile(function, keep_inputs=True)
    call(*given)
    (found,) = call.kernels.values()
    return found


def taken(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """Pick rows."""
    return x[i] * 2


@pytest.fixture(scope="module")
def rows() -> Kernel:
    """Return a kernel that looks at each index before it reads."""
    return kernel(taken, torch.randn(24, 60), torch.randint(0, 24, (9,)))


@pytest.mark.parametrize(
    ("changes", "stage", "says"),
    [
        ({INDEX: "const int64_t checked = wrapped;"}, "", ""),
        ({STATUS: ""}, "wrong", "takes inputs that have to be refused (index out of range"),
        ({"(wrapped < 24)": "(wrapped <= 24)"}, "", ""),
        ({"(wrapped >= 0)": "(wrapped >= -1)"}, "", ""),
    ],
    ids=["looks only afterwards", "says nothing", "one too far", "one too low"],
)
def test_an_edit_that_takes_an_index_out_of_range(
    rows: Kernel, changes: dict[str, str], stage: str, says: str
) -> None:
    text = rows.generated.text
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    verdict = rows.check(text)
    assert not verdict.ok
    assert stage in verdict.stage
    assert says in verdict.reason
    assert "where `i` has" in verdict.reason


def test_an_edit_that_looks_in_its_own_way_is_right(rows: Kernel) -> None:
    text = rows.generated.text
    edited = text.replace("(wrapped >= 0) & (wrapped < 24)", "(uint64_t)wrapped < 24")
    assert edited != text
    verdict = rows.check(edited)
    assert verdict.ok, verdict.reason


def test_an_edit_that_divides_without_a_look() -> None:
    found = kernel(lambda i, j: i // j, torch.randint(-9, 90, (50,)), torch.randint(1, 9, (50,)))
    text = found.generated.text
    head, _, rest = text.partition('extern "C"')
    body = rest.replace("failed = 1", "failed = 0")
    assert body != rest
    verdict = found.check(f'{head}extern "C"{body}')
    assert not verdict.ok
    assert "where `j` has 0 in it" in verdict.reason


def test_an_index_that_is_computed_of_floats() -> None:
    found = kernel(lambda x, f: x[(f * 3).long()], torch.randn(24, 8), torch.rand(9) * 7)
    text = found.generated.text
    assert STATUS in text
    verdict = found.check(text.replace(STATUS, ""))
    assert not verdict.ok
    assert "have to be refused" in verdict.reason


TRITON = "tl.device_assert(in_range"


@pytest.mark.triton
@pytest.mark.sample(3)
@pytest.mark.parametrize("shape", [(24, 60), (512, 768)], ids=["small", "large"])
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (TRITON, "tl.device_assert(in_range | True", "takes inputs that have to be refused"),
        ("(wrapped < {rows})", "(wrapped <= {rows})", "reads past the end of `x`"),
        # What lies right before a small tensor may be read unseen.
        ("(wrapped >= 0)", "(wrapped >= -1)", ""),
    ],
    ids=["says nothing", "one too far", "one too low"],
)
def test_a_triton_edit_that_takes_an_index_out_of_range(
    shape: tuple[int, int], old: str, new: str, says: str
) -> None:
    torch._dynamo.reset()
    given = torch.randn(shape), torch.randint(0, shape[0], (9,))
    call = fusec.compile(taken, target="triton", keep_inputs=True)
    call(*given)
    (found,) = call.kernels.values()
    text = found.generated.text
    old, new = (each.format(rows=shape[0]) for each in (old, new))
    assert old in text
    verdict = found.check(text.replace(old, new))
    assert not verdict.ok
    assert says in verdict.reason
    assert "where `i` has" in verdict.reason


@pytest.mark.parametrize("target", ["cpp", pytest.param("triton", marks=pytest.mark.triton)])
def test_a_call_that_raises_leaves_what_is_checked_as_it_was(target: str) -> None:
    torch._dynamo.reset()
    call = fusec.compile(taken, target=target, keep_inputs=True)
    x, i = torch.randn(24, 60), torch.randint(0, 24, (9,))
    call(x, i)
    (found,) = call.kernels.values()
    (graph,) = call.graphs
    before = graph.last_inputs
    with pytest.raises(IndexError, match="index out of range"):
        call(x, torch.full((9,), 24))
    assert graph.last_inputs is before
    verdict = found.check(found.generated.text + "\n")
    assert verdict.ok, verdict.reason


@pytest.mark.triton
@pytest.mark.parametrize("size", [9, 1 << 17], ids=["interpreted", "by eager"])
def test_a_division_by_zero_is_eagers_error_without_a_gpu(size: int) -> None:
    call = fusec.compile(lambda i, j: i // j, target="triton")
    with pytest.raises(RuntimeError, match="ZeroDivisionError") as caught:
        call(torch.arange(size), torch.arange(size))
    assert not isinstance(caught.value, IndexError)  # which eager does not raise
