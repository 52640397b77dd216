"""The worker as a process: it outlives what it runs, and never outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch

from fusec.kernel_source import Argument, Signature
from fusec.verify.isolation import process, sandbox
from fusec.verify.isolation.process import WorkerError
from support import handwritten_kernels as vk
from support.paths import TESTS
from support.waiting import wait_for


@pytest.fixture(scope="module", autouse=True)
def closed():
    yield
    sandbox.worker().close()


def run(body=vk.RIGHT, n=1000, **options):
    text = "#include <signal.h>\n#include <unistd.h>\n" + vk.cpp(body)
    options.setdefault("timeout", 5.0)
    return sandbox.run_candidate(
        target="cpp",
        text=text,
        entry="scale",
        signature=vk.signature(n),
        library=vk.build_library(text),
        tensors=vk.case(n).tensors,
        sizes=(n,),
        **options,
    )


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.posix("a process of its own for edits")
def test_prestart_returns_at_once_and_starts_one():
    sandbox.worker().close()
    sandbox.prestart()
    assert not sandbox.worker()._ready
    pid = sandbox.worker().pid
    sandbox.prestart()
    assert sandbox.worker().pid == pid is not None
    assert run().ok
    assert sandbox.worker().pid == pid


def test_prestart_does_not_wait_for_a_run():
    run()
    endless, options = "volatile int on = 1; while (on) {}", {"timeout": 3.0}
    thread = threading.Thread(target=run, args=(endless,), kwargs=options)
    thread.start()
    wait_for(sandbox.worker()._lock.locked)
    sandbox.prestart()
    assert thread.is_alive()
    thread.join()


def test_values_and_strides_come_back():
    result = run()
    assert result.ok
    (out,) = result.outputs
    assert out.dtype == torch.float32
    assert out.shape == (1000,)
    assert result.seconds > 0
    assert result.wall > 0


@pytest.mark.timing
def test_the_next_run_after_a_failure_is_fast():
    run()
    for body in ("abort();", "volatile int on = 1; while (on) {}", "out[n] = 1;"):
        assert not run(body, timeout=0.5).ok
        started = time.perf_counter()
        assert run().ok
        assert time.perf_counter() - started < 0.3


def test_the_parent_has_used_openmp():
    # A fork of this process would hang in the kernel's parallel region.
    torch.set_num_threads(2)
    torch.randn(4_000_000).exp().sum()
    assert run().ok


def test_a_worker_that_was_killed_is_replaced():
    assert run().ok
    pid = sandbox.worker().pid
    os.kill(pid, signal.SIGKILL)
    assert run().ok
    assert sandbox.worker().pid not in (pid, None)


def test_a_kernel_that_kills_its_parent():
    # No accident that happens, but it must not hang either.
    with pytest.raises(WorkerError, match="ended"):
        run("kill(getppid(), 9); for (;;) pause();")
    assert run().ok


@pytest.mark.linux("for how long a process has had processors")
def test_an_endless_loop_ends_by_the_processors_that_it_uses():
    endless = "volatile int on = 1; while (on) {}"
    result = run(endless, timeout=1000.0, busy=0.2)
    assert (result.stage, result.wall < 500) == ("timeout", True), result


def test_who_waits_uses_no_processor():
    # As a kernel does while others have all of them.
    assert run(f"usleep(800000);\n{vk.RIGHT}", timeout=1000.0, busy=0.5).ok


def test_an_interrupt_ends_the_run():
    run()
    timer = threading.Timer(0.4, lambda: os.kill(os.getpid(), signal.SIGINT))
    # Whatever ran before in this process may have left another one.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        started = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            run("volatile int on = 1; while (on) {}", timeout=30.0)
        assert time.perf_counter() - started < 25.0
    finally:
        signal.signal(signal.SIGINT, before)
    assert run().ok


def test_a_deleted_working_folder_is_no_kernels_fault(tmp_path, monkeypatch):
    (tmp_path / "deleted").mkdir()
    monkeypatch.chdir(tmp_path / "deleted")
    (tmp_path / "deleted").rmdir()
    sandbox.worker().close()
    result = run()
    assert result.ok, result.reason


def test_an_interrupt_does_not_wait_for_a_worker_that_sees_nothing(monkeypatch):
    assert run().ok
    monkeypatch.setattr(process, "_END_LIMIT", 30.0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    pid = sandbox.worker().pid
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(0.4, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        timer.start()
        started = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            run(timeout=60.0)
        assert time.perf_counter() - started < 25.0
    finally:
        signal.signal(signal.SIGINT, before)
    assert gone(pid)
    assert run().ok


@pytest.mark.posix("a process of its own for edits")
def test_the_worker_ends_with_its_parent():
    code = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from fusec.verify.isolation import sandbox
from support import handwritten_kernels as vk
text = vk.cpp("volatile int on = 1; while (on) {}")
library = vk.build_library(text)
sandbox.prestart()
sandbox.worker().ask({"do": "import", "modules": []}, (), 60)
print(sandbox.worker().pid, flush=True)
sandbox.run_candidate(target="cpp", text=text, entry="scale", signature=vk.signature(),
                      library=library, tensors=vk.case().tensors, sizes=(1000,), timeout=60)
"""
    folder = str(TESTS)
    process = subprocess.Popen(
        [sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True
    )
    pid = int(process.stdout.readline())
    wait_for(lambda: psutil.Process(pid).children())
    busy = lambda: [p for p in psutil.Process(pid).children() if p.cpu_times().user > 0.2]  # noqa: E731
    wait_for(busy)
    children = [p.pid for p in psutil.Process(pid).children()]
    process.kill()
    process.wait()
    wait_for(lambda: all(gone(p) for p in [pid, *children]))


def test_a_fork_of_the_parent_has_a_worker_of_its_own():
    assert run().ok
    pid = sandbox.worker().pid
    child = os.fork()
    if child == 0:
        status = 1
        try:
            # Not a run: this process has used OpenMP, and so cannot copy with threads.
            assert sandbox.worker().pid is None
            sandbox.prestart()
            assert sandbox.worker().pid not in (None, pid)
            sandbox.worker().close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run().ok
    assert sandbox.worker().pid == pid


def test_several_threads_ask():
    results = []
    threads = [threading.Thread(target=lambda: results.append(run().ok)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_a_worker_that_cannot_start_says_why(monkeypatch):
    sandbox.worker().close()
    monkeypatch.setattr(sandbox.worker(), "module", "fusec.verify.no_such_module")
    with pytest.raises(WorkerError, match="no_such_module"):
        run()
    verdict = vk.check(vk.cpp(), timed=False)
    assert (verdict.ok, verdict.stage) == (False, "crash")
    assert "could not be checked" in verdict.reason


def test_descriptors_are_not_leaked():
    run()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


@pytest.mark.linux("a limit of a process's memory")
def test_memory_is_limited():
    body = (
        "for (;;) { char* p = (char*)malloc(1 << 28); if (!p) abort();"
        " for (long i = 0; i < (1 << 28); i += 1 << 24) p[i] = 1; }"
    )
    result = run(body, timeout=20.0)
    assert result.stage == "crash"


def test_what_it_prints_is_kept_and_limited():
    result = run('for (int i = 0; i < 900; i++) puts("hello there");\n' + vk.RIGHT)
    assert result.ok
    assert result.details.startswith("hello there")
    assert len(result.details) < 10_000
    result = run('for (int i = 0; i < 300000; i++) puts("hello there");\n' + vk.RIGHT)
    assert not result.ok
    assert result.reason.startswith("prints ")


DTYPES = [
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.float8_e5m2,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype):
    text = (
        "#include <stdint.h>\n#include <string.h>\n"
        'extern "C" int copy(const char* x, char* out, int64_t bytes, int64_t threads) {\n'
        "    memcpy(out, x, bytes);\n    return 0;\n}\n"
    )
    signature = Signature(
        (Argument("x", dtype, (), (), "in"), Argument("out", dtype, (), (), "out")), ("bytes",)
    )
    x = torch.randint(0, 2, (3, 5)).to(dtype)
    result = sandbox.run_candidate(
        target="cpp",
        text=text,
        entry="copy",
        signature=signature,
        library=vk.build_library(text),
        tensors=[x, torch.empty_like(x)],
        sizes=(x.numel() * x.element_size(),),
    )
    assert result.ok, result
    assert result.outputs[0].dtype == dtype
    assert torch.equal(result.outputs[0].view(torch.uint8), x.view(torch.uint8))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "x",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(24.0).reshape(4, 6)[::2, 1::2],
        torch.arange(3.0).expand(4, 3),
        torch.tensor(3.0),
        torch.empty(0, 3),
        torch.arange(10.0)[3:],
    ],
    ids=["transposed", "sliced", "expanded", "0-d", "empty", "offset"],
)
def test_strided_inputs(x):
    shape = [*x.shape, 1, 1][:2]
    strides = [*x.stride(), 0, 0][:2]
    text = (
        "#include <stdint.h>\n"
        'extern "C" int gather(const float* x, float* out, int64_t rows, int64_t columns,'
        " int64_t down, int64_t across, int64_t threads) {\n"
        "    for (int64_t i = 0; i < rows; i++) for (int64_t j = 0; j < columns; j++)\n"
        "        out[i * columns + j] = x[i * down + j * across];\n    return 0;\n}\n"
    )
    signature = Signature(
        (
            Argument("x", torch.float32, (), (), "in"),
            Argument("out", torch.float32, (), (), "out"),
        ),
        ("rows", "columns", "down", "across"),
    )
    result = sandbox.run_candidate(
        target="cpp",
        text=text,
        entry="gather",
        signature=signature,
        library=vk.build_library(text),
        tensors=[x, torch.empty(x.shape)],
        sizes=(*shape, *strides),
    )
    assert result.ok, result
    assert torch.equal(result.outputs[0], x)
