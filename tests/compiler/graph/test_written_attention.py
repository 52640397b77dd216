"""Attention as formulas have it: what is recognized, what is left alone."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import fusec
from support.compare import difference


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def divided(q, k, v):
    return ((q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def scaled_before(q, k, v):
    weights = F.softmax(torch.matmul(q * 0.25, k.mT), dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(F.dropout(weights, 0.1, False), v)


def of_three_dimensions(q, k, v):
    scores = torch.bmm(q[0], k[0].transpose(1, 2)).mul(0.3)
    return torch.bmm(torch.softmax(scores, dim=2), v[0]) * 2


def filled(q, k, v):
    later = torch.ones(8, 8, dtype=torch.bool, device=q.device).triu(1)
    scores = q @ k.transpose(-2, -1) / 4
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


def chosen(q, k, v):
    places = torch.arange(8, device=q.device)
    seen = places[:, None] >= places[None, :]
    return torch.where(seen, q @ k.mT, -float("inf")).softmax(-1) @ v


def added(q, k, v):
    mask = torch.full((8, 8), float("-inf"), device=q.device, dtype=q.dtype).triu(1)
    return F.softmax(q @ k.mT * 0.25 + mask, dim=-1) @ v


def twice(q, k, v):
    return divided(divided(q, k, v), k, v)


def weights_are_returned(q, k, v):
    weights = (q @ k.transpose(-2, -1)).softmax(-1)
    return weights @ v, weights


def along_columns(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-2) @ v


def drops(q, k, v):
    return F.dropout((q @ k.transpose(-2, -1)).softmax(-1), 0.5, True).relu() @ v


def masked(q, k, v):
    scores = q @ k.transpose(-2, -1)
    return scores.masked_fill(q[..., :1] > 0, -3.0).softmax(-1) @ v


def earlier(q, k, v):
    """Keys from the query's own on; the last sees itself alone."""
    seen = torch.ones(8, 8, dtype=torch.bool, device=q.device).triu()
    return (q @ k.mT).masked_fill(~seen, float("-inf")).softmax(-1) @ v


def barely(q, k, v):
    later = torch.ones(8, 8, dtype=torch.bool, device=q.device).triu(1)
    return (q @ k.mT).masked_fill(later, -5.0).softmax(-1) @ v


def not_turned(q, k, v):
    return (q @ k.reshape(2, 4, 16, 8)).softmax(-1) @ v


def shared_by_all(q, k, v):
    return (q @ k[0].transpose(-2, -1)).softmax(-1) @ v


def tensors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(2, 4, 8, 16, generator=generator).to(dtype) for _ in range(3)]


def calls(compiled) -> int:
    externs = [e for graph in compiled.graphs for e in graph.externs]
    return sum("attention" in e.reason for e in externs)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("function", "count"),
    [
        (divided, 1),
        (scaled_before, 1),
        (of_three_dimensions, 1),
        (twice, 2),
        (filled, 1),
        (chosen, 1),
        (added, 1),
    ],
)
def test_is_one_call(function, count: int, dtype: torch.dtype) -> None:
    compiled = fusec.compile(function, target="triton")
    given = tensors(dtype)
    exact = function(*(t.double() for t in given))
    own = compiled(*given)
    assert own.dtype == dtype
    usual = float((function(*given).double() - exact).abs().max())
    assert float((own.double() - exact).abs().max()) <= 2 * usual + 1e-6
    assert calls(compiled) == count


@pytest.mark.triton
@pytest.mark.parametrize("function", [divided, of_three_dimensions, scaled_before])
def test_results_lie_as_in_eager(function) -> None:
    """Heads are mostly views of rows: attention hands out such a view, a product does not."""
    given = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors()]
    compiled = fusec.compile(lambda *t: (function(*t), function(*t).view(-1)), target="triton")
    results, wanted = compiled(*given), function(*given)
    assert calls(compiled)
    assert results[0].stride() == wanted.stride()
    for own in results:
        assert float((own.view_as(wanted) - wanted).abs().max()) < 1e-5


@pytest.mark.triton
def test_deterministic_mode_keeps_it() -> None:
    compiled = fusec.compile(divided, target="triton")
    torch.use_deterministic_algorithms(True)
    try:
        assert not difference(compiled(*tensors()), divided(*tensors()))
        assert calls(compiled) == 0
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.triton
@pytest.mark.parametrize(
    "function",
    [weights_are_returned, along_columns, masked, earlier, barely, not_turned, shared_by_all],
)
def test_anything_else_is_left_alone(function) -> None:
    compiled = fusec.compile(function, target="triton")
    given = tensors()
    assert not difference(compiled(*given), function(*given))
    assert calls(compiled) == 0


def biased(q, k, v):
    return (q @ k.transpose(-2, -1) / 4 + q[..., :1]).softmax(-1) @ v


@pytest.mark.triton
@pytest.mark.parametrize(("function", "name"), [(masked, "masked_fill"), (biased, "add")])
def test_what_stands_between_is_said(function, name: str) -> None:
    compiled = fusec.compile(function, target="triton")
    compiled(*tensors())
    reasons = [e.reason for graph in compiled.graphs for e in graph.externs]
    assert sum(f"left as written: {name} changes scores" in each for each in reasons) == 1
    plain = fusec.compile(function)
    plain(*tensors())
    assert "left as written" not in str([g.externs for g in plain.graphs])


@pytest.mark.triton
def test_dropout_is_left_alone() -> None:
    compiled = fusec.compile(drops, target="triton")
    compiled(*tensors())
    assert calls(compiled) == 0


@pytest.mark.triton
def test_eagers_roundings_and_processors_keep_it() -> None:
    for options in ({"target": "triton", "emulate_rounding": True}, {}):
        torch._dynamo.reset()
        compiled = fusec.compile(divided, **options)
        assert not difference(compiled(*tensors()), divided(*tensors()))
        assert calls(compiled) == 0


def test_gradients() -> None:
    def gradients(function):
        given = [t.requires_grad_() for t in tensors()]
        return torch.autograd.grad(function(*given).sin().sum(), given)

    compiled = fusec.compile(divided, target="triton")
    for own, wanted in zip(gradients(compiled), gradients(divided), strict=True):
        assert float((own - wanted).abs().max()) < 1e-5
    assert calls(compiled) == 2
