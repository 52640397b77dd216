"""Products of widened halves, which BLAS multiplies as halves and adds up in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fusec.graph.products.products_of_halves import multiply_halves

aten = torch.ops.aten
WIDE = torch.float32
SHAPES = {"q": (2, 6, 128, 64), "k": (2, 6, 160, 64), "v": (2, 6, 160, 64), "m": (1, 6, 128, 160)}


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> Any:
    math = aten._scaled_dot_product_attention_math
    return math(q, k, v, m, 0.0, False, None, scale=0.125)[0]


def given(dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    if device == "cpu":
        return [torch.randn(shape).to(dtype) for shape in SHAPES.values()]
    return [torch.empty(shape, dtype=dtype, device=device) for shape in SHAPES.values()]


def traced(
    function: Callable[..., Any], *, dtype: torch.dtype = torch.bfloat16, device: str = "cuda"
) -> fx.GraphModule:
    with FakeTensorMode():
        return make_fx(function)(*given(dtype, device))


def products(module: fx.GraphModule) -> list[object]:
    return [n.target for n in module.graph.nodes if "mm" in str(n.target)]


class OnTheCPU(fx.Interpreter):
    """Runs a graph made for a GPU."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in (aten.mm.dtype, aten.bmm.dtype):
            left, right, dtype = args
            assert left.dtype == right.dtype
            assert left.dtype.itemsize == 2
            return left.to(dtype) @ right.to(dtype)
        given = {k: "cpu" if k == "device" else v for k, v in kwargs.items()}
        return super().call_function(target, args, given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_attention_taken_apart(dtype: torch.dtype) -> None:
    module = traced(attention, dtype=dtype)
    assert products(module) == [aten.bmm.default, aten.bmm.default]
    assert multiply_halves(module) == 1
    module.graph.lint()
    # the probabilities were never halves
    assert products(module) == [aten.bmm.dtype, aten.bmm.default]
    inputs = given(dtype, "cpu")
    exact = attention(*[x.double() for x in inputs])
    found = OnTheCPU(module).run(*inputs)
    eager = attention(*inputs)
    assert found.stride() == eager.stride()
    wrong, own = ((x.double() - exact).abs().max().item() for x in (found, eager))
    assert wrong <= 1.5 * own


def first(x: torch.Tensor) -> torch.Tensor:
    return x.select(0, 0).select(0, 0)


MULTIPLIED: dict[str, Callable[..., Any]] = {
    "as they are": lambda q, k, v, m: q.select(0, 0).float() @ k.select(0, 0).float().mT,
    "scaled and moved": lambda q, k, v, m: (
        (q.select(0, 0).float() * 0.3) @ (k.select(0, 0).mT.float() * 5)
    ),
    "two dimensions": lambda q, k, v, m: first(q).float() @ first(k).float().t(),
    "laid out anew": lambda q, k, v, m: torch.bmm(
        q.transpose(1, 2).float().reshape(2, 768, 64),
        k.select(0, 0).narrow(0, 0, 1).float().expand(2, 160, 64).mT,
    ),
}


@pytest.mark.parametrize("name", MULTIPLIED)
def test_halves_are_multiplied(name: str) -> None:
    function = MULTIPLIED[name]
    module = traced(function)
    inputs = given(torch.bfloat16, "cpu")
    assert multiply_halves(module) == 1
    module.graph.lint()
    found, expected = OnTheCPU(module).run(*inputs), function(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


LEFT: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "on the CPU": (
        lambda q, k, v, m: q.select(0, 0).float() @ k.select(0, 0).float().mT,
        {"device": "cpu"},
    ),
    "float32 already": (lambda q, k, v, m: q.select(0, 0) @ k.select(0, 0).mT, {"dtype": WIDE}),
    "one was never half": (
        lambda q, k, v, m: q.select(0, 0).float().sin() @ k.select(0, 0).float().mT,
        {},
    ),
    "of two kinds": (
        lambda q, k, v, m: q.select(0, 0).float() @ k.select(0, 0).half().float().mT,
        {},
    ),
    "scaled by a tensor": (
        lambda q, k, v, m: (
            (q.select(0, 0).float() * first(q).select(0, 0).select(0, 0))
            @ k.select(0, 0).float().mT
        ),
        {},
    ),
    "scaled beyond": (
        lambda q, k, v, m: (q.select(0, 0).float() * torch.inf) @ k.select(0, 0).float().mT,
        {},
    ),
    "small": (
        lambda q, k, v, m: first(q).narrow(0, 0, 8).float() @ first(k).narrow(0, 0, 8).float().t(),
        {},
    ),
    # converting closes the gaps between the rows that are left, the halves keep them
    "with gaps that no view may have": (
        lambda q, k, v, m: (
            q.select(0, 0).float()
            @ aten.view(v.narrow(3, 0, 32).float(), (12, 64, 80)).narrow(0, 0, 6)
        ),
        {},
    ),
    "in double": (lambda q, k, v, m: q.select(0, 0).double() @ k.select(0, 0).double().mT, {}),
}


@pytest.mark.parametrize("name", LEFT)
def test_everything_else_stays_as_it_is(name: str) -> None:
    function, how = LEFT[name]
    module = traced(function, **how)
    before = products(module)
    assert multiply_halves(module) == 0
    assert products(module) == before
