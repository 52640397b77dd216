"""Inputs that are updated and share memory with others, in some calls and not in others.

No guard of TorchDynamo's tells such calls apart; ``aot_eager`` is silently wrong where the first
call's inputs shared memory otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusec
from fusec.call import native
from fusec.capture.inputs.shared_inputs import sharing_elements

Make = Callable[[], tuple[Tensor, Tensor]]


def memory() -> Tensor:
    return torch.arange(12.0)


WAYS: dict[str, Make] = {
    "apart": lambda: (memory()[:6], memory()[:6]),
    "side by side": lambda: ((b := memory())[:6], b[6:]),
    "the same": lambda: ((b := memory())[:6], b[:6]),
    "one after": lambda: ((b := memory())[:6], b[1:7]),
    "one before": lambda: ((b := memory())[1:7], b[:6]),
    "the last one": lambda: ((b := memory())[:6], b[5:11]),
    "all of it": lambda: (b := torch.arange(6.0), b.view(6)),
}


def update(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x * y


def update_last(x: Tensor, y: Tensor) -> Tensor:
    z = x.sin() + y
    y.mul_(z)
    return z + x


def update_both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.copy_(y.flip(0))
    y.mul_(2)
    return x + y, x


def read(x: Tensor, y: Tensor) -> Tensor:
    return x * y + x


def check(function: Callable[..., Any], calls: Sequence[Make], **options: Any) -> Any:
    """Compare calls with eager: what they return, and what all of the memory holds then."""
    torch._dynamo.reset()
    compiled = fusec.compile(function, **options)
    for make in calls:
        (mine, theirs), found = (make(), make()), []
        for call, given in ((function, theirs), (compiled, mine)):
            results = call(*given)
            whole = [t if t._base is None else t._base for t in given]
            found.append([*(results if isinstance(results, tuple) else (results,)), *whole])
        for got, wanted in zip(*found, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
    return compiled


@pytest.mark.sample(1)
@pytest.mark.parametrize("function", [update, update_last, update_both], ids=lambda f: f.__name__)
@pytest.mark.parametrize("first", WAYS)
def test_calls_that_share_memory_otherwise(first: str, function: Callable[..., Any]) -> None:
    for dynamic in (False, True):
        check(function, [WAYS[first], *WAYS.values(), WAYS[first]], dynamic=dynamic)


@pytest.mark.parametrize("first", ["apart", "one after"])
def test_without_native_code(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "types", lambda: None)
    check(update, [WAYS[first], *WAYS.values()])


def test_what_is_only_read_may_share_memory() -> None:
    """It stays compiled, and in the same kernel."""
    compiled = check(read, [*WAYS.values()])
    (graph,) = compiled.graphs
    assert not graph.fallback
    assert not any(part.changes_some_of((0, 1), 2) for part in graph.parts)


@pytest.mark.sample(3)
@pytest.mark.parametrize("first", WAYS)
def test_gradients_of_what_reads_updated_memory(first: str) -> None:
    """As of a layer that counts in a buffer, which a caller also gives it."""
    layer, other = nn.Linear(6, 6), nn.Linear(6, 6)
    other.load_state_dict(layer.state_dict())

    def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return (net(x) * y).sum()

    torch._dynamo.reset()
    compiled = fusec.compile(loss)
    for make in (WAYS[first], *WAYS.values()):
        for call, net in ((loss, other), (compiled, layer)):
            net.zero_grad()
            call(net, *make()).backward()
        for got, wanted in zip(layer.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-5, atol=1e-5)


def test_what_is_said_to_share_memory() -> None:
    b, other = memory(), memory()
    assert not sharing_elements((b[:6], b[6:], 3, other))
    assert not sharing_elements((b[:6], other[:6], b[6:6], b.to_sparse()))
    assert not sharing_elements((b[:6], b.view(torch.int32)[6:]))
    assert sharing_elements((other, b[:6], 3, b[5:])) == {1, 3}
    assert sharing_elements((b, b[:2], b[8:], other, other[1:])) == {0, 1, 2, 3, 4}
    assert sharing_elements((b[:6], b.view(torch.int16)[11:])) == {0, 1}
    assert sharing_elements((b.view(3, 4)[:, 0], b[8:])) == {0, 1}
    assert not sharing_elements((b.view(3, 4)[:, 0], b[9:]))


def test_what_is_updated_alone_is_compiled_whatever_the_others_share() -> None:
    def function(x: Tensor, y: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        return x * y + count

    compiled = fusec.compile(function)
    for _ in range(3):
        b, count = memory(), torch.zeros(6)
        assert torch.equal(compiled(b[:6], b[3:9], count), b[:6] * b[3:9] + 1)
        assert torch.equal(count, torch.ones(6))
    (graph,) = compiled.graphs
    assert not graph.fallback


@pytest.mark.parametrize("count", [3, 8, 9, 20])
def test_one_of_many_inputs_shares_memory_with_what_is_updated(count: int) -> None:
    def function(first: Tensor, *others: Tensor) -> Tensor:
        first.add_(1)
        return torch.stack(others).sum(0) * first

    compiled = fusec.compile(function)
    for shared in (None, None, *range(count - 1), None):
        results = []
        for call in (compiled, function):
            memory = [torch.arange(12.0) + n for n in range(count)]
            inputs = [each[:6] for each in memory]
            if shared is not None:
                inputs[shared + 1] = memory[0][2:8]
            results.append((call(*inputs), torch.stack(memory)))
        for got, wanted in zip(*results, strict=True):
            assert torch.equal(got, wanted), shared
    assert not compiled.graphs[0].fallback
