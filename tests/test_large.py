"""Memory of large tensors: used again when nobody holds it, and only then."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fusec
from fusec.runtime import large
from fusec.runtime.large import KEPT_BYTES, MOST_BYTES, empty_large, release_large

COUNT = KEPT_BYTES // 4


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    release_large()
    yield
    release_large()


def make(count: int = COUNT, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return empty_large((count,), (1,), dtype)


def test_memory_is_used_again_for_any_shape_and_type_of_its_size() -> None:
    first = make()
    place = first.data_ptr()
    del first
    second = empty_large((2, COUNT), (COUNT, 1), torch.float16)
    assert second.data_ptr() == place
    assert (second.shape, second.dtype) == ((2, COUNT), torch.float16)
    assert second.untyped_storage().nbytes() == KEPT_BYTES
    assert not second.requires_grad
    third = make()
    assert third.data_ptr() != place


@pytest.mark.parametrize(
    "hold",
    [
        lambda t: t,
        lambda t: t[5:7],
        lambda t: t.numpy(),
        lambda t: t.untyped_storage(),
        lambda t: t.view(torch.int32).detach(),
        torch.utils.dlpack.to_dlpack,
        lambda t: memoryview(t.numpy()),
    ],
    ids=["tensor", "view", "array", "storage", "other type", "dlpack", "buffer"],
)
def test_what_anybody_holds_is_left_alone(hold: Callable[[torch.Tensor], Any]) -> None:
    first = make()
    place = first.data_ptr()
    held = hold(first)
    del first
    assert make().data_ptr() != place
    del held
    assert place in [make().data_ptr(), make().data_ptr()] or place in {
        block.storage.data_ptr() for block in large._kept.blocks
    }


def test_other_sizes_have_other_memory() -> None:
    first = make()
    place = first.data_ptr()
    del first
    other = make(COUNT + 1)
    assert other.untyped_storage().nbytes() == KEPT_BYTES + 4
    assert make().data_ptr() == place


def test_resized_or_shared_memory_is_given_up() -> None:
    first = make()
    first.untyped_storage().resize_(8)
    del first
    assert make().untyped_storage().nbytes() == KEPT_BYTES
    release_large()
    second = make()
    second.share_memory_()
    place = second.data_ptr()
    del second
    assert make().data_ptr() != place


def test_small_ones_and_too_large_ones_are_not_kept() -> None:
    make(COUNT - 1)
    make(MOST_BYTES // 4 + 1)
    empty_large((0, COUNT * 2), (COUNT * 2, 1), torch.float32)
    assert not large._kept.blocks


def test_no_more_is_kept_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "MOST_BYTES", 2 * KEPT_BYTES)
    tensors = [make() for _ in range(4)]
    assert len({t.data_ptr() for t in tensors}) == 4
    assert sum(block.size for block in large._kept.blocks) == 2 * KEPT_BYTES


def test_what_nobody_asks_for_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(large.time, "monotonic", lambda: now[0])
    held = make()
    make(COUNT + 1)
    assert len(large._kept.blocks) == 2
    now[0] = large.MOST_SECONDS + 1
    make(COUNT + 2)
    assert [block.size for block in large._kept.blocks] == [KEPT_BYTES, KEPT_BYTES + 8]
    assert held.numel() == COUNT


def test_results_of_calls_do_not_share_memory_and_later_calls_do_not_fault() -> None:
    compiled = fusec.compile(lambda x: x * 2 + 1)
    x = torch.randn(COUNT)
    first, second = compiled(x), compiled(x + 1)
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, x * 2 + 1)
    assert torch.equal(second, (x + 1) * 2 + 1)
    kept = first.clone()
    for _ in range(3):
        compiled(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        compiled(x)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 32
    assert torch.equal(first, kept)


def test_gradients() -> None:
    x = torch.randn(COUNT, requires_grad=True)
    compiled = fusec.compile(lambda x: x.sin() * 2)
    for _ in range(3):
        y = compiled(x)
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
        # in float64: torch's own first sine of a process is at times wrong in a thread's share
        exact = x.detach().double()
        torch.testing.assert_close(y.double(), exact.sin() * 2, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(gradient.double(), exact.cos() * 2, rtol=1e-6, atol=1e-6)


def test_who_watches_operations_sees_none_of_it() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    make()
    with Watch():
        make()
    assert torch.ops.aten.set_.source_Storage_storage_offset not in seen


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_transforms(transform: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        make(), make()
        return (x * x).sum()

    make()
    transform(function)(torch.ones(2, 3) if transform is torch.func.vmap else torch.ones(3))


def test_inference_mode_and_what_follows_it() -> None:
    with torch.inference_mode():
        first = make()
        place = first.data_ptr()
        del first
        assert make().data_ptr() == place
    second = make()
    assert second.data_ptr() == place
    assert not second.is_inference()
    second.requires_grad_().sum().backward()
