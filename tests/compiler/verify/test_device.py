"""The check of a Triton kernel on a GPU: margins, sticky errors, endless kernels."""

from __future__ import annotations

import time

import pytest
import torch

from fusec.verify.check import Case, check_kernel
from fusec.verify.isolation import sandbox
from support import handwritten_kernels as vk

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def worker():
    yield
    sandbox.device_worker().close()


def runnable(text):
    from fusec.targets.triton.toolchain.candidate import load_file

    launch = load_file(text, f"inproc_{abs(hash(text))}.py")["launch"]
    return lambda tensors, sizes: launch(*tensors, *sizes)


def check(text, n=1000, **options):
    case = Case((torch.randn(n, device="cuda"), torch.empty(n, device="cuda")), (n,))
    options.setdefault("timed", False)
    return check_kernel(
        vk.kernel(target="triton", n=n),
        text,
        cases=[case],
        build=lambda text: None,
        interpret=vk.interpret,
        generated=runnable(vk.TRITON),
        **options,
    )


def test_right():
    verdict = check(vk.TRITON, timed=True, n=1_000_000, timeout=30.0)
    assert verdict.ok, verdict
    assert "device events" in verdict.timing.method
    assert "L2 overwritten" in verdict.timing.method


WRONG = {
    "no mask": (
        ("tl.store(out + i, value * 2.0 + 1.0, mask=mask)", "tl.store(out + i, value * 2.0 + 1.0)"),
        "bounds",
        "writes past the end of `out` (by 1 element)",
    ),
    "before the start": (
        ("tl.store(out + i", "tl.store(out + i - 1, value, mask=mask)\n    tl.store(out + i"),
        "bounds",
        "writes before the start of `out`",
    ),
    "far": (
        ("tl.store(out + i", "tl.store(out + i.to(tl.int64) * 10000000000"),
        "bounds",
        "device memory out of bounds",
    ),
    "wrong": (("2.0 + 1.0", "2.0 + 1.5"), "wrong", "differs from eager by 0.5"),
    "unwritten": (("triton.cdiv(n, BLOCK)", "n // BLOCK"), "wrong", "unwritten"),
    "changes its input": (
        ("tl.store(out", "tl.store(x + i, value + 1, mask=mask)\n    tl.store(out"),
        "wrong",
        "changes its input `x`",
    ),
    "refused by Triton": (("value * 2.0", "valeu * 2.0"), "compile", "valeu"),
    "endless": (
        ("    mask = i < n", "    while n > 0:\n        n = n | 1\n    mask = i < n"),
        "timeout",
        "",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_refuses(name):
    change, stage, reason = WRONG[name]
    text = vk.TRITON.replace(*change)
    assert text != vk.TRITON
    verdict = check(text, timeout=4.0 if name == "endless" else 30.0)
    assert (verdict.ok, verdict.stage) == (False, stage), verdict
    assert reason in verdict.reason
    if stage == "compile":
        assert "valeu" in text.splitlines()[verdict.line - 1]
    # The notebook's own context is untouched, and the next check works.
    assert torch.ones(3, device="cuda").sum().item() == 3
    started = time.perf_counter()
    assert check(vk.TRITON, timeout=30.0, kinds=()).ok
    assert time.perf_counter() - started < 30


@pytest.mark.timing
def test_a_warm_check_is_fast():
    check(vk.TRITON, kinds=(), timeout=30.0)
    started = time.perf_counter()
    assert check(vk.TRITON.replace("2.0 + 1.0", "2.0 + 1.00"), timed=True).ok
    seconds = time.perf_counter() - started
    print(f"a warm check on a GPU took {seconds:.3f} s")
    assert seconds < 2.0


def test_tuning(tmp_path):
    from fusec.cache import CacheStore
    from fusec.tune.run import tune_in_graph

    tmp_path.chmod(0o700)
    kernel = vk.kernel(target="triton", n=1_000_000)
    kernel.host.build = lambda kernel, text: runnable(text)
    kernel.host.check = lambda kernel, text, **options: check(text, timeout=30.0)
    tensors = [torch.randn(1_000_000, device="cuda"), torch.empty(1_000_000, device="cuda")]
    run = tune_in_graph(
        kernel.host,
        kernel,
        tensors,
        (1_000_000,),
        budget=10.0,
        store=CacheStore(tmp_path),
        build=lambda kernel, text: runnable(text),
    )
    print([(dict(t.values), t.timing and t.timing.median, t.error) for t in run.trials])
    assert len(run.trials) == 3
    assert all(t.timing is not None for t in run.trials)
