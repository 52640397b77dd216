"""How operands are padded: from what they are, not from what they look like after."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fusec.graph.products.alignment import align_products

aten = torch.ops.aten
HALF = torch.float16
Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def _always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.graph.products.alignment.alignment_pays", lambda *_: True)


def aligned(function: Function, *given: torch.Tensor) -> fx.GraphModule:
    """Pad, compare with the function, and return the graph without what nobody reads."""
    with FakeTensorMode():
        fake = [torch.empty_strided(t.shape, t.stride(), dtype=HALF, device="cuda") for t in given]
        module = make_fx(function)(*fake)
    assert align_products(module, kernels=False) == 1
    wanted = function(*given)
    found = module(*given)
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=1e-1)
    assert found.stride() == wanted.stride()
    module.graph.eliminate_dead_code()
    return module


def padded(module: fx.GraphModule) -> dict[str, list[int]]:
    """Return what is padded, and by how much."""
    pads = module.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)
    return {node.args[0].name: node.args[1] for node in pads}


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


@pytest.mark.parametrize(
    ("function", "given", "pads"),
    [
        (lambda x, w: (x @ w).relu(), ((16, 24), (24, 13)), {"w_1": [0, 3]}),
        (lambda x, w: (x @ w).relu(), ((16, 13), (13, 24)), {"x_1": [0, 3], "w_1": [0, 0, 0, 3]}),
        # what is turned over is padded before
        (lambda x, w: (x @ w.t()).relu(), ((16, 13), (24, 13)), {"x_1": [0, 3], "w_1": [0, 3]}),
        (
            lambda x, w: (x @ w.permute(1, 0)).relu(),
            ((16, 13), (24, 13)),
            {"x_1": [0, 3], "w_1": [0, 3]},
        ),
        (lambda x, w: (x.t() @ w).relu(), ((24, 13), (24, 16)), {"x_1": [0, 3]}),
        (
            lambda x, w: torch.bmm(x, w.permute(0, 2, 1)).relu(),
            ((2, 16, 13), (2, 24, 13)),
            {"x_1": [0, 3], "w_1": [0, 3]},
        ),
        # turned otherwise, so that it is turned once more, and back
        (
            lambda x, w: torch.bmm(x, w.permute(1, 2, 0)).relu(),
            ((16, 8, 13), (24, 16, 13)),
            {"x_1": [0, 3], "permute_default": [0, 3]},
        ),
        (lambda x, w: (x @ w).relu(), ((16, 13), (13, 2)), {"x_1": [0, 3], "w_1": [0, 6, 0, 3]}),
    ],
)
def test_what_is_padded(
    function: Function, given: tuple[tuple[int, ...], ...], pads: dict[str, list[int]]
) -> None:
    assert padded(aligned(function, *(half(*shape) for shape in given))) == pads


def test_a_bias_of_which_every_second_number_is_there() -> None:
    """It has no rows that could be turned over."""
    module = aligned(
        lambda b, x, w: torch.addmm(b, x, w).relu(), half(26)[::2], half(16, 24), half(24, 13)
    )
    assert padded(module) == {"b_1": [0, 3], "w_1": [0, 3]}
