"""Kernels that are built while others are written: once each, side by side, and safely."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.build import queue as build_queue
from fusec.build.python_headers import python_name
from fusec.build.queue import BuildQueue, BuildRequest
from fusec.cache import CacheStore
from fusec.errors import CompileError, CompilerNotFound
from fusec.target_api.registry import find_target
from fusec.toolchain import build as cpp_build
from fusec.toolchain.loading import load


def wanted(text):
    return BuildRequest(text, find_target("cpp"))


NATIVE = (f"// {python_name()}\n", f"// torch {torch.__version__}")


def constant(value):
    return f'extern "C" int answer() {{ return {value}; }}\n'


@pytest.fixture
def store(tmp_path):
    return CacheStore(tmp_path / "store")


@pytest.fixture
def queue(store):
    made = BuildQueue(store)
    yield made
    made.close()


@pytest.fixture
def compiled(monkeypatch):
    """The texts that a compiler was run for, but for the native parts of calls."""
    texts = []
    compile_text = cpp_build.compile_text

    def counted(compiler, text, *rest):
        if not text.startswith(NATIVE):  # they are built meanwhile, once a machine
            texts.append(text)
        return compile_text(compiler, text, *rest)

    monkeypatch.setattr(cpp_build, "compile_text", counted)
    return texts


def test_equal_texts_are_built_once_and_stored_ones_not_at_all(queue, store, compiled):
    texts = [constant(n % 2) for n in range(6)]
    for text in texts:
        queue.add(wanted(text))
    paths = queue.finish(map(wanted, texts))
    assert [load(path, "answer")() for path in paths] == [0, 1] * 3
    assert sorted(compiled) == [constant(0), constant(1)]
    again = BuildQueue(store)
    assert len(again.finish(map(wanted, [*texts, constant(2)]))) == 7
    again.close()
    assert sorted(compiled) == [constant(0), constant(1), constant(2)]


def test_independent_ones_are_built_side_by_side(queue, monkeypatch):
    meet = threading.Barrier(2, timeout=20)  # nobody gets past it alone
    compile_text = cpp_build.compile_text

    def together(*args):
        meet.wait()
        return compile_text(*args)

    monkeypatch.setattr(cpp_build, "compile_text", together)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    queue.add(wanted(constant(3)))
    queue.add(wanted(constant(4)))
    assert len(queue.finish([wanted(constant(3)), wanted(constant(4))])) == 2


def test_a_failure_comes_after_the_others_are_built(queue, store):
    queue.add(wanted("nonsense;\n"))
    with pytest.raises(CompileError, match="line 1"):
        queue.finish(map(wanted, (constant(5), "nonsense;\n", constant(6))))
    assert store.info().entries == {"cpp": 2}


def test_without_a_compiler_it_says_so_when_it_is_asked(queue, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    queue.add(wanted(constant(7)))
    with pytest.raises(CompilerNotFound):
        queue.finish([wanted(constant(7))])


def test_a_damaged_entry_is_built_again(queue, store, compiled):
    (path,) = queue.finish([wanted(constant(8))])
    path.chmod(0o600)
    path.write_bytes(b"not a library")
    again = BuildQueue(store)
    (path,) = again.finish([wanted(constant(8))])
    again.close()
    assert load(path, "answer")() == 8
    assert len(compiled) == 2


def test_closing_stops_what_has_not_begun(store, monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    begun = []

    def slow(compiler, text, *rest):
        begun.append(text)
        entered.set()
        leave.wait(20)
        raise CompileError((), "stopped")

    monkeypatch.setattr(cpp_build, "compile_text", slow)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    made = BuildQueue(store)
    made.add(wanted(constant(9)))
    made.add(wanted(constant(10)))
    assert entered.wait(20)
    threading.Timer(0.05, leave.set).start()
    made.close()
    assert begun == [constant(9)]


# --- in a compilation ------------------------------------------------------------------------


class Layers(torch.nn.Module):
    """Equal layers, whose products keep their kernels apart."""

    def __init__(self, count):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range(count)])

    def forward(self, x):
        for layer in self.layers:
            x = F.layer_norm(F.gelu(layer(x)), (16,))
        return x


def test_equal_kernels_of_a_graph_are_built_once(tmp_path, monkeypatch, compiled):
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    model, x = Layers(4).requires_grad_(False), torch.randn(8, 16)
    function = fusec.compile(model)
    torch.testing.assert_close(function(x), model(x))
    assert len(function.kernels) == 4
    assert len({kernel.source for kernel in function.kernels.values()}) == 4  # own names each
    kernels = [text for text in compiled if "layer_norm" in text]
    assert len(kernels) == 1


def test_building_begins_before_the_last_kernel_is_written(tmp_path, monkeypatch):
    """The compiler of the first kernel waits here for the last one to be written."""
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    from fusec import pipeline

    first_build, compile_text = threading.Event(), cpp_build.compile_text
    seen = []

    def noted(*args):
        first_build.set()
        return compile_text(*args)

    emit_host = pipeline.emit_host

    def after_all_kernels(*args):
        seen.append(first_build.wait(20))
        return emit_host(*args)

    monkeypatch.setattr(cpp_build, "compile_text", noted)
    monkeypatch.setattr(pipeline, "emit_host", after_all_kernels)
    x = torch.randn(8, 16)
    function = fusec.compile(lambda x: (x.softmax(-1) @ x.t()).exp().sum(0))
    function(x)
    assert seen == [True]
    assert not function.fallbacks


def test_a_kernel_that_does_not_compile_leaves_eager(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FUSEC_STRICT", raising=False)

    def refuse(*_):
        raise CompileError((), "no")

    monkeypatch.setattr(cpp_build, "compile_text", refuse)
    x = torch.randn(8, 16)
    function = fusec.compile(lambda x: x.softmax(-1))
    torch.testing.assert_close(function(x), x.softmax(-1))
    assert len(function.fallbacks) == 1


AT_ONCE = """
import json, sys, time
import torch, fusec
import torch.nn.functional as F
x = torch.arange(32.0).reshape(4, 8) / 32
function = fusec.compile(lambda x: (F.gelu(x).softmax(-1) @ x.t()).exp().sum(0))
print("ready", flush=True)
sys.stdin.readline()
print(json.dumps([function(x).tolist(), len(function.fallbacks)]), flush=True)
"""


@pytest.mark.slow
def test_two_processes_at_once(tmp_path: Path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", AT_ONCE],
            env={**os.environ, "FUSEC_CACHE_DIR": str(tmp_path / "cache")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        results = [json.loads(p.communicate(timeout=120)[0].splitlines()[-1]) for p in processes]
    finally:
        for process in processes:
            process.kill()
    x = torch.arange(32.0).reshape(4, 8) / 32
    expected = (F.gelu(x).softmax(-1) @ x.t()).exp().sum(0)
    for values, fallbacks in results:
        torch.testing.assert_close(torch.tensor(values), expected)
        assert fallbacks == 0
    assert CacheStore(tmp_path / "cache").verify() == ()


def test_the_queue_builds_with_the_store_it_is_given(store):
    assert BuildQueue(store)._store is store
    assert build_queue.default_store() is BuildQueue()._store
