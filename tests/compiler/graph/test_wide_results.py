"""Products that BLAS writes in float32 because nothing else is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fusec.graph.facts.notes import NoteKind, add_note, notes
from fusec.graph.products.wide_results import ask_for_wide_results

aten = torch.ops.aten
WIDE = torch.float32


def traced(
    function: Callable[..., Any], *, dtype: torch.dtype = torch.bfloat16, device: str = "cuda"
) -> fx.GraphModule:
    """Return a graph over two matrices of a GPU that need not be there."""
    with FakeTensorMode():
        left = torch.empty(256, 512, dtype=dtype, device=device)
        right = torch.empty(512, 384, dtype=dtype, device=device)
        return make_fx(function)(left, right)


def products(module: fx.GraphModule) -> list[object]:
    return [n.target for n in module.graph.nodes if "mm" in str(n.target)]


RETURNED: dict[str, Callable[..., Any]] = {
    "a gradient": lambda a, b: (a @ b).to(WIDE),
    "turned over": lambda a, b: (a @ b).t().to(WIDE),
    "seen as something else": lambda a, b: (a @ b).view(16, 16, 384).to(WIDE),
    "without the last rows": lambda a, b: (a @ b).narrow(0, 0, 250).t().to(WIDE),
    "beside another": lambda a, b: ((a @ b).to(WIDE), a.float()),
}


@pytest.mark.parametrize("name", RETURNED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_is_returned_wide_is_written_wide(name: str, dtype: torch.dtype) -> None:
    module = traced(RETURNED[name], dtype=dtype)
    (output,) = module.graph.find_nodes(op="output")
    before = [node.meta["val"] for node in output.all_input_nodes]
    assert ask_for_wide_results(module) == 1
    assert products(module) == [aten.mm.dtype]
    module.graph.lint()
    after = [node.meta["val"] for node in output.all_input_nodes]
    for old, new in zip(before, after, strict=True):
        assert (old.shape, old.stride(), old.dtype) == (new.shape, new.stride(), new.dtype)


KEPT: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "without the last columns": (lambda a, b: (a @ b).narrow(1, 0, 380).to(WIDE), {}),
    "taken for another type": (lambda a, b: (a @ b).view(torch.float16).to(WIDE), {}),
    "narrow as well": (lambda a, b: ((c := a @ b).to(WIDE), c), {}),
    "made into something": (lambda a, b: (a @ b).to(WIDE) * 2, {}),
    "float64": (lambda a, b: (a @ b).to(torch.float64), {}),
    "returned narrow": (lambda a, b: a @ b, {}),
    "float32 already": (lambda a, b: (a @ b).to(torch.float64), {"dtype": WIDE}),
    "on the CPU": (lambda a, b: (a @ b).to(WIDE), {"device": "cpu"}),
    "small": (lambda a, b: (a.narrow(0, 0, 8) @ b.narrow(1, 0, 8)).to(WIDE), {}),
    "laid out anew": (lambda a, b: (a @ b).t().to(WIDE, memory_format=torch.contiguous_format), {}),
}


@pytest.mark.parametrize("name", KEPT)
def test_everything_else_stays_as_it_is(name: str) -> None:
    function, given = KEPT[name]
    module = traced(function, **given)
    assert ask_for_wide_results(module) == 0
    assert products(module) == [aten.mm.default]


def test_what_was_said_of_a_product_stays_said() -> None:
    module = traced(RETURNED["a gradient"])
    (product,) = module.graph.find_nodes(op="call_function", target=aten.mm.default)
    add_note(product, NoteKind.PADDED, "because")
    assert ask_for_wide_results(module) == 1
    (product,) = module.graph.find_nodes(op="call_function", target=aten.mm.dtype)
    assert [note.words for note in notes(product)] == ["because"]
