"""What products of halves cost: measured once, kept, and heeded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusec
from fusec.graph import choices
from fusec.graph.facts import half_speed as speeds
from fusec.graph.facts.half_speed import HalfSpeed

HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", HALVES)
def test_measured_once_and_kept(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds._half_speed.cache_clear()
    before = torch.get_rng_state()
    found = speeds.half_speed(dtype)
    assert torch.equal(before, torch.get_rng_state())
    for each in (found.half, found.single, found.conversion):
        assert 0 < each < 1000
    monkeypatch.setattr(speeds, "measured", lambda dtype: pytest.fail("measured again"))
    assert speeds.half_speed(dtype) == found
    speeds._half_speed.cache_clear()  # as in the next process
    assert speeds.half_speed(dtype) == found


def test_other_threads_are_another_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds._half_speed.cache_clear()
    asked: list[int] = []

    def measured(dtype: torch.dtype) -> HalfSpeed:
        asked.append(torch.get_num_threads())
        return HalfSpeed(1.0, 1.0, 1.0)

    monkeypatch.setattr(speeds, "measured", measured)
    threads = torch.get_num_threads()
    try:
        for count in (3, 4, 3):
            torch.set_num_threads(count)
            speeds.half_speed(torch.float16)
    finally:
        torch.set_num_threads(threads)
        speeds._half_speed.cache_clear()
    assert asked == [3, 4]


@pytest.mark.parametrize("under", ["nothing", "autocast", "inference"])
def test_in_the_middle_of_a_compilation(under: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[HalfSpeed] = []

    def half_speed(dtype: torch.dtype) -> HalfSpeed:
        found.append(speeds.measured(dtype))
        return HalfSpeed(half=0.05, single=0.01, conversion=0.01)

    monkeypatch.setattr(choices, "half_speed", half_speed)
    torch._dynamo.reset()
    compiled = fusec.compile(torch.mm)
    x = torch.randn(64, 64)
    if under == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            result = compiled(x, x)
    elif under == "inference":
        with torch.inference_mode():
            result = compiled(x.bfloat16(), x.bfloat16())
    else:
        result = compiled(x.bfloat16(), x.bfloat16())
    assert found
    torch.testing.assert_close(result.float(), x @ x, rtol=0.1, atol=0.5)
    (extern,) = compiled.graphs[0].externs
    assert "in float32" in extern.reason


def test_when_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = HalfSpeed(half=0.013, single=0.0074, conversion=0.4)
    monkeypatch.setattr(choices, "half_speed", lambda dtype: speed)
    assert choices.multiplies_slowly(torch.bfloat16)
    weight = 768 * 768
    assert choices.pays_to_widen(torch.bfloat16, 128 * weight, weight)
    assert not choices.pays_to_widen(torch.bfloat16, 32 * weight, weight)
    assert choices.pays_to_widen(torch.bfloat16, weight, 0)
    near = HalfSpeed(half=0.0085, single=0.0074, conversion=0.4)
    monkeypatch.setattr(choices, "half_speed", lambda dtype: near)
    assert not choices.multiplies_slowly(torch.float16)


def test_each_time_is_of_its_own_product(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    mm, copy = torch.mm, torch.Tensor.copy_

    def multiply(left: torch.Tensor, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
        asked.append(str(left.dtype).removeprefix("torch."))
        return mm(left, *args, **kwargs)

    def convert(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        asked.append(f"from {source.dtype} to {target.dtype}".replace("torch.", ""))
        return copy(target, source)

    def least(*calls: Callable[[], object]) -> list[float]:
        for call in calls:
            call()
        return [1e-3, 2e-3, 4e-3]

    monkeypatch.setattr(torch, "mm", multiply)
    monkeypatch.setattr(torch.Tensor, "copy_", convert)
    monkeypatch.setattr(speeds, "_least", least)
    found = speeds.measured(torch.bfloat16)
    assert asked[-3:] == ["bfloat16", "float32", "from bfloat16 to float32"]
    assert found.single == 2 * found.half == 2e6 / (128 * 768 * 768)
    assert found.conversion == 4e6 / (8 << 20)
