"""Everything that a user can see of a result besides its values is as in eager.

Where torch's own ``aot_eager`` hands out something else than eager, that is torch's doing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import fusec
from fusec.call import native
from support.attributes import FUNCTIONS, LAYOUTS, UPDATES, Function, seen

# Of what is new: AOTAutograd's graphs are functional, so no update of it is counted, and what it
# is a view of is nobody's.
UNTOLD = frozenset({"updated", "is view"})
# What nobody can tell where there are no elements.
PLACE = frozenset({"offset", "storage", "storage bytes"})
# What we do not keep: the first elements of a storage that nobody can reach.
KNOWN = frozenset({("slice_of_gaps", "offset"), ("slice_of_gaps", "storage bytes")})
MODES: dict[str, Callable[[], Any]] = {
    "training": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    native.types(wait=True)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def differences(name: str, function: Function, layout: str, mode: str, dynamic: bool) -> list[str]:
    try:
        eager = found(function, function, layout, mode)
    except IndexError:
        return []  # of no elements it takes the first
    compiled = fusec.compile(function, dynamic=dynamic)
    ours = found(compiled, function, layout, mode)
    if len(ours) != len(eager):
        return [f"{name}: {len(ours)} results for {len(eager)}"]
    problems = [
        (place, key)
        for place, (one, other) in enumerate(zip(eager, ours, strict=True))
        for key in one
        if one[key] != other.get(key)
        and (name, key) not in KNOWN
        and not (key in UNTOLD and not one["is input"])
        and not (key in PLACE and 0 in one.get("shape", ()))  # type: ignore[operator]
    ]
    if not problems:
        return []
    torch._dynamo.reset()
    theirs = found(
        torch.compile(function, backend="aot_eager", dynamic=dynamic), function, layout, mode
    )
    return [
        f"{name} ({layout}, {mode}), result {place}: {key} is "
        f"{ours[place].get(key)}, not {eager[place][key]}"
        for place, key in problems
        if theirs[place].get(key) != ours[place].get(key)
    ]


def found(
    call: Callable[..., Any], function: Function, layout: str, mode: str
) -> list[dict[str, object]]:
    """Return the attributes of what a call returns, and of its input, at the second time."""
    with MODES[mode]():
        for _ in range(2):
            x = LAYOUTS[layout]()
            if mode == "training" and function not in UPDATES.values():
                x = x.detach().requires_grad_()
            results = tree_leaves(call(x))
    return seen(results, [x])


QUICK = [
    ("factories", "gaps", "no_grad", False),
    ("views", "channels last", "inference", False),
    ("updates", "offset", "no_grad", False),
]


def check(group: str, layout: str, mode: str, dynamic: bool) -> None:
    functions = UPDATES if group == "updates" else FUNCTIONS[group]
    if group == "updates" and layout == "expanded":
        return  # torch refuses to write there
    problems = [
        problem
        for name, function in functions.items()
        for problem in differences(name, function, layout, mode, dynamic)
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("group", "layout", "mode", "dynamic"), QUICK)
def test_some(group: str, layout: str, mode: str, dynamic: bool) -> None:
    check(group, layout, mode, dynamic)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("group", [*FUNCTIONS, "updates"])
def test_all(group: str, layout: str, mode: str, dynamic: bool) -> None:
    check(group, layout, mode, dynamic)


def test_the_strides_of_a_view_are_kept() -> None:
    x = torch.randn(16, 16)[:, :8]

    def made(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(x.size(), x.stride())

    def copied(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(x.size(), x.stride()).copy_(x * 2)

    for dynamic in (False, True):
        assert fusec.compile(made, dynamic=dynamic)(x).stride() == (16, 1)
        result = fusec.compile(copied, dynamic=dynamic)(x)
        torch.testing.assert_close(result, copied(x), check_stride=True)


def test_a_view_of_symbolic_size_of_an_updated_input_with_gaps() -> None:
    """AOTAutograd lays it over other elements; TorchInductor and aot_eager return wrong values."""

    def updated(x: torch.Tensor) -> torch.Tensor:
        view = x.reshape(17, -1)
        x.div_(x.abs().sum(-2, keepdim=True) + 1)
        return view

    compiled = fusec.compile(updated, dynamic=True)
    for _ in range(2):
        x = torch.randn(34, 4)
        ours, theirs = x.clone()[::2, ::2], x.clone()[::2, ::2]
        result = compiled(ours)
        torch.testing.assert_close(result, updated(theirs), check_stride=True)
        assert result.data_ptr() == ours.data_ptr()
    assert "that has gaps" in compiled.fallbacks[0]
    x = torch.randn(17, 2)
    torch.testing.assert_close(compiled(x.clone()), updated(x.clone()), check_stride=True)
    assert len(compiled.fallbacks) == 1  # without gaps it is compiled


@pytest.mark.parametrize("shape", [(130, 1, 2, 2), (5, 1, 3, 3), (4, 2, 2, 3)])
@pytest.mark.parametrize("pooled", [F.avg_pool2d, F.max_pool2d], ids=["avg", "max"])
def test_views_of_what_has_one_element_by_a_computed_size_share_its_memory(
    pooled: Callable[..., torch.Tensor], shape: tuple[int, ...]
) -> None:
    """``size // 2`` is 1 by a guard: in strides and places as well as in sizes."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        small = pooled(x, 2)
        return small[3:], small, small.transpose(0, 2)

    x = torch.randn(shape)
    ours, theirs = fusec.compile(function, dynamic=True)(x), function(x)
    for mine, eager in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, eager, check_stride=True)
        assert mine.storage_offset() == eager.storage_offset()
        assert mine.untyped_storage().data_ptr() == ours[1].untyped_storage().data_ptr()
