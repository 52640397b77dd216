"""torch's stand-in for CUDA is made by a thread that does not end."""

from __future__ import annotations

import threading

import pytest
import torch

from fusec.capture.dynamo.device_guard import keep_device_guard


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Return the threads that made a stand-in, on a machine without a GPU."""
    found: list[threading.Thread] = []
    monkeypatch.setattr(
        torch._C,
        "_ensureCUDADeviceGuardSet",
        lambda: found.append(threading.current_thread()),
        raising=False,
    )
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    return found


def test_the_main_thread_makes_it(makers: list[threading.Thread]) -> None:
    keep_device_guard()
    assert makers == [threading.main_thread()]


def test_in_another_thread_one_that_stays_makes_it(makers: list[threading.Thread]) -> None:
    thread = threading.Thread(target=keep_device_guard)
    thread.start()
    thread.join()
    (maker,) = makers
    assert maker is not thread
    assert maker.is_alive()
    assert maker.daemon, "it must not keep the process"


@pytest.mark.parametrize(("built", "count"), [(False, 0), (True, 1)])
def test_it_is_not_made_where_torch_makes_none(
    makers: list[threading.Thread], monkeypatch: pytest.MonkeyPatch, built: bool, count: int
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    keep_device_guard()
    assert makers == []
