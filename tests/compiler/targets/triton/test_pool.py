"""Processes that compile Triton kernels ahead: what they leave is what a start looks for."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fusec
from fusec.kernel_source import KernelSource, Signature
from fusec.targets.triton.toolchain import carried
from fusec.targets.triton.toolchain import pool as triton_pool
from fusec.targets.triton.toolchain import worker as triton_worker
from fusec.targets.triton.toolchain.cross_compile import compile_start
from fusec.targets.triton.toolchain.load import load
from fusec.targets.triton.toolchain.packed_kernel import compile_packed, packed_source
from fusec.targets.triton.toolchain.starts import gpu_target, record_starts, source_of
from support.waiting import wait_for

triton = pytest.importorskip("triton")
knobs = pytest.importorskip("triton.knobs")


@pytest.fixture
def workers() -> Iterator[triton_pool.Workers]:
    made = triton_pool.Workers(2)
    made.start()
    yield made
    made.close()


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "triton")
        yield tmp_path / "triton"


def kernels() -> list[KernelSource]:
    """Return two kernels of two kinds, for CPU tensors, as for a GPU."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.tanh(x).t().contiguous(), 0)

    torch._dynamo.reset()  # each call is another function of the same code, and few are compiled
    compiled = fusec.compile(f, target="triton")
    compiled(torch.randn(30, 70))
    return [k.generated for g in compiled.graphs for k in g.kernels]


def request(kernel: KernelSource) -> dict[str, Any]:
    found = triton_pool.request_for(
        kernel.text, kernel.signature, kernel.entry, lambda: gpu_target("sm_90")
    )[1]
    assert found is not None
    return found


def test_what_a_worker_cannot_be_told_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernels()[0]
    monkeypatch.setattr(triton_pool, "_described", lambda *args: None)
    path, asked = triton_pool.request_for(
        kernel.text, kernel.signature, kernel.entry, lambda: gpu_target("sm_90")
    )
    assert asked is None
    assert Path(path).read_text() == kernel.text


class Driver:
    """A GPU that is not there, as Triton's JIT asks for one."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return gpu_target("sm_90")


def test_a_start_finds_what_a_worker_has_compiled(
    workers: triton_pool.Workers, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the JIT's own way: what it would be started with must lead to the same cache entry."""
    found = kernels()
    jobs = [workers.submit(request(kernel)) for kernel in found]
    assert [job.result(timeout=60) for job in jobs] == ["done"] * len(found)
    hits: list[bool] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **k: hits.append(k["cache_hit"]))
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    starts = 0
    for kernel in found:
        namespace, _ = load(kernel.text)
        for start in record_starts(namespace, kernel.signature, kernel.entry):
            given = [
                triton.MockTensor(t.dtype) if isinstance(t, torch.Tensor) else t for t in start.args
            ]
            start.function.warmup(*given, grid=(1,), **start.kwargs)
            starts += 1
    assert starts >= 1
    assert hits == [True] * starts


def test_an_exported_cache_has_what_triton_compiled(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine of the same kind, or another GPU of this one, compiles no kernel again."""
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "there"))
    hits: list[bool] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **k: hits.append(k["cache_hit"]))
    for kernel in kernels():
        triton_worker.compile_starts(request(kernel))
    compiled = len(hits)
    assert hits == [False] * compiled
    moved = fusec.export_cache(tmp_path / "cache.zip")
    assert moved.entries["triton-code"] == compiled >= 1
    with zipfile.ZipFile(tmp_path / "cache.zip") as archive:
        assert json.loads(archive.read("fusec-cache.json"))["gpus"] == ["sm_90"]

    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "here"))
    knobs.cache.dir = str(tmp_path / "triton of another")
    assert fusec.import_cache(tmp_path / "cache.zip").entries == moved.entries
    assert fusec.import_cache(tmp_path / "cache.zip").known == sum(moved.entries.values())
    for kernel in kernels():
        triton_worker.compile_starts(request(kernel))
    assert hits[compiled:] == [True] * compiled


@pytest.mark.parametrize("name", ["../x", "A" * 52 + "/..", "", "a" * 52])
def test_an_import_writes_nowhere_else(cache: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not what Triton compiled"):
        carried.take_in(name, {"kernel.cubin": b""})
    with pytest.raises(ValueError, match="not what Triton compiled"):
        carried.take_in("A" * 52, {"../kernel.cubin": b""})
    assert not cache.exists()


def test_a_worker_that_ends_is_replaced(workers: triton_pool.Workers, cache: Path) -> None:
    (kernel, *_) = kernels()
    bad = {**request(kernel), "path": str(cache / "no such file")}
    assert "FileNotFoundError" in workers.submit(bad).result(timeout=60)
    wait_for(lambda: workers._idle.qsize() >= 2)
    for _ in range(2):  # as if they had been idle for too long
        worker = workers._idle.get()
        worker.kill()
        worker.wait()
        workers._idle.put(worker)
    assert workers.submit(request(kernel)).result(timeout=60) == "done"
    assert list(cache.rglob("*.cubin"))


def test_a_process_that_cannot_be_started_is_nobodys_problem(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(triton_pool, "_start", fails)
    made = triton_pool.Workers(1)
    job = made.submit(request(kernels()[0]))
    monkeypatch.setattr(triton_pool, "_under_way", {"path": (job,)})
    triton_pool.wait("path")  # the start compiles by itself
    assert job.result() == "no process starts: no more processes"
    made.close()


def test_a_start_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_pool, "_under_way", {"path": (Future(),)})
    monkeypatch.setattr(triton_pool, "_PATIENCE", 0.01)
    triton_pool.wait("path")


def on_a_gpu(kernel: KernelSource) -> Signature:
    """Return a kernel's signature as if its tensors were on a GPU."""
    arguments = tuple(replace(a, device="cuda") for a in kernel.signature.arguments)
    return replace(kernel.signature, arguments=arguments)


def test_what_is_compiled_ahead_and_what_is_not(
    workers: triton_pool.Workers, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kernel, *_) = kernels()
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    monkeypatch.setattr(triton_pool, "_current", lambda: asked.append(1) or workers)
    monkeypatch.setattr(triton_pool, "_under_way", {})
    triton_pool.prepare(kernel.text, kernel.signature, kernel.entry)  # of CPU tensors
    triton_pool.prepare(kernel.text, on_a_gpu(kernel), kernel.entry)  # of an earlier process
    triton_pool.wait("a path that nobody knows")
    assert not asked
    text = kernel.text + "\n# not seen before\n"
    triton_pool.prepare("nonsense(", on_a_gpu(kernel), kernel.entry)  # the build says so
    assert not triton_pool._under_way
    triton_pool.prepare(text, on_a_gpu(kernel), kernel.entry)
    (path,) = triton_pool._under_way
    triton_pool.wait(path)
    assert [job.result() for job in triton_pool._under_way[path]] == ["done"]
    assert Path(path).read_text() == text
    assert list(cache.rglob("*.cubin"))


def test_the_kernels_of_one_file_are_compiled_side_by_side(
    workers: triton_pool.Workers, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = fusec.compile(lambda x: x.sum(0), target="triton")
    compiled(torch.randn(40000, 32))
    (kernel,) = (k.generated for g in compiled.graphs for k in g.kernels)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    monkeypatch.setattr(triton_pool, "_current", lambda: workers)
    monkeypatch.setattr(triton_pool, "_under_way", {})
    triton_pool.prepare(kernel.text + "\n# on a GPU\n", on_a_gpu(kernel), kernel.entry)
    ((path, jobs),) = triton_pool._under_way.items()
    triton_pool.wait(path)
    assert [job.result() for job in jobs] == ["done"] * kernel.text.count("@triton.jit")
    assert len(jobs) == len(list(cache.rglob("*.cubin"))) > 1


def test_a_packed_kernel_is_compiled_by_a_worker_too(
    workers: triton_pool.Workers, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kernel, *_) = kernels()
    namespace, path = load(kernel.text)
    (start,) = record_starts(namespace, kernel.signature, kernel.entry)
    single = compile_start(start, gpu_target("sm_90"), namespace, path)
    hits: list[bool] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **k: hits.append(k["cache_hit"]))
    monkeypatch.setattr(triton_pool, "_current", lambda: workers)
    options = {name: getattr(single.metadata, name) for name in ("num_warps", "num_stages")}
    source = packed_source(single.src, 3)
    assert source is not None
    options["num_ctas"] = single.metadata.num_ctas
    needs = {"kernel": single.src.fn}
    triton_pool.compile_source(source, options, single.metadata.target, needs)
    compile_packed(source, single.metadata)
    assert hits == [True]


def test_a_worker_does_not_import_torch(cache: Path) -> None:
    """It takes seconds, and a hundred megabytes a process."""
    (kernel, *_) = kernels()
    asked = json.dumps(request(kernel))
    code = (
        "import runpy, sys, json\n"
        "worker = runpy.run_path(sys.argv[1])\n"
        "sys.modules['torch'] = worker['Postponed']('torch')\n"
        "worker['compile_starts'](json.loads(sys.argv[2]))\n"
        "print('torch._C' in sys.modules)\n"
        "import torch, inspect\n"
        "inspect.getmodule(worker['main'])\n"
        "print('torch._C' in sys.modules)\n"
        "print(torch.float16, sys.modules['torch'].__name__, 'torch._C' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, triton_worker.__file__, asked],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["False", "False", "torch.float16", "torch", "True"], done.stderr
    assert list(cache.rglob("*.cubin"))


@pytest.mark.parametrize(("given", "expected"), [("3", 3), ("0", 0), ("", None), ("x", None)])
def test_number_of_processes(
    given: str, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEC_TRITON_WORKERS", given)
    count = triton_pool.worker_count()
    assert count == expected if expected is not None else 0 <= count <= triton_pool._MOST


def test_constants_are_told_as_they_are() -> None:
    for kernel in kernels():
        namespace, _ = load(kernel.text)
        asked = request(kernel)["starts"]
        for start, told in zip(
            record_starts(namespace, kernel.signature, kernel.entry), asked, strict=True
        ):
            source, options = source_of(start)
            assert {(p,): v for p, v in told["constants"]} == source.constants
            assert told["options"] == options
