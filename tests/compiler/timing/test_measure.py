"""Measurement: what it returns, that it restores, and that it can be believed."""

from __future__ import annotations

import gc
import time

import pytest
import torch

from fusec.timing.measure import (
    MOST_ROUNDS,
    Series,
    _EventClock,
    converged,
    interleave,
    interleave_series,
    judge,
    quartiles,
)


def work(count):
    def call():
        total = 0
        for i in range(count):
            total += i
        return total

    return call


def test_returns_medians_and_says_how():
    figures = interleave({"short": work(50), "long": work(5000)}, seconds=0.05)
    assert set(figures) == {"short", "long"}
    for timing in figures.values():
        assert 0 < timing.low <= timing.median <= timing.high
        assert timing.samples >= 7
        assert "interleaved in random order with 1 other" in timing.method
    assert figures["long"].median > 10 * figures["short"].median


def test_blocks_are_long_enough_for_the_clock():
    series = interleave_series({"short": work(1)}, seconds=0.05)["short"]
    assert series.calls > 50
    assert "alone" in series.method


def test_nothing_to_time():
    assert interleave({}) == {}


def test_before_runs_ahead_of_every_call():
    order = []
    figures = interleave(
        {"a": lambda: order.append("call")}, seconds=0.0, before=lambda: order.append("before")
    )
    assert order[::2] == ["before"] * (len(order) // 2)
    assert order[1::2] == ["call"] * (len(order) // 2)
    assert "restored before each" in figures["a"].method


def test_before_a_candidate():
    seen = []
    interleave({"a": work(1), "b": work(1)}, seconds=0.0, before={"a": lambda: seen.append("a")})
    assert set(seen) == {"a"}


def test_min_samples_count_more_than_seconds():
    assert interleave({"a": work(10)}, seconds=0.0, min_samples=11)["a"].samples == 11


def test_stop_ends_after_a_round():
    figures = interleave({"a": work(10), "b": work(10)}, seconds=60, stop=lambda: True)
    assert {timing.samples for timing in figures.values()} == {1}


def test_the_collector_is_off_during_blocks_and_on_again():
    states = []
    interleave({"a": lambda: states.append(gc.isenabled())}, seconds=0.0)
    assert gc.isenabled()
    assert not states[-1]


def test_an_exception_leaves_the_collector_on():
    calls = []

    def fails():
        calls.append(1)
        if len(calls) > 30:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        interleave({"a": fails}, seconds=60)
    assert gc.isenabled()


def test_synchronize_is_within_the_block():
    timing = interleave({"a": lambda: None}, seconds=0.0, synchronize=lambda: time.sleep(0.001))[
        "a"
    ]
    assert timing.median > 1e-6


def test_quartiles():
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)


def series(*samples):
    return Series(tuple(samples), 1, "")


def test_judge():
    noise = [1.0, 1.01, 0.99, 1.0, 1.005, 0.995] * 5
    base = series(*noise)
    assert judge(base, base) == ("SAME", 1.0)
    assert judge(series(*(0.9 * x for x in noise)), base)[0] == "FASTER"
    assert judge(series(*(1.1 * x for x in noise)), base)[0] == "SLOWER"
    wild = series(*(x * (0.5 if i % 2 else 1.6) for i, x in enumerate(noise)))
    assert judge(wild, base)[0] == "UNCLEAR"


@pytest.mark.timing
def test_a_call_is_not_faster_than_itself():
    call, agree = work(200), 0
    for _ in range(40):
        measured = interleave_series({"a": call, "b": call}, seconds=0.05)
        agree += judge(measured["a"], measured["b"])[0] in ("SAME", "UNCLEAR")
    assert agree >= 38


@pytest.mark.timing
def test_a_five_percent_delay_is_found():
    found = 0
    for _ in range(5):
        measured = interleave_series({"a": work(2000), "b": work(2140)}, seconds=0.3)
        found += judge(measured["b"], measured["a"])[0] == "SLOWER"
    assert found >= 4


def test_it_may_stop_once_the_medians_are_known():
    assert converged([[1.0, 1.0, 1.01, 1.0]], 0.01)
    assert not converged([[1.0, 1.0, 1.01, 1.0], [1.0, 2.0, 3.0, 4.0]], 0.01)
    assert converged([[1.0, 2.0, 3.0, 4.0] * 5000], 0.01)  # a wide spread takes many samples
    started = time.perf_counter()
    series = interleave_series({"a": work(2000), "b": work(2000)}, seconds=20, precision=0.5)
    assert time.perf_counter() - started < 10
    assert all(len(each.samples) >= 8 for each in series.values())


def test_without_a_precision_it_takes_its_time():
    started = time.perf_counter()
    series = interleave_series({"a": work(2000)}, seconds=0.3)["a"]
    # or all the rounds that there are, where the first calls were so slow that blocks are short
    assert time.perf_counter() - started >= 0.3 or len(series.samples) == MOST_ROUNDS


class FakeEvent:
    """An event of a device that is through with ``ahead`` overwritten caches when asked."""

    ahead = 0
    written = 0

    def __init__(self, **_: object) -> None:
        self.at = 0

    def record(self) -> None:
        self.at = FakeEvent.written

    def query(self) -> bool:
        return FakeEvent.ahead >= self.at

    def elapsed_time(self, other: FakeEvent) -> float:
        return 1.0


@pytest.mark.parametrize(("ahead", "flushes"), [(0, 1), (1, 2), (3, 4), (100, 8)])
def test_the_host_stays_ahead_of_the_device(monkeypatch, ahead, flushes) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(FakeEvent, "ahead", ahead)

    class Buffer:
        def zero_(self) -> None:
            FakeEvent.written += 1

    clock = _EventClock(False, lambda: None)
    clock.buffer = Buffer()
    calls = []

    def call() -> None:
        calls.append(FakeEvent.written)
        FakeEvent.written = 0

    for _ in range(5):
        clock.block(call, None, 1)
    assert clock.flushes == flushes
    assert calls[-1] == flushes
    assert clock.finish([0.0, 4.0]) == [1e-3, 1e-3]
