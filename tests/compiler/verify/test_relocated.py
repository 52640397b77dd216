"""Calls in other places: a kernel that asks for an address meets many of them."""

from __future__ import annotations

import ctypes
import threading

import pytest
import torch

from fusec.systems import this_system
from fusec.target_api.library_worker import LibraryCandidate
from fusec.verify.guard import Area
from fusec.verify.isolation.operands import InArea, TensorSpec
from fusec.verify.isolation.relocated import ELSEWHERE, Relocated
from support import handwritten_kernels as vk

pytestmark = pytest.mark.posix("memory that may not be touched")
N = 1000


def operand(name, role):
    return TensorSpec(name, "float32", "float", 4, (N,), (1,), role, 0, 4 * N, -1)


OPERANDS = [operand("x", "in"), operand("out", "out")]


class Copies:
    """Stands for a kernel that copies, and is wrong where ``asks`` says so."""

    def __init__(self, asks):
        self.asks, self.seen, self.stacks = asks, [], set()

    def __call__(self, arguments, sizes, threads):
        x, out = arguments
        self.seen.append((x.address, out.address, threads))
        self.stacks.add(threading.get_ident())
        ctypes.memmove(out.address, x.address, 4 * N)
        if self.asks(x.address, out.address, threads):
            ctypes.memset(out.address, 1, 4)
        return 0


def differing(kernel, teams=()):
    """Return the labels of the calls that differ from what is right."""
    given = torch.arange(float(N))
    right = Area("out", given.data_ptr(), 4 * N, given.data_ptr(), 4 * N)
    places = Relocated(
        kernel,
        OPERANDS,
        [given.data_ptr(), 0],
        [right, right],
        lambda areas: list(map(InArea, OPERANDS, areas)),
        (N,),
    )
    return [label for label, _ in places.differing(1, teams, lambda: None)]


def test_a_kernel_that_asks_for_nothing_differs_nowhere():
    kernel = Copies(lambda x, out, threads: False)
    assert differing(kernel, (3, 5)) == []
    assert [threads for *_, threads in kernel.seen[-3:]] == [1, 3, 5]
    assert len(kernel.stacks) > 1
    # As torch aligns them, on odd pages and even ones, side by side and far apart.
    assert all(x % 64 == out % 64 == 0 for x, out, _ in kernel.seen)


def test_what_asks_for_a_page_differs_somewhere(monkeypatch):
    monkeypatch.setattr("fusec.verify.isolation.relocated._LEAST", 64)
    for asks in (
        lambda x, out, threads: x >> 12 & 1,
        lambda x, out, threads: out >> 7 & 1,
        lambda x, out, threads: x < out,
        lambda x, out, threads: abs(x - out) > 1 << 32,
        lambda x, out, threads: abs(x - out) < 1 << 16,
    ):
        found = differing(Copies(asks))
        assert set(found) == {ELSEWHERE}
        assert len(found) < 64


def test_what_asks_for_a_number_of_threads_differs_with_it():
    found = differing(Copies(lambda x, out, threads: threads == 7), (4, 7))
    assert found == ["with 7 threads"]


@pytest.mark.linux("a library that is loaded by its descriptor")
def test_the_code_is_loaded_again_elsewhere_and_runs_on_a_stack_that_is_given():
    library = vk.build_library(vk.cpp(vk.RIGHT))
    first = LibraryCandidate(str(library), "scale")
    again = first.again()
    assert first._address != again._address
    tensors = vk.case(N).tensors
    x = tensors[0]
    right, found = (torch.zeros_like(tensors[-1]) for _ in range(2))

    class At:
        def __init__(self, tensor):
            self.address = tensor.data_ptr()

    def arguments(out):
        return [At(t) for t in (*tensors[:-1], out)]

    assert first(arguments(right), (N,), 1) == 0
    assert right.any()
    assert x.numel() == N
    stack = this_system().reserve(1 << 20, 1 << 40)
    this_system().open_pages(stack, 1 << 20)
    if not again.call_on(arguments(found), (N,), 1, (stack, 1 << 20)):
        pytest.skip("the C library has no contexts")
    assert torch.equal(found, right)
    this_system().release(stack, 1 << 20)
