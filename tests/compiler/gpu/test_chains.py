"""Kernels in a row as one launch, on a GPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fusec
from fusec.call import native
from fusec.device import driver as device_machine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


@pytest.fixture(params=["always", "measured"], autouse=True)
def chains(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Join kernels in either way."""
    torch._dynamo.reset()
    if native.types(wait=True) is None:
        pytest.skip(f"no native part: {native.problem()}")
    monkeypatch.setenv("FUSEC_GPU_CHAINS", request.param)
    device_machine._machine.cache_clear()
    yield request.param
    device_machine._machine.cache_clear()


def several(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Some kernels with memory of their own between them, and a product by BLAS."""
    columns = (x * 2).sum(0)
    normal = torch.nn.functional.layer_norm(x + columns, x.shape[-1:])
    product = normal @ w
    return product.softmax(-1), (product - columns[: w.shape[1]]).amax(0)


def given(rows: int = 3000) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 700, device="cuda"), torch.randn(700, 512, device="cuda") / 26


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=2e-3)


def test_results_stay_right_while_both_ways_are_tried() -> None:
    compiled = fusec.compile(several)
    kept = []
    for number in range(40):
        x, w = given(3000 if number % 3 else 500)
        found = compiled(x, w)
        kept.append((found, several(x, w)))
    for found, wanted in kept:  # and later calls overwrote none of them
        close(found, wanted)


def test_a_graph_that_the_user_captures() -> None:
    compiled = fusec.compile(several)
    x, w = given()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(30):
            compiled(x, w)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compiled(x, w)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        close(found, several(x, w))
        close(compiled(x, w), several(x, w))


def test_streams_and_threads() -> None:
    compiled = fusec.compile(several)
    compiled(*given())
    wrong: list[object] = []

    def work() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(25):
                x, w = given()
                found, wanted = compiled(x, w), several(x, w)
                stream.synchronize()
                try:
                    close(found, wanted)
                except AssertionError as error:
                    wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_updates_side_by_side() -> None:
    shapes = [(2000, 900), (2000, 900), (1500, 1024), (70,), (900, 3000)]

    def step(p: list[torch.Tensor], g: list[torch.Tensor], m: list[torch.Tensor]) -> torch.Tensor:
        torch._foreach_lerp_(m, g, 0.1)
        torch._foreach_addcmul_(p, m, g, -0.5)
        return p[0].sum() + p[3].sum()

    def tensors() -> list[torch.Tensor]:
        return [torch.randn(shape, device="cuda") for shape in shapes]

    p, m = tensors(), tensors()
    p2, m2 = [t.clone() for t in p], [t.clone() for t in m]
    compiled = fusec.compile(step)
    for _ in range(30):
        g = tensors()
        torch.testing.assert_close(compiled(p, g, m), step(p2, g, m2), atol=0.5, rtol=1e-3)
    for mine, wanted in zip(p + m, p2 + m2, strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.skipif(
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1,
    reason="tests beside this one take memory of the same card",
)
def test_memory_is_given_back() -> None:
    def count() -> int:
        return torch.cuda.mem_get_info()[0]

    def use() -> None:
        compiled = fusec.compile(several)
        for _ in range(25):
            compiled(*given(200))

    use()
    torch.cuda.synchronize()
    before = count()
    for _ in range(10):
        torch._dynamo.reset()
        use()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert before - count() < 64 << 20
