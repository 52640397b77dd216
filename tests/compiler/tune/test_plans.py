"""Tuning over plans of a kernel's loops: which is tried, used, kept, and used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fusec
from fusec.cache import CacheStore
from fusec.call.runnable import build_runnable
from fusec.kernel import Kernel
from fusec.kernel_source import KernelSource
from fusec.timing.measure import Series
from fusec.tune import run as tune_run
from fusec.tune.records import text_digest

WANTED = "keep_rows=0"


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test records of its own, and let them be used again."""
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    made = CacheStore(folder)
    monkeypatch.setattr("fusec.tune.run.default_store", lambda: made)
    monkeypatch.setattr("fusec.tune.pins.default_store", lambda: made)
    monkeypatch.setenv("FUSEC_TUNED", "1")
    yield
    torch._dynamo.reset()


@pytest.fixture
def favored(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let the text of one plan take half the time of all others, whatever it takes."""
    texts: list[str] = []
    built: dict[int, str] = {}
    bound = tune_run._Bound

    def remember(kernel: Kernel, text: str) -> object:
        runnable = build_runnable(kernel, text)
        built[id(runnable)] = text
        return runnable

    def measure(candidates: dict[str, Callable[[], None]], **_: object) -> dict[str, Series]:
        found = {}
        for name, call in candidates.items():
            text = built.get(id(call.runnable), "") if isinstance(call, bound) else ""
            call()
            seconds = 1e-3 * (0.5 if texts and text_digest(text) in texts else 1.0)
            found[name] = Series(tuple(seconds * f for f in (1.0, 1.001, 0.999) * 6), 1, "made up")
        return found

    monkeypatch.setattr(tune_run, "build_runnable", remember)
    monkeypatch.setattr(tune_run, "interleave_series", measure)
    return texts


def compiled_softmax() -> tuple[Callable[..., torch.Tensor], torch.Tensor, Kernel]:
    torch._dynamo.reset()
    x = torch.randn(60, 300, generator=torch.Generator().manual_seed(0))
    compiled = fusec.compile(softmax, keep_inputs=True)
    compiled(x)
    (kernel,) = compiled.kernels.values()
    return compiled, x, kernel


def test_a_plan_that_is_faster_is_used_and_used_again(favored: list[str]) -> None:
    compiled, x, kernel = compiled_softmax()
    before = kernel.source
    assert WANTED in kernel.plans
    favored.append(text_digest(kernel.variant(WANTED).text))

    run = kernel.tune(30.0)
    assert run.winner is not None
    assert run.winner.plan == WANTED
    assert kernel.plan == WANTED
    assert kernel.state == "tuned"
    assert kernel.source != before
    assert kernel.heuristic.text == before
    assert kernel.source == kernel.generated.text, "lines and reasons are the plan's in use"
    torch.testing.assert_close(compiled(x), softmax(x))

    tried = {trial.plan for trial in run.trials}
    assert {"", WANTED, "split_reduction"} <= tried
    assert {plan.name for plan in run.plans} == tried
    reasons = run.plan_reasons()
    assert any("keep_rows" in reason for reason in reasons), reasons
    assert all(reason.startswith(("now ", "before ")) for reason in reasons)

    # another process, or the same function compiled again
    again, x, second = compiled_softmax()
    assert second.plan == WANTED
    assert second.source == kernel.source
    assert second.tuning is not None
    assert second.tuning.plans == run.plans
    torch.testing.assert_close(again(x), softmax(x))

    # a second run starts from what won, under the same key, and stays there
    rerun = second.tune(30.0)
    assert rerun.trials[0].plan == WANTED
    assert rerun.plans[0].name == WANTED
    assert rerun.best == 0
    assert second.plan == WANTED

    second.revert()
    assert second.plan == ""
    assert second.source == before
    assert second.state == "generated"


def test_a_plan_that_the_compiler_writes_otherwise_now_is_not_used_again(
    favored: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, kernel = compiled_softmax()
    favored.append(text_digest(kernel.variant(WANTED).text))
    kernel.tune(30.0)
    assert kernel.plan == WANTED

    write = Kernel.variant

    def otherwise(kernel: Kernel, plan: str) -> KernelSource:
        made = write(kernel, plan)
        return replace(made, text=f"// another emitter\n{made.text}") if plan else made

    monkeypatch.setattr(Kernel, "variant", otherwise)
    _, _, second = compiled_softmax()
    assert second.plan == ""
    assert second.state == "generated"


def test_where_nothing_is_faster_the_heuristics_keep_it(favored: list[str]) -> None:
    _, _, kernel = compiled_softmax()
    run = kernel.tune(30.0)
    assert run.best == 0
    assert kernel.plan == ""
    assert not run.plan_reasons()
    assert {trial.plan for trial in run.trials} > {"", WANTED}


def test_what_somebody_asked_for_is_not_tried_otherwise() -> None:
    x = torch.randn(60, 300)
    compiled = fusec.compile(softmax, keep_inputs=True, loops=["softmax: rows prefetch=0"])
    compiled(x)
    (kernel,) = compiled.kernels.values()
    assert "prefetch=0" not in kernel.plans
    assert "columns" not in kernel.plans


def test_an_edited_kernel_has_its_own_text_alone(favored: list[str]) -> None:
    _, _, kernel = compiled_softmax()
    assert kernel.keep(kernel.source.replace("return 0;", "return 0; // mine")).ok
    assert kernel.state == "edited"
    assert kernel.plans == ()
    run = kernel.tune(5.0)
    assert {trial.plan for trial in run.trials} == {""}
    assert "// mine" in kernel.source
