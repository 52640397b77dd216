"""What the tests of calls share: how a call is seen to take the short path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fusec
from fusec.runtime import native


@pytest.fixture(scope="module", autouse=True)
def native_part() -> None:
    if native.types(wait=True) is None:
        assert "Python.h" in native.problem() or "only CPython" in native.problem()
        pytest.skip(f"no native part: {native.problem()}")


@pytest.fixture(autouse=True)
def strict_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def same(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected)
    assert type(actual) is type(expected)


def short(function: Any, *args: Any, **kwargs: Any) -> fusec.api.CompiledFunction:
    """Compile a function and see that calls with these arguments take the short path."""
    compiled = fusec.compile(function)
    compiled(*args, **kwargs)
    before = compiled.short_calls
    with torch.no_grad():
        pass
    compiled(*args, **kwargs)
    assert compiled.short_calls == before + 1, "the call took the ordinary path"
    return compiled


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape) for shape in shapes or ((64,), (64,))]


def add_relu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a + b).relu()
