"""The native part of calls is waited for once, and is built where others have the machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fusec.call import native
from fusec.systems import this_system


class Endless:
    """A thread that goes on, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0

    def join(self, seconds: float) -> None:
        self.now += seconds

    def is_alive(self) -> bool:
        return True


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Endless:
    thread = Endless()
    monkeypatch.setattr(native, "_thread", thread)
    monkeypatch.setattr(native, "_waited", 0.0)
    monkeypatch.setattr(native, "time", SimpleNamespace(monotonic=lambda: thread.now))
    return thread


def test_who_has_waited_in_vain_does_not_wait_again(endless: Endless) -> None:
    assert not native.await_types(0)
    assert endless.now == 0
    assert not native.await_types(4)
    assert endless.now == 4
    for _ in range(3):  # of ten seconds six are left, once
        assert not native.await_types(10)
        assert endless.now == 10


@pytest.mark.parametrize(
    ("load", "awaited", "gives_way"),
    [
        pytest.param(lambda: 0.0, False, True, id="quiet"),
        pytest.param(lambda: 1e3, False, False, id="busy"),
        pytest.param(lambda: 0.0, True, False, id="awaited"),
        pytest.param(None, False, True, id="unknown"),
    ],
)
def test_the_build_gives_way_unless_it_would_get_nothing(
    load: Callable[[], float] | None,
    awaited: bool,
    gives_way: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def average() -> tuple[float, ...]:
        if load is None:
            raise OSError("the system does not say")
        return (load(), 0.0, 0.0)

    done: list[str] = []
    part = SimpleNamespace(part=SimpleNamespace(prepare=lambda _children: done.append("built")))
    monkeypatch.setattr(os, "getloadavg", average, raising=False)
    monkeypatch.setattr(type(this_system()), "give_way", lambda _: done.append("gives way"))
    for name in ("memory", "capsule", "products"):
        monkeypatch.setattr(native, name, part)

    def types(*_: Any) -> Callable[[], tuple[None, ...]]:
        return lambda: (None,) * 6

    monkeypatch.setattr(native, "_load", types)
    monkeypatch.setattr(native, "_types", native._types)
    monkeypatch.setattr(native, "_device_types", native._device_types)
    monkeypatch.setattr(native.torch.cuda, "is_available", lambda: False)
    native._prepare_all(awaited)
    assert done == ["built", *["gives way"] * gives_way, "built", "built"]
