"""TorchDynamo does not time its guards while fusec compiles, and does afterwards."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import torch

import fusec
from fusec.capture.guard_times import NoGuardTimes


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    guards: Any = torch._dynamo.guards
    plain, calls = guards.profile_guard_manager, []
    monkeypatch.setattr(
        guards, "profile_guard_manager", lambda *args: (calls.append(args), plain(*args))[1]
    )
    monkeypatch.setattr(guards.guards_log, "isEnabledFor", lambda level: False)
    return calls


def test_compiling_is_not_held_up(timed: list[Any]) -> None:
    guards: Any = torch._dynamo.guards
    before, x = guards.profile_guard_manager, torch.randn(8)
    torch.testing.assert_close(fusec.compile(lambda x: x.sin() + 1)(x), x.sin() + 1)
    assert timed == []
    assert guards.profile_guard_manager is before
    torch.testing.assert_close(
        torch.compile(lambda x: x.cos() + 1, backend="eager")(x), x.cos() + 1
    )
    assert len(timed) == 1
    torch._dynamo.reset()


def test_several_at_once(timed: list[Any]) -> None:
    guards: Any = torch._dynamo.guards
    before = guards.profile_guard_manager
    with NoGuardTimes():
        with NoGuardTimes():
            assert guards.profile_guard_manager is not before
        assert guards.profile_guard_manager is not before
    assert guards.profile_guard_manager is before

    def work() -> None:
        for _ in range(200):
            with NoGuardTimes():
                assert guards.profile_guard_manager is not before

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert guards.profile_guard_manager is before
    with pytest.raises(ValueError, match="mine"), NoGuardTimes():
        raise ValueError("mine")
    assert guards.profile_guard_manager is before


def test_where_somebody_wants_to_know(monkeypatch: pytest.MonkeyPatch, timed: list[Any]) -> None:
    guards: Any = torch._dynamo.guards
    before = guards.profile_guard_manager
    monkeypatch.setattr(guards.guards_log, "isEnabledFor", lambda level: level >= logging.DEBUG)
    with NoGuardTimes():
        assert guards.profile_guard_manager is before
    monkeypatch.delattr(guards, "profile_guard_manager")  # another release
    with NoGuardTimes():
        assert not hasattr(guards, "profile_guard_manager")
    assert not hasattr(guards, "profile_guard_manager")
