"""Attention whose functions capture numbers that change from call to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import flex_attention

import fusec
from fusec.graph.simplify.attention_numbers import numbers_to_device
from support.attention import Sizes, prepare

SIZES = Sizes(1, 2, 2, 24, 24, 16)
ATTENTION = torch.ops.higher_order.flex_attention
COPY = torch.ops.aten._to_copy.default


@pytest.fixture(autouse=True)
def _prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch)


# What a score becomes, of a number and whether the key comes after the query.
FORMULAS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "soft cap": lambda s, n, later: n * torch.tanh(s / n),
    "half of it less one": lambda s, n, later: s * (n / 2 - 1) + 3 * n,
    "two steps": lambda s, n, later: torch.add(s, later.to(s.dtype), alpha=n) - n,
    "chosen": lambda s, n, later: torch.where(later, s, -n),
    "bounded": lambda s, n, later: torch.clamp(s, -n, n) + (s > n).to(s.dtype),
}


def attend(formula: str, number: float, *tensors: torch.Tensor) -> Any:
    """Return attention by a function that captures ``number``."""
    made = FORMULAS[formula]
    q, k, v = tensors
    return flex_attention(q, k, v, lambda s, b, h, i, j: made(s, number, j > i))


def exact(formula: str, number: float, *tensors: torch.Tensor) -> torch.Tensor:
    """Return it written out, in float64; TorchDynamo has no part in it."""
    q, k, v = tensors
    places = torch.arange(q.shape[2])
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return torch.softmax(FORMULAS[formula](scores, number, places > places[:, None]), -1) @ v


def gradients_of(result: torch.Tensor, tensors: tuple[torch.Tensor, ...]) -> Any:
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view_as(result)
    return torch.autograd.grad(result, tensors, weights)


@pytest.mark.triton
@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("formula", FORMULAS)
def test_a_number_that_changes_is_an_argument(formula: str, dtype: torch.dtype) -> None:
    compiled = fusec.compile(attend, target="triton")
    tensors = tuple(t.requires_grad_() for t in SIZES.tensors(dtype))
    wide = tuple(t.detach().double().requires_grad_() for t in tensors)
    for number in (1.5, 0.75, 2.5):
        own, wanted = compiled(formula, number, *tensors), exact(formula, number, *wide)
        pairs = [(own, wanted)]
        pairs += zip(gradients_of(own, tensors), gradients_of(wanted, wide), strict=True)
        for found, right in pairs:
            largest = float(right.abs().max())
            bound = 1e-5 if dtype == torch.float32 else 0.03
            assert float((found - right).abs().max()) < bound * max(largest, 1)
    assert len(compiled.graphs) == 2, "one for the first number, one for all others"
    assert not any(graph.externs for graph in compiled.graphs)


@pytest.mark.triton
def test_numbers_of_a_mask() -> None:
    compiled = fusec.compile(
        lambda far, q, k, v: flex_attention(
            q, k, v, lambda s, b, h, i, j: torch.where(i - j < far, s, -far)
        ),
        target="triton",
    )
    q, k, v = SIZES.tensors(torch.float32)
    distance = torch.arange(24)[:, None] - torch.arange(24)
    for far in (3.5, 7.0, 4.0):
        scores = torch.where(distance < far, q @ k.mT / 4, -far)
        wanted = torch.softmax(scores, -1) @ v
        assert float((compiled(far, q, k, v) - wanted).abs().max()) < 1e-5
    assert not any(graph.externs for graph in compiled.graphs)


@pytest.mark.triton
def test_division_by_a_number_that_may_be_zero_stays_torchs_own() -> None:
    compiled = fusec.compile(
        lambda n, q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s + 1 / n),
        target="triton",
    )
    tensors = SIZES.tensors(torch.float32)
    wanted = compiled(1.5, *tensors)  # the same is added to every score
    for number in (2.5, 3.5):
        assert float((compiled(number, *tensors) - wanted).abs().max()) < 1e-5
    (extern,) = compiled.graphs[-1].externs
    assert "computes truediv of a captured number" in extern.reason


@pytest.mark.parametrize(("device", "moved"), [("cuda", 1), ("cpu", 0)])
def test_numbers_are_copied_to_the_gpu_without_waiting(device: str, moved: int) -> None:
    graph = fx.Graph()
    with FakeTensorMode():
        kinds = (
            *([torch.empty(1, 2, 8, 16, device=device)] * 3),
            torch.empty((), dtype=torch.float64),
            torch.empty(4, device=device),
        )
    nodes = []
    for place, kind in enumerate(kinds):
        nodes.append(graph.placeholder(f"given{place}"))
        nodes[-1].meta["val"] = kind
    *qkv, number, table = nodes
    calls = [
        graph.call_function(ATTENTION, (*qkv, None, (), 0.1, {}, (number, table), captured))
        for captured in ((), (number,))
    ]
    backward = graph.call_function(
        torch.ops.higher_order.flex_attention_backward, (*qkv, None, {}, (number, table), ())
    )
    kept = kinds[-1]
    backward.meta["val"] = (*kinds[:3], (kinds[3], kept))
    graph.output((*calls, backward))
    assert numbers_to_device(fx.GraphModule({}, graph)) == moved
    copies = graph.find_nodes(op="call_function", target=COPY)
    assert len(copies) == moved
    (read,) = copies or [number]
    for call, captured in zip(calls, ((), (read,)), strict=True):
        assert call.args[-2:] == ((read, table), captured)
    for copy in copies:
        assert copy.kwargs["non_blocking"] is True
        assert copy.meta["val"].device.type == device
    assert backward.args[-2:] == ((read, table), ())
    *_, (of_number, of_table) = backward.meta["val"]
    assert of_table is kept
    assert (of_number is None) == bool(moved), "no result of the backward pass is on the CPU"
