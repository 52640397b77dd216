"""Operators whose results have lists in them stay calls; what stands around them is fused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fusec
from support.compare import difference

SCHEMAS = {
    "list_and_number": "(Tensor x) -> (Tensor[], int)",
    "tensor_and_list": "(Tensor x) -> (Tensor, Tensor[])",
    "one_in_a_list": "(Tensor x) -> (Tensor[], Tensor)",
    "two_lists": "(Tensor x) -> (Tensor[], Tensor[])",
    "number_first": "(Tensor x) -> (int, Tensor[])",
}
BODIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "list_and_number": lambda x: ([each.clone() for each in x.unbind()], 3),
    "tensor_and_list": lambda x: (x.neg(), [x.sin(), x.t().contiguous()]),
    "one_in_a_list": lambda x: ([x.sin()], x.cos()),
    "two_lists": lambda x: ([x.sin(), x.cos()], [x.neg()]),
    "number_first": lambda x: (7, [x.exp(), x.neg()]),
}


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    with torch.library._scoped_library("fusec_nested", "FRAGMENT") as library:
        for name, schema in SCHEMAS.items():
            library.define(name + schema)
            library.impl(name, BODIES[name], "CompositeExplicitAutograd")
            torch.library.register_fake(f"fusec_nested::{name}", BODIES[name], lib=library)
        yield


@pytest.mark.sample(4)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SCHEMAS)
def test_nested_results(name: str, dynamic: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        found = getattr(torch.ops.fusec_nested, name)(x * 2)
        return torch.utils._pytree.tree_map(lambda each: each + 1, found)

    torch._dynamo.reset()
    compiled = fusec.compile(function, dynamic=dynamic)
    for rows in (3, 5) if dynamic and name != "list_and_number" else (3,):
        x = torch.randn(rows, 4)
        assert not difference(compiled(x), function(x))
    graph = compiled.graphs[-1]
    assert not graph.fallback
    assert graph.kernels
    assert len(graph.externs) == 1
