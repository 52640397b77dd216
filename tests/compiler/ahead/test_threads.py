"""Compile, run, edit, tune and freeze from many threads and asyncio at once."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import fusec
from fusec.call import native
from fusec.capture import shortcut
from fusec.capture.fast_path.compiled_code import graph_of
from fusec.capture.graph_compiler import GraphCompiler
from fusec.packages.binaries import default_names
from fusec.packages.runtime import load as load_alone

PATIENCE = 240.0  # seconds until what is not done counts as a deadlock


def together(jobs: list[Callable[[], object]], threads: int) -> None:
    """Run jobs in threads that begin at once; raise what any of them raised."""
    gate = threading.Barrier(threads)

    with ThreadPoolExecutor(threads, initializer=gate.wait) as pool:
        running = [pool.submit(job) for job in jobs]
        for each in running:
            each.result(PATIENCE)


def test_one_function_from_many_threads_is_built_once(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    from fusec.toolchain import build

    texts: list[str] = []
    compile_text = build._compile

    def counted(compiler, text, *rest):
        texts.append(text)
        return compile_text(compiler, text, *rest)

    monkeypatch.setattr(build, "_compile", counted)
    compiled = fusec.compile(lambda x: (x.sin() * 3).softmax(-1), dynamic=False)
    x = torch.randn(6, 5)
    expected = (x.sin() * 3).softmax(-1)

    def job() -> None:
        torch.testing.assert_close(compiled(x), expected)

    together([job] * 16, 8)
    kernels = [text for text in texts if "softmax" in text]
    assert len(kernels) == len(set(kernels)) == 1


def test_equal_functions_share_their_builds(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    x = torch.randn(4, 6)

    def job() -> None:
        compiled = fusec.compile(lambda x: (x.cos() - 2).tanh(), name="shared")
        torch.testing.assert_close(compiled(x), (x.cos() - 2).tanh())

    together([job] * 6, 6)
    from fusec.cache import default_store

    assert default_store().info().entries["cpp"] == 1


def test_frozen_beside_other_threads():
    compiled = fusec.compile(lambda x: x.exp() + 1, dynamic=False)
    compiled(torch.ones(3))
    fusec.freeze(compiled)

    def fits() -> None:
        assert compiled(torch.zeros(3)).tolist() == [2, 2, 2]

    def misses() -> None:
        with pytest.raises(fusec.FrozenMiss):
            compiled(torch.zeros(4))

    together([fits, misses] * 8, 4)
    assert len(compiled.graphs) == 1


def test_calls_are_not_refused_while_another_thread_compiles(monkeypatch):
    """FX says in every thread that it traces; here, for as long as a graph is compiled."""
    compiled = fusec.compile(lambda x: x * 2)
    compiled(torch.ones(3))
    inside = []

    def compile_slowly(self, inputs):
        monkeypatch.setattr(torch.fx._symbolic_trace, "_is_fx_tracing_flag", True)
        thread = threading.Thread(target=lambda: inside.append(compiled._run(torch.ones(3))))
        thread.start()
        thread.join()
        monkeypatch.setattr(torch.fx._symbolic_trace, "_is_fx_tracing_flag", False)
        return compile_graph(self, inputs)

    compile_graph = GraphCompiler.compile
    monkeypatch.setattr(GraphCompiler, "compile", compile_slowly)
    fusec.compile(lambda x: x * 3)(torch.ones(3))
    assert [each.tolist() for each in inside] == [[2, 2, 2]]
    assert not torch.compiler.is_compiling()


def test_asyncio():
    compiled = fusec.compile(lambda x, n: x * n + 1, dynamic=False)

    async def call(size: int) -> None:
        x = torch.randn(size)
        found = await asyncio.to_thread(compiled, x, 2)
        torch.testing.assert_close(found, x * 2 + 1)

    async def all_of_them() -> None:
        await asyncio.wait_for(asyncio.gather(*(call(2 + i % 3) for i in range(12))), PATIENCE)

    asyncio.run(all_of_them())


def test_an_entry_that_comes_to_nothing_leaves_the_others(monkeypatch):
    """Two threads learn from one compiled code; what one of them called does not fit after all."""
    if native.types(wait=True) is None:
        pytest.skip(native.problem())
    compiled = fusec.compile(lambda x, n: x * n + 1, dynamic=False)
    x = torch.randn(4)
    make_entry = shortcut._make_entry

    def meanwhile(*args):
        monkeypatch.setattr(shortcut, "_make_entry", make_entry)
        compiled._shortcut.learn(compiled.graphs, (x, 5), {})

    monkeypatch.setattr(shortcut, "_make_entry", meanwhile)
    compiled(x, 5)
    assert len(compiled._shortcut._known) == 1
    for _ in range(3):
        torch.testing.assert_close(compiled(x, 5), x * 5 + 1)
    assert compiled.short_calls == 3


def test_code_of_another_compiled_function_is_no_entry():
    """Two compile one function; a call of the first comes between the second's call and its entry.

    TorchDynamo keeps what both compiled in one list, the latest used first.
    """

    def function(x):
        return (x.sin() * 3).sum(-1)

    first = fusec.compile(function, dynamic=True)
    second = fusec.compile(function, dynamic=False)
    x = torch.randn(3, 8)
    second(x)
    first(x)
    entries = torch._dynamo.eval_frame._debug_get_cache_entry_list(function.__code__)
    ours = [graph_of(each.code, function, second.graphs) for each in entries]
    assert ours.count(None) == len(first.graphs) == 1
    if native.types() is not None:
        second._shortcut.learn(second.graphs, (x,), {})
    for size in (3, 6, 3):
        x = torch.randn(size, 8)
        torch.testing.assert_close(second(x), function(x))


def _package_actions(
    functions: list[Callable[[torch.Tensor], torch.Tensor]],
    compiled: list[fusec.CompiledFunction],
    sizes: list[tuple[int, int]],
    folder: Path,
) -> list[Callable[[random.Random], None]]:
    """Return two ways to make and to load packages."""
    packages: list[tuple[int, Path]] = []
    numbers = itertools.count()

    def package(chosen: random.Random) -> None:
        which, number = chosen.randrange(len(functions)), next(numbers)
        path = folder / f"{number}.fuse"
        calls = [(torch.randn(size),) for size in sizes]
        source = compiled[which] if chosen.randrange(2) else functions[which]
        fusec.package(source, calls, path, binaries=default_names()[-1:])
        packages.append((which, path))

    def load(chosen: random.Random) -> None:
        if packages:
            which, path = chosen.choice(packages)
            x = torch.randn(chosen.choice(sizes))
            torch.testing.assert_close(fusec.load(path)(x), functions[which](x))
            found = load_alone(path)(x.numpy())
            torch.testing.assert_close(torch.from_numpy(found), functions[which](x))

    return [package, load, load]


def _stress(rounds: int, seed: int, folder: Path, *, by_asyncio: bool = False) -> None:
    """Do everything at once with a few functions; every result is compared with eager.

    Args:
        rounds: How many actions.
        seed: Chooses them.
        folder: For packages.
        by_asyncio: Whether tasks begin the actions, in asyncio's own threads.
    """
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: (x.sin() * 2).sum(-1),
        lambda x: x.softmax(-1) + x.mean(),
        lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]).relu(),
    ]
    compiled = [fusec.compile(each, keep_inputs=True, dynamic=False) for each in functions]
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    trained = fusec.compile(module)
    sizes = [(3, 8), (4, 8)]

    def ready(target: fusec.CompiledFunction) -> list[fusec.Kernel]:
        """Return the kernels that have run: others are compiled, and have no inputs yet."""
        return [k for graph in target.graphs for k in graph.kernels if graph.has_inputs(k)]

    def run(chosen: random.Random) -> None:
        which = chosen.randrange(len(functions))
        x = torch.randn(chosen.choice(sizes))
        torch.testing.assert_close(compiled[which](x), functions[which](x))

    def train(chosen: random.Random) -> None:
        x = torch.randn(chosen.choice(sizes), requires_grad=True)
        trained(x).square().sum().backward()
        expected = torch.autograd.grad(module(x).square().sum(), x)[0]
        torch.testing.assert_close(x.grad, expected)

    def edit(chosen: random.Random) -> None:
        kernels = ready(compiled[0])
        if kernels:
            kernel = chosen.choice(kernels)
            kernel.keep(kernel.source + "\n// edited\n")
            kernel.revert()

    def tune(chosen: random.Random) -> None:
        kernels = ready(compiled[1])
        if kernels:
            chosen.choice(kernels).tune(budget=0.1)

    def freeze(chosen: random.Random) -> None:
        target = chosen.choice(compiled)
        for size in sizes:  # what others call meanwhile has to be there
            target(torch.randn(size))
        fusec.freeze(target)
        try:
            target(torch.randn(5, 8))
        except fusec.FrozenMiss:
            pass
        finally:
            target.frozen = False

    def fresh(chosen: random.Random) -> None:
        factor = chosen.randrange(3)
        x = torch.randn(7)
        made = fusec.compile(lambda x: x * factor + 1)
        torch.testing.assert_close(made(x), x * factor + 1)

    def precompile(chosen: random.Random) -> None:
        which = chosen.randrange(len(functions))
        said = fusec.precompile(functions[which], [(torch.randn(9 + chosen.randrange(3), 8),)])
        assert not any(each.error for each in said.calls), str(said)

    actions = [run, run, run, run, train, edit, tune, freeze, fresh, precompile]
    actions += _package_actions(functions, compiled, sizes, folder)

    def job(number: int) -> None:
        chosen = random.Random(seed * 1000 + number)
        chosen.choice(actions)(chosen)

    if by_asyncio:

        async def all_of_them() -> None:
            jobs = (asyncio.to_thread(job, number) for number in range(rounds))
            await asyncio.wait_for(asyncio.gather(*jobs), PATIENCE)

        asyncio.run(all_of_them())
    else:
        together([lambda n=n: job(n) for n in range(rounds)], 6)  # type: ignore[misc]


@pytest.mark.timeout(300)
def test_everything_at_once_for_a_moment(tmp_path):
    _stress(16, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2, 6))
def test_everything_at_once(seed, tmp_path):
    """No wrong result, no refusal, no deadlock."""
    _stress(150, seed, tmp_path, by_asyncio=seed % 2 == 1)
