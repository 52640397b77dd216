"""What the tests of calls share: how a call is seen to take the short path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fusec
from fusec.call import native


@pytest.fixture(scope="module", autouse=True)
def native_part() -> None:
    if native.types(wait=True) is None:
        assert "Python.h" in native.problem() or "only CPython" in native.problem(), (
            native.problem()
        )
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


def short(function: Any, *args: Any, **kwargs: Any) -> fusec.compiled_function.CompiledFunction:
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


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape or (64,), dtype=dtype).requires_grad_()


def is_recorded(compiled: fusec.compiled_function.CompiledFunction) -> bool:
    return all(graph._recorded is not None for graph in compiled.graphs)


def chain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ((a + b).relu() * a - b).sigmoid()


def slopes(function: Callable[..., Any], *args: torch.Tensor, **how: Any) -> Any:
    out = function(*args)
    return torch.autograd.grad(
        out, [t for t in args if t.requires_grad], torch.cos(out.detach()), **how
    )
