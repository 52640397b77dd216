"""Memory of large tensors: used again when nobody holds it, and only then."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fusec
from fusec.call import huge_pages as memory
from fusec.call import native
from fusec.call.huge_pages import POOLED_BYTES, counted, empty_large, release
from support.waiting import wait_for

pytestmark = pytest.mark.linux("the memory pool and large pages")
COUNT = 8 << 20  # elements of float32: 32 MiB
SIZE = 4 * COUNT


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    native.types(wait=True)
    assert not memory.part.problem
    release()
    yield
    release()


def make(count: int = COUNT, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return empty_large((count,), (1,), dtype)


def test_memory_is_used_again_for_any_shape_and_type_of_its_size() -> None:
    first = make()
    place = first.data_ptr()
    assert counted() == (SIZE, 0)
    del first
    assert counted() == (0, SIZE)
    second = empty_large((2, COUNT), (COUNT, 1), torch.float16)
    assert second.data_ptr() == place
    assert (second.shape, second.dtype) == ((2, COUNT), torch.float16)
    assert second.untyped_storage().nbytes() == SIZE
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
    assert counted() == (SIZE, 0)
    assert make().data_ptr() != place
    del held
    assert counted() == (0, 2 * SIZE)
    assert place in [tensor.data_ptr() for tensor in (make(), make())]


def test_nearly_equal_sizes_share_memory_and_others_do_not() -> None:
    place = make().data_ptr()
    assert make(COUNT - 5).data_ptr() == place
    assert make(COUNT - 5).untyped_storage().nbytes() == SIZE - 20
    larger, smaller = make(COUNT + 1), make(COUNT // 2)
    assert place not in (larger.data_ptr(), smaller.data_ptr())
    assert make().data_ptr() == place


def test_resized_or_shared_memory() -> None:
    first = make()
    first.fill_(3)
    first.untyped_storage().resize_(8)
    assert first.untyped_storage().nbytes() == 8
    second = make()
    second.fill_(4)
    second.share_memory_()
    assert counted()[0] == 0
    third = make()
    third.fill_(5)
    assert (second == 4).all()


def test_only_large_ones_and_only_in_compiled_graphs() -> None:
    small = empty_large((POOLED_BYTES // 4 - 1,), (1,), torch.float32)
    nothing = empty_large((0, COUNT), (COUNT, 1), torch.float32)
    eager = torch.empty(COUNT)
    assert counted() == (0, 0)
    assert (small.numel(), nothing.numel(), eager.numel()) == (POOLED_BYTES // 4 - 1, 0, COUNT)


def test_more_than_there_is_fails_as_ever() -> None:
    with pytest.raises(RuntimeError, match="memory"):
        make(1 << 60)
    assert make().numel() == COUNT


def test_no_more_is_kept_than_allowed() -> None:
    pool = memory.part.found
    assert pool is not None
    pool.limit(POOLED_BYTES, 2 * SIZE, 10.0)
    tensors = [make() for _ in range(4)]
    assert counted() == (4 * SIZE, 0)
    assert len({t.data_ptr() for t in tensors}) == 4
    tensors.clear()
    assert counted() == (0, 2 * SIZE)


def test_what_nobody_asks_for_is_given_back() -> None:
    pool = memory.part.found
    assert pool is not None
    pool.limit(POOLED_BYTES, 1 << 30, 0.2)
    held = make()
    make(COUNT + 1024)
    assert counted()[1] >= SIZE
    wait_for(lambda: not counted()[1])  # nobody calls anything
    assert counted() == (SIZE, 0)
    held.fill_(1)


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


def test_operators_of_aten_do_not_fault_either() -> None:
    compiled = fusec.compile(lambda x, w: torch.sort(torch.conv2d(x, w, padding=1).relu())[0])
    x, weight = torch.randn(1, 8, 256, 512), torch.randn(16, 8, 3, 3)
    with torch.no_grad():
        for _ in range(4):
            result = compiled(x, weight)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(4):
            result = compiled(x, weight)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        assert faults < 4 * result.nbytes / 4096 / 8
        wanted = torch.sort(torch.conv2d(x, weight, padding=1).relu())[0]
    torch.testing.assert_close(result, wanted)
    assert counted()[0] > 0  # the result


def test_an_error_in_a_call_ends_its_use() -> None:
    compiled = fusec.compile(lambda x, i: torch.sort(x * 2)[0][i])
    x = torch.randn(1 << 20)
    with pytest.raises((IndexError, RuntimeError)):
        compiled(x, torch.tensor([1 << 22]))
    before = counted()
    eager = torch.empty(COUNT)
    assert counted() == before
    assert eager.numel() == COUNT


def _in_child(answers: Any) -> None:
    tensor = make()
    tensor[:7].fill_(7)  # OpenMP's threads are not there any more
    del tensor
    answers.put((make().numel(), counted()))


def test_a_forked_child_has_a_pool_of_its_own() -> None:
    kept = make()
    kept.fill_(1)
    make(COUNT + 1024)
    before, _ = counted()  # with what earlier tests left in cycles
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=_in_child, args=(answers,), daemon=True)
    process.start()
    numel, (held, _) = answers.get(timeout=60)
    process.join(60)
    assert numel == COUNT
    assert held == before
    assert (kept == 1).all()


def test_the_profiler_sees_it() -> None:
    compiled = fusec.compile(lambda x: x * 2)
    x = torch.randn(COUNT)
    compiled(x)
    with torch.profiler.profile(profile_memory=True) as found:
        result = compiled(x)
    assert sum(e.self_cpu_memory_usage for e in found.key_averages()) >= result.nbytes


@pytest.mark.slow
def test_gradients() -> None:
    x = torch.randn(COUNT, requires_grad=True)
    compiled = fusec.compile(lambda x: x.sin() * 2)
    for _ in range(3):
        y = compiled(x)
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
        # in float64: torch's own first sine of a process is at times wrong in a thread's share
        exact = x.detach().double()
        torch.testing.assert_close(y.detach().double(), exact.sin() * 2, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient.double(), exact.cos() * 2, rtol=1e-5, atol=1e-6)


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
