"""Which of the user's lines a kernel, and each of its lines, is said to compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusec


def lines_of(function: Any, *args: torch.Tensor, **options: Any) -> dict[str, Any]:
    """Compile; return each kernel's lines, counted from the function's own first one."""
    torch._dynamo.reset()
    compiled = fusec.compile(function, keep_inputs=True, **options)
    compiled(*args)
    first = function.__code__.co_firstlineno
    return {
        name: (
            [place.line - first for place in kernel.body.origins()],
            {
                place.line - first
                for places in kernel.generated.origins.values()
                for place in places
            },
            kernel.generated.text,
        )
        for name, kernel in compiled.kernels.items()
    }


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_a_constant_that_several_lines_use_belongs_to_none_of_them(target: str) -> None:
    def function(x: torch.Tensor) -> Any:
        a = (x * 3.5).sum()  # line 1: the first to ask for 3.5
        b = torch.full((8,), 3.5)
        c = torch.sort(x, dim=0)[0] * 3.5
        return a, b, c

    found = lines_of(function, torch.randn(8, 8), target=target)
    own = sorted(tuple(lines) for lines, _, _ in found.values())
    assert own == [(1,), (2,), (3,)], found
    for lines, said, _ in found.values():
        assert said <= set(lines)


def test_a_number_from_memory_that_several_lines_read() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> Any:
        a = (x * scale).sum()
        b = torch.sort(y)[0] / scale
        return a, b

    found = lines_of(function, torch.randn(8, 8), torch.randn(5), torch.tensor(2.5))
    assert sorted(tuple(lines) for lines, _, _ in found.values()) == [(1,), (2,)]


def test_a_copy_of_a_number_keeps_its_line() -> None:
    def function(x: torch.Tensor, scale: torch.Tensor) -> Any:
        a = x * scale
        b = scale.clone()
        return a, b

    found = lines_of(function, torch.randn(8, 8), torch.tensor(2.5))
    assert {line for lines, _, _ in found.values() for line in lines} == {1, 2}
