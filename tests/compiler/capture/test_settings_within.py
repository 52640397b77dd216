"""Settings of torch that a compiled function changes are what eager leaves, in every call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fusec

SETTINGS: dict[str, tuple[Callable[[bool], None], Callable[[], Any]]] = {
    "deterministic": (
        lambda on: torch.use_deterministic_algorithms(on, warn_only=True),
        torch.are_deterministic_algorithms_enabled,
    ),
    "default dtype": (
        lambda on: torch.set_default_dtype(torch.float64 if on else torch.float32),
        torch.get_default_dtype,
    ),
    "matmul precision": (
        lambda on: torch.set_float32_matmul_precision("medium" if on else "highest"),
        torch.get_float32_matmul_precision,
    ),
    "sparse checks": (
        torch._C._set_check_sparse_tensor_invariants,
        torch.sparse.check_sparse_tensor_invariants.is_enabled,
    ),
}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave every setting as it was, whatever a test did."""
    yield
    for put, _ in SETTINGS.values():
        put(False)


@pytest.mark.parametrize("name", SETTINGS)
def test_what_a_call_leaves(name: str) -> None:
    put, get = SETTINGS[name]

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        put(True)
        return y + 1

    put(True)
    wanted = get()
    compiled = fusec.compile(fn)
    x = torch.arange(3.0)
    for _ in range(2):
        put(False)
        torch.testing.assert_close(compiled(x), torch.tensor([1.0, 3.0, 5.0]))
        assert get() == wanted
