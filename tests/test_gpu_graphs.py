"""On a GPU: calls through native plans, and as CUDA graphs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec
from fusec.runtime import native
from fusec.runtime.device_program import DeviceProgram
from fusec.runtime.graph_policy import MOST_GRAPHS
from fusec.runtime.steps import Start

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

CALLS = 6  # enough for a graph to be captured and replayed


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    monkeypatch.setenv("FUSEC_GPU_PLANS", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)
    assert native.types(wait=True) is not None, native.problem()


def softmax_of_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ y, -1)


def mixed(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Outputs of operators, of kernels, both read again."""
    h = F.gelu(x * 2)
    p = h @ w
    return p, h, (p + 1).relu(), p.sum(0)


def close(actual: Any, expected: Any) -> None:
    several = (actual, expected) if isinstance(expected, tuple | list) else ((actual,), (expected,))
    for a, e in zip(*several, strict=True):
        # a sum over columns adds up terms that are as large as the largest result
        scale = max(1.0, e.abs().max().item()) if e.numel() and e.is_floating_point() else 1.0
        torch.testing.assert_close(a, e, atol=2e-5 * scale, rtol=2e-5)


def programs(compiled: Any) -> list[DeviceProgram]:
    found = [part.native() for graph in compiled.graphs for part in graph.parts]
    assert all(isinstance(program, DeviceProgram) for program in found), compiled.explain()
    return found  # type: ignore[return-value]


def captured(compiled: Any) -> bool:
    return any("captured" in n for g in compiled.graphs for n in g.notes if "cannot" not in n)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("function", [softmax_of_product, mixed])
def test_calls_are_native_and_right(function: Any, graphs: bool) -> None:
    compiled = fusec.compile(function, cuda_graphs=graphs)
    with torch.no_grad():
        for _ in range(CALLS):
            x, y = torch.randn(100, 100, device="cuda"), torch.randn(100, 100, device="cuda")
            close(compiled(x, y), function(x, y))
    (program,) = programs(compiled)
    assert program.call.hits >= CALLS - 4
    assert captured(compiled) == graphs, compiled.explain()


@pytest.mark.parametrize("function", [softmax_of_product, mixed])
def test_outputs_are_never_overwritten(function: Any) -> None:
    compiled = fusec.compile(function, cuda_graphs=True)
    x, y = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    kept: list[Any] = []
    with torch.no_grad():
        for i in range(30):
            x.normal_()
            kept.append((compiled(x, y), function(x, y), i))
    assert captured(compiled), compiled.explain()
    for actual, expected, _ in kept:
        close(actual, expected)


def test_outputs_freed_and_kept_in_any_order() -> None:
    """While results die and live at random, and others allocate, nothing is mixed up."""
    compiled = fusec.compile(mixed, cuda_graphs=True)
    w = torch.randn(64, 64, device="cuda")
    alive: dict[int, Any] = {}
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for i in range(200):
            x = torch.randn(64, 64, device="cuda")
            alive[i] = compiled(x, w), mixed(x, w)
            if len(alive) > 8:
                gone = list(alive)[int(torch.randint(len(alive), (), generator=generator))]
                close(*alive.pop(gone))
    for actual, expected in alive.values():
        close(actual, expected)


def test_shapes_have_graphs_of_their_own_and_they_are_bounded() -> None:
    compiled = fusec.compile(softmax_of_product, cuda_graphs=True, dynamic=True)
    y = torch.randn(32, 48, device="cuda")
    with torch.no_grad():
        for size in range(3, 3 + MOST_GRAPHS + 3):
            for _ in range(CALLS):
                x = torch.randn(size, 32, device="cuda")
                close(compiled(x, y), softmax_of_product(x, y))
    assert captured(compiled), compiled.explain()
    assert all(program.call.plans <= MOST_GRAPHS for program in programs(compiled))


def test_streams_have_graphs_of_their_own() -> None:
    compiled = fusec.compile(mixed, cuda_graphs=True)
    w = torch.randn(256, 256, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(3)]
    inputs = [torch.randn(256, 256, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    outputs: list[list[Any]] = [[] for _ in streams]
    with torch.no_grad():
        for _ in range(20):
            for stream, x, out in zip(streams, inputs, outputs, strict=True):
                with torch.cuda.stream(stream):
                    out.append(compiled(x, w))
        torch.cuda.synchronize()
        for x, out in zip(inputs, outputs, strict=True):
            for each in out:
                close(each, mixed(x, w))


def test_threads() -> None:
    compiled = fusec.compile(mixed, cuda_graphs=True)
    w = torch.randn(64, 64, device="cuda")
    with torch.no_grad():
        compiled(torch.randn(64, 64, device="cuda"), w)
    wrong: list[str] = []

    def work() -> None:
        with torch.no_grad():
            for _ in range(30):
                x = torch.randn(64, 64, device="cuda")
                try:
                    close(compiled(x, w), mixed(x, w))
                except AssertionError as error:
                    wrong.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


@pytest.mark.parametrize("eager_random", [False, True])
def test_random_numbers_go_on_as_without_graphs(eager_random: bool) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.dropout(x, 0.5) @ w, 0.5)

    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    results = []
    for graphs in (False, True):
        torch._dynamo.reset()
        compiled = fusec.compile(function, cuda_graphs=graphs, eager_random=eager_random)
        torch.manual_seed(5)
        with torch.no_grad():
            results.append([compiled(x, w) for _ in range(8)])
        if graphs:
            assert captured(compiled), compiled.explain()
    for plain, graphed in zip(*results, strict=True):
        close(graphed, plain)
    assert not torch.equal(results[1][-1], results[1][-2])


def test_inputs_updated_in_place() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y = (x @ w).relu()
        x.mul_(0.5)
        return y

    compiled = fusec.compile(function, cuda_graphs=True)
    w = torch.randn(32, 32, device="cuda")
    x = torch.randn(32, 32, device="cuda")
    z = x.clone()
    with torch.no_grad():
        for _ in range(10):
            version = x._version
            close(compiled(x, w), function(z, w))
            close(x, z)
            assert x._version > version


@pytest.mark.parametrize("graphs", [False, True])
def test_training(graphs: bool) -> None:
    def make() -> nn.Module:
        torch.manual_seed(1)
        layers = [nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)]
        return nn.Sequential(*layers).cuda()

    model, reference = make(), make()
    compiled = fusec.compile(model, cuda_graphs=graphs)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)]
    for _ in range(12):
        x = torch.randn(16, 32, device="cuda")
        losses = [f(x).square().mean() for f in (compiled, reference)]
        close(losses[0], losses[1])
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for a, b in zip(model.parameters(), reference.parameters(), strict=True):
        close(a, b)
    assert captured(compiled) == graphs, compiled.explain()


def test_two_forwards_before_their_backwards() -> None:
    """What the first call saved for backward is not the second call's."""
    layer = nn.Linear(32, 32).cuda()
    compiled = fusec.compile(lambda x: F.gelu(layer(F.gelu(x))).sum(), cuda_graphs=True)
    for _ in range(8):
        xs = [torch.randn(8, 32, device="cuda", requires_grad=True) for _ in range(3)]
        grads = torch.autograd.grad([compiled(x) for x in xs], xs)
        expected = torch.autograd.grad([F.gelu(layer(F.gelu(x))).sum() for x in xs], xs)
        close(grads, expected)
    assert captured(compiled), compiled.explain()


@pytest.mark.parametrize("graphs", [False, True])
def test_starts_of_one_kernel_are_one(graphs: bool) -> None:
    shapes = [(64, 32)] * 7 + [(1000,)] * 40 + [(3,)]

    def step(values: list[torch.Tensor], gradients: list[torch.Tensor]) -> torch.Tensor:
        torch._foreach_mul_(values, 0.9)
        torch._foreach_addcmul_(values, gradients, gradients, value=0.1)
        return (values[-1] + values[0][0, :3]) * 2

    compiled = fusec.compile(step, cuda_graphs=graphs)
    values, gradients = ([torch.randn(s, device="cuda") for s in shapes] for _ in range(2))
    copies = [v.clone() for v in values]
    with torch.no_grad():
        for _ in range(CALLS):
            close(compiled(values, gradients), step(copies, gradients))
            close(values, copies)
            for g in gradients:
                g.normal_()
    (program,) = programs(compiled)
    starts = [s for steps in program._steps.values() for s in steps.steps if isinstance(s, Start)]
    assert len(starts) <= 4, [s.grid for s in starts]
    assert max(s.grid[1] for s in starts) == 40


def test_reduce_overhead_is_cuda_graphs() -> None:
    compiled = torch.compile(softmax_of_product, backend="fusec", mode="reduce-overhead")
    x, y = torch.randn(2, 64, 64, device="cuda")
    with torch.no_grad():
        for _ in range(CALLS):
            close(compiled(x, y), softmax_of_product(x, y))


def test_what_is_on_the_cpu_is_the_reason() -> None:
    scale = torch.tensor(2.5)
    compiled = fusec.compile(lambda x: ((x @ x) * scale).relu(), cuda_graphs=True)
    x = torch.randn(32, 32, device="cuda")
    with torch.no_grad():
        for _ in range(CALLS):
            close(compiled(x), ((x @ x) * scale).relu())
    assert "is on the CPU" in str(compiled.explain())


def test_within_a_graph_of_the_users() -> None:
    compiled = fusec.compile(softmax_of_product, cuda_graphs=True)
    x, y = torch.randn(2, 64, 64, device="cuda")
    with torch.no_grad():
        for _ in range(CALLS):
            compiled(x, y)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled(x, y)
        x.normal_()
        graph.replay()
        close(result, softmax_of_product(x, y))


def test_empty_and_unaligned_inputs() -> None:
    compiled = fusec.compile(lambda x: ((x + 1).relu(), x.sin()), cuda_graphs=True)
    base = torch.randn(1000, device="cuda")
    with torch.no_grad():
        for start in (0, 1, 4, 0, 1, 4, 0, 1, 4):
            x = base[start : start + 512]
            close(compiled(x), ((x + 1).relu(), x.sin()))
        empty = torch.empty(0, 4, device="cuda")
        for _ in range(CALLS):
            assert compiled(empty)[0].shape == (0, 4)
