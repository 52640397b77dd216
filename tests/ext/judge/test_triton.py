"""Triton answers, judged in the interpreter: every load and store is looked at."""

from __future__ import annotations

import builtins
import importlib.util
from typing import Any

import pytest
import torch

from fuselab.judge import judge
from support.triton_cheats import CHEATS, DOUBLE, FAST, FAST_CHEATS, FAST_RIGHT, RIGHT

pytest.importorskip("triton")


def test_a_right_answer_passes() -> None:
    verdict = judge(DOUBLE, RIGHT)
    assert verdict.ok, verdict
    found = {each.what: each.found for each in verdict.findings}
    assert found["kernels"] == "1"
    assert found["bytes"] == "800"
    assert ("GPU" in found) == torch.cuda.is_available()


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CHEATS)
def test_what_is_refused(name: str) -> None:
    text, said = CHEATS[name]
    verdict = judge(DOUBLE, text)
    assert not verdict.ok, verdict
    assert said in verdict.reason, verdict
    assert len(verdict.reason) > 20


@pytest.mark.gpu
def test_what_is_timed_on_a_gpu() -> None:
    verdict = judge(FAST, FAST_RIGHT)
    assert verdict.ok, verdict
    assert [each.what for each in verdict.findings] == ["results", "kernels", "GPU", "share"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAST_CHEATS)
def test_what_is_refused_on_a_gpu(name: str) -> None:
    """In the interpreter these are right: it is on the GPU that they save work, or waste it."""
    text, said = FAST_CHEATS[name]
    verdict = judge(FAST, text)
    assert not verdict.ok, verdict
    assert said in verdict.reason, verdict


@pytest.mark.parametrize("name", FAST_CHEATS)
def test_what_is_timed_on_a_gpu_is_right_in_the_interpreter(name: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("the judge goes on to the GPU here")
    verdict = judge(FAST, FAST_CHEATS[name][0])
    assert verdict.ok, verdict


def test_a_line_is_named() -> None:
    verdict = judge(DOUBLE, CHEATS["no mask on the store"][0])
    assert verdict.line == 8
    assert judge(DOUBLE, CHEATS["refused by Triton"][0]).line == 6


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "triton" else real(name)
    )
    verdict = judge(DOUBLE, RIGHT)
    assert not verdict.ok
    assert "needs Triton" in verdict.reason


def test_the_views_say_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuselab.labs import machine_code, programs
    from fuselab.labs.triton_views import NoTriton

    real = builtins.__import__

    def hidden(name: str, *rest: Any) -> Any:
        if name == "triton":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", hidden)
    for view in (programs, machine_code):
        with pytest.raises(NoTriton, match="pip install triton"):
            view(lambda x: None, torch.empty(1))
