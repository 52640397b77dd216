"""Cross-entropy of a linear layer within a budget of memory."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec
from fusec.errors import BadOption
from fusec.graph.losses import linear_cross_entropy
from fusec.graph.losses.linear_cross_entropy import rows_of_part
from fusec.options import Options, read_bytes

ROWS, WIDTH, COLUMNS = 37, 24, 101
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def plain(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w), t)


def summed(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w, b), t, reduction="sum", ignore_index=-100)


def smoothed(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy((x @ w.t()).float(), t, label_smoothing=0.1)


def shifted(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(x[None], w, b)
    return F.cross_entropy(logits[:, :-1].reshape(-1, COLUMNS).float(), t[1:])


def scaled(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return 0.3 * F.cross_entropy(F.linear(2 * x, w, b).float(), t)


LOSSES = (plain, summed, smoothed, shifted, scaled)


def tensors(dtype: torch.dtype) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    x, w, b = torch.randn(ROWS, WIDTH), torch.randn(COLUMNS, WIDTH) / 4, torch.randn(COLUMNS)
    target = torch.randint(0, COLUMNS, (ROWS,))
    target[20] = -100
    return *(each.to(dtype).requires_grad_() for each in (x, w, b)), target


def gradients(function: Any, given: tuple[Tensor, ...]) -> list[Tensor]:
    loss = function(*given)
    found = torch.autograd.grad(loss, given[:3], allow_unused=True)
    return [loss.detach(), *(each for each in found if each is not None)]


def in_parts(function: Any, **options: Any) -> Any:
    """A budget of eleven rows' logits in float32."""
    return fusec.compile(function, memory_budget=11 * COLUMNS * 4, **options)


def is_in_parts(compiled: Any) -> bool:
    return "linear_cross_entropy" in str(compiled.graphs[0].externs)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", LOSSES, ids=lambda f: f.__name__)
def test_losses_and_gradients(function: Any, dtype: torch.dtype) -> None:
    given = tensors(dtype)
    compiled = in_parts(function)
    result = gradients(compiled, given)
    assert is_in_parts(compiled)
    assert " rows at a time" in str(compiled.graphs[0].externs)
    exact = gradients(
        function,
        tuple(t.detach().double().requires_grad_() if t.is_floating_point() else t for t in given),
    )
    theirs = gradients(function, given)
    assert [r.dtype for r in result] == [t.dtype for t in theirs]
    for own, their, truth in zip(result, theirs, exact, strict=True):
        assert own.shape == truth.shape
        allowed = 2 * (their.double() - truth).abs().max()
        allowed += 4 * torch.finfo(dtype).eps * truth.abs().max()
        assert (own.double() - truth).abs().max() <= allowed


def test_a_second_backward_gives_the_same() -> None:
    given = tensors(torch.float32)
    loss = in_parts(scaled)(*given)
    first = torch.autograd.grad(loss, given[:3], retain_graph=True)
    kept = [each.clone() for each in first]
    second = torch.autograd.grad(loss, given[:3], retain_graph=True)
    third = torch.autograd.grad(loss, given[:3])
    for a, b, c in zip(kept, second, third, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    for a, b in zip(kept, first, strict=True):
        assert torch.equal(a, b), "what was given away is not changed"


@pytest.fixture
def overwritten(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the addresses of what is multiplied in its own place from now on."""
    places: list[int] = []
    multiply = linear_cross_entropy.multiply_in_place

    def noted(x: Tensor, factor: Tensor) -> None:
        places.append(x.data_ptr())
        multiply(x, factor)

    monkeypatch.setattr(linear_cross_entropy, "multiply_in_place", noted)
    return places


def test_the_last_backward_needs_no_more_memory(overwritten: list[int]) -> None:
    given, compiled = tensors(torch.float32), in_parts(scaled)
    found = torch.autograd.grad(compiled(*given), given[:3], retain_graph=True)
    assert not overwritten, "it may be asked for again"
    last = torch.autograd.grad(compiled(*given), given[:3])
    assert {each.data_ptr() for each in last[1:]} <= set(overwritten)
    for a, b in zip(found, last, strict=True):
        assert torch.equal(a, b)


def test_what_somebody_else_is_given_is_not_overwritten(overwritten: list[int]) -> None:
    given, compiled = tensors(torch.float32), in_parts(scaled)
    saved: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = compiled(*given)
    before = [each.clone() for each in saved]
    torch.autograd.grad(loss, given[:3])
    assert not overwritten
    assert all(torch.equal(a, b) for a, b in zip(saved, before, strict=True))


def test_what_is_multiplied_twice_within_a_backward_is_multiplied_once() -> None:
    """A graph's program runs twice when a plan of it is made on a GPU."""
    results: list[Tensor] = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(torch.arange(4.0))
            linear_cross_entropy._own(*ctx.saved_tensors)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            for _ in range(3):
                results.append(
                    torch.ops.fusec.scaled_gradient(*ctx.saved_tensors, torch.tensor(3.0))
                )
            return gradient

    Twice.apply(torch.ones(1, requires_grad=True)).sum().backward()
    assert len(results) == 3
    for each in results:
        assert torch.equal(each, torch.arange(4.0) * 3)


def test_scaling_changes_nothing_in_place() -> None:
    """A graph's program runs twice when a plan of it is made on a GPU, within one backward."""
    results = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.kept = torch.arange(4.0)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            for _ in range(2):
                result = torch.ops.fusec.scaled_gradient(ctx.kept, torch.tensor(3.0))
                results.append(result.clone())
                result.zero_()
            return gradient

    Twice.apply(torch.ones(1, requires_grad=True)).sum().backward()
    for each in results:
        assert torch.equal(each, torch.arange(4.0) * 3)


def test_gradients_add_up_over_steps() -> None:
    given = tensors(torch.float32)
    compiled = in_parts(summed)
    compiled(*given).backward()
    compiled(*given).backward()
    wanted = gradients(summed, given)
    for each, once in zip(given[:3], wanted[1:], strict=True):
        torch.testing.assert_close(each.grad, 2 * once, rtol=1e-4, atol=1e-4)


def test_a_layer_under_autocast_with_a_frozen_weight() -> None:
    layer = nn.Linear(WIDTH, COLUMNS)
    layer.weight.requires_grad_(False)
    x, _, _, target = tensors(torch.float32)

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(layer(x), target)

    compiled = in_parts(loss)
    with torch.autocast("cpu", torch.bfloat16):
        own, their = compiled(x), loss(x)
    assert is_in_parts(compiled)
    assert own.dtype == their.dtype == torch.float32
    torch.testing.assert_close(own, their, rtol=1e-2, atol=1e-2)
    given = (x, layer.bias)
    for a, b in zip(
        torch.autograd.grad(own, given), torch.autograd.grad(their, given), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-3)


def test_inference_and_nothing_that_counts() -> None:
    x, w, b, target = (t.detach() for t in tensors(torch.float32))
    compiled = in_parts(summed)
    torch.testing.assert_close(compiled(x, w, b, target), summed(x, w, b, target))
    target.fill_(-100)
    own = in_parts(plain)(x, w, b, target)
    assert own.isnan()
    assert plain(x, w, b, target).isnan()


def test_infinities_and_nan_are_eagers() -> None:
    x, w, b, target = tensors(torch.float32)
    with torch.no_grad():
        x[4, 3], x[9, 1] = float("inf"), float("nan")
    own, their = (
        gradients(in_parts(summed), (x, w, b, target)),
        gradients(summed, (x, w, b, target)),
    )
    for a, b in zip(own, their, strict=True):
        assert torch.equal(a.isnan(), b.isnan())


def test_what_is_left_whole_says_why() -> None:
    x, w, b, target = tensors(torch.float32)

    def read_elsewhere(x: Tensor, w: Tensor, target: Tensor) -> Any:
        logits = F.linear(x, w)
        return F.cross_entropy(logits, target), logits.argmax(1)

    def weighted(x: Tensor, w: Tensor, target: Tensor) -> Any:
        return F.cross_entropy(F.linear(x, w), target, weight=w[:, 0].detach().abs())

    for function in (read_elsewhere, weighted):
        compiled = in_parts(function)
        compiled(x, w, target)
        assert not is_in_parts(compiled)
        assert "whole, whatever the budget" in str(compiled.graphs[0].externs)
    enough = fusec.compile(plain, memory_budget="1MiB")
    enough(x, w, b, target)
    assert not is_in_parts(enough)


def test_a_target_that_is_no_column_raises() -> None:
    x, w, b, target = tensors(torch.float32)
    target[7] = COLUMNS
    with pytest.raises(IndexError, match="out of bounds"):
        in_parts(plain)(x, w, b, target)


def test_parts_fit_a_budget() -> None:
    assert rows_of_part(4096, 128256, 2, 400 << 20) == 1408
    assert rows_of_part(4096, 128256, 2, 1) == 1
    assert rows_of_part(10, 10, 4, 1 << 20) == 10
    for rows, budget in ((1000, 1 << 16), (4096, 3 << 20), (513, 200_000)):
        step = rows_of_part(rows, 300, 4, budget)
        assert step * 300 * 4 <= budget
        assert -(-rows // step) == -(-rows // (budget // 1200)) or step % 128 == 0


def test_budgets_are_read() -> None:
    assert read_bytes("400MiB") == 400 << 20
    assert read_bytes("0.5 GB") == 500_000_000
    assert read_bytes(77) == 77
    assert Options(memory_budget="1kb").budget == 1000
    for wrong in ("many", 0, -5, "12 bits", True, "1.2.3MB"):
        with pytest.raises(BadOption, match="memory_budget"):
            Options(memory_budget=wrong)


@pytest.mark.parametrize("wanted", [0, 1])
def test_gradients_that_nobody_wants_are_not_computed(
    wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, _, target = tensors(torch.float32)
    asked: list[int] = []
    compute = linear_cross_entropy._compiled[linear_cross_entropy.gradients_of_part]

    def noted(*given: Any) -> Any:
        asked.append(len(given))
        return compute(*given)

    monkeypatch.setitem(
        linear_cross_entropy._compiled, linear_cross_entropy.gradients_of_part, noted
    )
    more = (None, target, -100, 0.0, True, 1 << 20, wanted)
    found, *_ = linear_cross_entropy._in_parts(x.detach(), weight.detach(), *more)
    torch.testing.assert_close(found, F.cross_entropy(x @ weight.t(), target), rtol=1e-5, atol=1e-5)
    assert bool(asked) is bool(wanted)


@pytest.mark.parametrize("hooked", [False, True])
def test_what_is_saved_for_backward_alone(hooked: bool) -> None:
    """Not where somebody is given what is saved, nor where somebody is to be once it runs."""
    kept = torch.ones(3), torch.ones(2)
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
        if hooked
        else (contextlib.nullcontext())
    ):
        traced = torch._C._autograd._saved_tensors_hooks_set_tracing(hooked)
        linear_cross_entropy._own(*kept)
        torch._C._autograd._saved_tensors_hooks_set_tracing(traced)
    assert [hasattr(each, linear_cross_entropy._OWN) for each in kept] == [not hooked] * 2
