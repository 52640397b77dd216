"""``torch.compile(mode="max-autotune")``: kernels are tuned in the first calls, and once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusec.capture import backend as capture
from fusec.capture import tuned_calls
from fusec.errors import BadOption
from fusec.kernel import Kernel
from support.calls import strict_calls

__all__ = ["strict_calls"]


@pytest.fixture(autouse=True)
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Searches are short, and counted."""
    torch._dynamo.reset()
    monkeypatch.setattr(capture, "_TUNING_SECONDS", 0.3)
    found: list[str] = []
    plain = Kernel.tune

    def tune(self: Kernel, *args: Any, **options: Any) -> Any:
        found.append(self.name)
        return plain(self, *args, **options)

    monkeypatch.setattr(Kernel, "tune", tune)
    return found


def compiled(function: Callable[..., Any], mode: str = "max-autotune") -> Any:
    return torch.compile(function, backend="fusec", mode=mode, dynamic=False)


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_kernels_are_tuned_in_the_first_call_and_once(tuned: list[str], mode: str) -> None:
    width = 97 if mode == "max-autotune" else 101  # others, so that there is no record

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1) + 1

    fused = compiled(function, mode)
    for _ in range(3):
        x = torch.randn(64, width)
        state = torch.get_rng_state()
        torch.testing.assert_close(fused(x), function(x))
        assert torch.equal(torch.get_rng_state(), state)
        assert len(tuned) == 1
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(function, mode)(x), function(x))
    assert len(tuned) == 1, "there is a record"


def test_those_of_backward_are_tuned_when_it_has_run(tuned: list[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x).cumsum(-1)

    fused = compiled(function)
    counts = []
    for _ in range(6):
        x = torch.randn(33, 89, requires_grad=True)
        again = x.detach().clone().requires_grad_()
        fused(x).square().sum().backward()
        function(again).square().sum().backward()
        # sums of 89 terms, some a thousand times as large as what they add up to
        torch.testing.assert_close(x.grad, again.grad, rtol=1e-3, atol=1e-3)
        counts.append(len(tuned))
    assert 0 < counts[0] < counts[2] == counts[-1], "backward is compiled when it first runs"


def test_no_inputs_are_kept_in_the_end(tuned: list[str]) -> None:
    fused = compiled(lambda x: (x.exp() * 3).sum(-1))
    x = torch.randn(70, 83)
    fused(x)
    assert tuned
    seen = weakref.ref(x)
    del x
    fused(torch.randn(70, 83))
    gc.collect()
    assert seen() is None


def test_a_search_that_fails_fails_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def tune(self: Kernel, *args: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("no room for the copies")

    monkeypatch.setattr(Kernel, "tune", tune)
    x = torch.randn(61, 79)
    for _ in range(tuned_calls._CALLS + 1):
        torch.testing.assert_close(compiled(torch.sin)(x), x.sin())


def test_an_input_that_is_updated_is_updated_once(tuned: list[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2).add_(1)

    fused = compiled(function)
    for _ in range(2):
        x = torch.randn(59, 73)
        expected = function(x.clone())
        assert fused(x) is x
        torch.testing.assert_close(x, expected)


def test_other_modes_are_refused() -> None:
    with pytest.raises(Exception, match="max-autotune") as error:
        compiled(torch.sin, "fastest")(torch.randn(3))
    assert isinstance(error.value.__cause__ or error.value, BadOption) or "mode" in str(error.value)
