"""A class that was changed after it was compiled is compiled again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.guards import GuardBuilder

import fusec

pytestmark = pytest.mark.skipif(
    not hasattr(GuardBuilder, "DICT_NOT_CONTAINS"), reason="torch 2.11 looks in another way"
)


def _triple(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 3


def _classes() -> tuple[type[nn.Module], type[nn.Module]]:
    class Parent(nn.Module):
        scale = 2.0

        def helped(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.helped(x) * 2

    class Child(Parent):
        pass

    return Parent, Child


def _exchange(parent: Any, child: Any) -> None:
    parent.helped.__code__ = _triple.__code__


CHANGES: dict[str, Callable[[Any, Any], None]] = {
    "method": lambda parent, child: setattr(parent, "helped", _triple),
    "forward": lambda parent, child: setattr(parent, "forward", _triple),
    "method of the own class": lambda parent, child: setattr(child, "helped", _triple),
    "code, as autoreload does": _exchange,
    "attribute": lambda parent, child: setattr(parent, "scale", 5.0),
    "attribute of the own class": lambda parent, child: setattr(child, "scale", 7.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("by_name", [False, True], ids=["fusec.compile", "torch.compile"])
def test_it_is_seen(change: Callable[[Any, Any], None], by_name: bool) -> None:
    torch._dynamo.reset()
    parent, child = _classes()
    module, x = child(), torch.arange(4.0)
    compiled = torch.compile(module, backend="fusec") if by_name else fusec.compile(module)
    for _ in range(3):
        assert torch.equal(compiled(x), module(x))
    change(parent, child)
    for _ in range(3):
        assert torch.equal(compiled(x), module(x))


def test_nothing_is_compiled_again_for_no_change() -> None:
    torch._dynamo.reset()
    _, child = _classes()
    modules = [child() for _ in range(3)]
    compiled = fusec.compile(lambda module, x: module(x))
    for module in modules:
        compiled(module, torch.arange(4.0))
    assert len(compiled.graphs) == 1
