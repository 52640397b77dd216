"""Several GPUs and the CPU in one process: from many threads, asyncio, packages, frozen, caches."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fusec
from fusec.packages.runtime import CannotRun, NoSpecialization
from fusec.packages.runtime import load as load_alone

COUNT = torch.cuda.device_count() if torch.cuda.is_available() else 0
PLACES = ["cpu", *(f"cuda:{number}" for number in range(COUNT))]
PATIENCE = 240.0  # seconds until what is not done counts as a deadlock
LONG = 200_000_000  # clock cycles that a stream is kept waiting

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(COUNT < 2, reason="fewer than two GPUs"),
    pytest.mark.timeout(300),
]


@pytest.fixture(autouse=True)
def first_is_current() -> Iterator[None]:
    """Begin on the first GPU, and see that nothing left another one current."""
    torch._dynamo.reset()
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0


def several(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Kernels with memory of their own between them, and a product by the library."""
    columns = (x * 2).sum(0)
    normal = nn.functional.layer_norm(x + columns, x.shape[-1:])
    product = normal @ w
    return product.softmax(-1), (product - columns[: w.shape[1]]).amax(0)


def given(place: str, rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    x, w = torch.randn(rows, 96, device=place), torch.randn(96, 48, device=place)
    return x, w / 10


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, atol=2e-3, rtol=2e-3)  # devices are compared as well


def together(jobs: list[Callable[[], object]], threads: int) -> None:
    """Run jobs in threads that begin at once; raise what any of them raised."""
    threads = min(threads, len(jobs))
    gate = threading.Barrier(threads)
    with ThreadPoolExecutor(threads, initializer=gate.wait) as pool:
        running = [pool.submit(job) for job in jobs]
        for each in running:
            each.result(PATIENCE)


def child(code: str, folder: Path, **more: str) -> str:
    """Run code in a process of its own with a cache in a folder; return what it printed."""
    (folder / "fusec").mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "triton").mkdir(mode=0o700, parents=True, exist_ok=True)
    environment = os.environ | {
        "FUSEC_CACHE_DIR": str(folder / "fusec"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    script = folder / "child.py"
    script.write_text(_PRELUDE + textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=environment | more,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


_PRELUDE = """
import os, sys, torch, fusec
from pathlib import Path

def function(x):
    return (x.softmax(-1) * 3 + x.sum(0)).tanh()

def check(compiled, place, rows=33):
    x = torch.randn(rows, 80, device=place)
    torch.testing.assert_close(compiled(x), function(x), atol=1e-4, rtol=1e-4)

def cubins():
    return len(list(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")))
"""


@pytest.mark.parametrize("current", [0, COUNT - 1], ids=["first", "last"])
def test_inputs_of_another_device_than_the_current_one(current: int) -> None:
    compiled = fusec.compile(several, dynamic=False)
    torch.cuda.set_device(current)
    try:
        for _ in range(3):
            for place in PLACES:
                x, w = given(place)
                close(compiled(x, w), several(x, w))
                assert torch.cuda.current_device() == current
    finally:
        torch.cuda.set_device(0)


def test_gradients_are_on_the_device_of_their_inputs() -> None:
    compiled = fusec.compile(several, dynamic=False)
    for _ in range(3):
        for place in PLACES:
            tensors = [each.requires_grad_() for each in given(place)]
            found = torch.autograd.grad(compiled(*tensors)[1].square().sum(), tensors)
            wanted = torch.autograd.grad(several(*tensors)[1].square().sum(), tensors)
            close(found, wanted)


def test_a_stream_of_each_thread_is_respected() -> None:
    """What a stream waits for comes before the call; what comes after reads what it computed."""
    compiled = fusec.compile(lambda x: (x * 2).softmax(-1) + x.sum(0), dynamic=False)
    for place in PLACES[1:]:
        compiled(torch.ones(256, 64, device=place))

    def job(place: str, number: int) -> None:
        torch.cuda.set_device(place)
        stream = torch.cuda.Stream(place)
        data = torch.randn(256, 64, device=place)
        x = torch.zeros(256, 64, device=place)
        torch.cuda.synchronize(place)
        wanted = (data * 2).softmax(-1) + data.sum(0)
        torch.cuda.synchronize(place)
        with torch.cuda.stream(stream):
            for _ in range(3):
                torch.cuda._sleep(LONG // 10)
                x.copy_(data)
                found = compiled(x)
                x.zero_()
                assert torch.cuda.current_stream() == stream
                assert torch.cuda.current_device() == torch.device(place).index
                result = found.clone()
        stream.synchronize()
        close(result, wanted)

    together([lambda p=p, n=n: job(p, n) for n in range(3) for p in PLACES[1:]], 2 * COUNT)  # type: ignore[misc]


def test_one_function_from_threads_of_all_devices() -> None:
    compiled = fusec.compile(several, dynamic=False)

    def job(place: str, current: int) -> None:
        torch.cuda.set_device(current)
        for rows in (32, 48):
            x, w = given(place, rows)
            close(compiled(x, w), several(x, w))
            assert torch.cuda.current_device() == current

    jobs = [lambda p=p, c=c: job(p, c) for c in range(COUNT) for p in PLACES]  # type: ignore[misc]
    together(jobs, 8)
    for _ in range(10):  # and once all is there, by the short way
        together(jobs, 8)


def test_asyncio_on_all_devices() -> None:
    compiled = fusec.compile(lambda x, n: (x * n + 1).cumsum(-1), dynamic=False)

    async def call(place: str, size: int) -> None:
        x = torch.randn(size, 5, device=place)
        found = await asyncio.to_thread(compiled, x, 2)
        close(found, (x * 2 + 1).cumsum(-1))

    async def all_of_them() -> None:
        calls = [call(place, 2 + i % 3) for i in range(9) for place in PLACES]
        await asyncio.wait_for(asyncio.gather(*calls), PATIENCE)

    asyncio.run(all_of_them())


def test_everything_at_once_on_all_devices() -> None:
    """Compile, run, train, edit, tune and freeze; every result is compared with eager."""
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: (x.sin() * 2).sum(-1),
        lambda x: x.softmax(-1) + x.mean(),
        lambda x: nn.functional.layer_norm(x, x.shape[-1:]).relu(),
    ]
    compiled = {
        place: [fusec.compile(each, keep_inputs=True, dynamic=False) for each in functions]
        for place in PLACES
    }
    modules = {p: nn.Sequential(nn.Linear(8, 8), nn.GELU()).to(p) for p in PLACES}
    trained = {place: fusec.compile(module) for place, module in modules.items()}
    sizes = [(33, 8), (4, 8)]

    def ready(target: fusec.CompiledFunction) -> list[fusec.Kernel]:
        return [k for graph in target.graphs for k in graph.kernels if graph.has_inputs(k)]

    def run(chosen: random.Random, place: str) -> None:
        which = chosen.randrange(len(functions))
        x = torch.randn(chosen.choice(sizes), device=place)
        close(compiled[place][which](x), functions[which](x))

    def train(chosen: random.Random, place: str) -> None:
        x = torch.randn(chosen.choice(sizes), device=place, requires_grad=True)
        trained[place](x).square().sum().backward()
        close(x.grad, torch.autograd.grad(modules[place](x).square().sum(), x)[0])

    def edit(chosen: random.Random, place: str) -> None:
        kernels = ready(compiled[place][0])
        if kernels:
            kernel = chosen.choice(kernels)
            mark = "//" if place == "cpu" else "#"
            kernel.keep(f"{kernel.source}\n{mark} edited\n")
            kernel.revert()

    def tune(chosen: random.Random, place: str) -> None:
        kernels = ready(compiled[place][1])
        if kernels:
            chosen.choice(kernels).tune(budget=0.1)

    def freeze(chosen: random.Random, place: str) -> None:
        target = chosen.choice(compiled[place])
        for size in sizes:  # what others call meanwhile has to be there
            target(torch.randn(size, device=place))
        fusec.freeze(target)
        try:
            target(torch.randn(5, 8, device=place))
        except fusec.FrozenMiss:
            pass
        finally:
            target.frozen = False

    def fresh(chosen: random.Random, place: str) -> None:
        factor = chosen.randrange(3)
        x = torch.randn(7, device=place)
        close(fusec.compile(lambda x: x * factor + 1)(x), x * factor + 1)

    actions = [run, run, run, run, train, edit, tune, freeze, fresh]

    def job(number: int) -> None:
        chosen = random.Random(number)
        current = chosen.randrange(COUNT)
        torch.cuda.set_device(current)
        chosen.choice(actions)(chosen, chosen.choice(PLACES))
        assert torch.cuda.current_device() == current

    together([lambda n=n: job(n) for n in range(60)], 8)  # type: ignore[misc]


def test_builds_are_shared_by_devices(tmp_path: Path) -> None:
    said = child(
        """
        check(fusec.compile(function, dynamic=False), "cuda:0")
        first = cubins()
        for number in range(1, torch.cuda.device_count()):
            torch._dynamo.reset()
            check(fusec.compile(function, dynamic=False), f"cuda:{number}")
        print(first, cubins())
        """,
        tmp_path,
    )
    first, all_of_them = map(int, said.split())
    assert 0 < first == all_of_them


def test_another_process_on_another_index_builds_nothing(tmp_path: Path) -> None:
    first = child(
        """
        check(fusec.compile(function, dynamic=False), "cuda:0")
        print(cubins())
        """,
        tmp_path,
    )
    second = child(
        """
        torch.cuda.set_device(1)
        compiled = fusec.compile(function, dynamic=False)
        check(compiled, "cuda:1")
        with fusec.frozen():
            check(compiled, "cuda:1")
            try:
                check(compiled, "cuda:0")
            except fusec.FrozenMiss as miss:
                assert "cuda:0" in str(miss) and "cuda:1" in str(miss), miss
            else:
                raise AssertionError("it ran")
        print(cubins())
        """,
        tmp_path,
    )
    assert 0 < int(first) == int(second)


def test_a_cache_goes_to_another_index(tmp_path: Path) -> None:
    archive = tmp_path / "cache.zip"
    child(
        f"""
        check(fusec.compile(function, dynamic=False), "cuda:0")
        torch._dynamo.reset()
        check(fusec.compile(function, dynamic=False), "cpu")
        print(fusec.export_cache({str(archive)!r}))
        """,
        tmp_path / "there",
        CUDA_VISIBLE_DEVICES=_visible(0),
    )
    said = child(
        f"""
        moved = fusec.import_cache({str(archive)!r})
        before, texts = cubins(), fusec.cache.info().entries["triton"]
        check(fusec.compile(function, dynamic=False), "cuda:0")
        torch._dynamo.reset()
        check(fusec.compile(function, dynamic=False), "cpu")
        assert moved.entries["triton-code"] > 0, moved
        print(before, cubins(), fusec.cache.info().entries["triton"] - texts)
        """,
        tmp_path / "here",
        CUDA_VISIBLE_DEVICES=_visible(1),
    )
    before, after, written = map(int, said.split())
    assert before == after > 0  # nothing was compiled
    assert written == 0


def _visible(number: int) -> str:
    """Return the name of a GPU for a child, of those that this process sees."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return names[number] if names != [""] else str(number)


WEIGHT = torch.linspace(-1, 1, 16)


def scaled(x: torch.Tensor) -> dict[str, torch.Tensor]:
    y = (x * WEIGHT.to(x.device)).softmax(-1)
    return {"y": y, "sum": y.sum(0)}


def for_package(x: torch.Tensor) -> dict[str, torch.Tensor]:
    y = (x * WEIGHT).softmax(-1)
    return {"y": y, "sum": y.sum(0)}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("devices") / "small.fuse"
    major, minor = torch.cuda.get_device_capability()
    fusec.package(for_package, [(torch.randn(4, 16),)], path, gpus=(f"sm_{major}{minor}",))
    return path


def test_a_package_runs_where_its_call_is(package: Path) -> None:
    loaded = fusec.load(package)

    def job(place: str, current: int) -> None:
        torch.cuda.set_device(current)
        with torch.cuda.stream(torch.cuda.Stream(place)):
            for _ in range(5):
                x = torch.randn(4, 16, device=place)
                found = loaded(x)
                close(found, scaled(x))
                torch.cuda.synchronize(place)

    jobs = [lambda p=p, c=c: job(p, c) for c in range(COUNT) for p in PLACES[1:]]  # type: ignore[misc]
    together(jobs, 8)
    with pytest.raises(NoSpecialization, match="cpu; packaged for cuda"):
        loaded(torch.randn(4, 16))


def test_a_package_without_torch_on_the_gpu_that_is_asked_for(package: Path) -> None:
    for number in range(COUNT):
        loaded = load_alone(package, device=number)
        x = torch.randn(4, 16)
        found = loaded(x.numpy())
        close({k: torch.from_numpy(v) for k, v in found.items()}, scaled(x))
        there = x.to(f"cuda:{number}")
        torch.cuda.synchronize(number)
        wanted = scaled(x)
        found = loaded(there)
        close({k: torch.from_numpy(v.numpy()) for k, v in found.items()}, wanted)
        other = x.to(f"cuda:{(number + 1) % COUNT}")
        with pytest.raises(CannotRun, match=f"another GPU than number {number}"):
            loaded(other)
    with pytest.raises(CannotRun):
        load_alone(package, device=COUNT)(torch.randn(4, 16).numpy())
