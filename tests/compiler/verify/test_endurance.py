"""Many calls in a row: what they leave is seen on a busy machine, too."""

from __future__ import annotations

import ctypes
import os
import time

import pytest

from fusec.verify.isolation import endurance


@pytest.mark.linux("how much the C library has handed out")
def test_a_leak_on_a_busy_machine(tmp_path, monkeypatch):
    """A call that waits for a processor takes long, and says nothing of how many there can be."""
    monkeypatch.setattr(endurance, "_LONG", 0.1)
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    kept = []

    def call() -> int:
        time.sleep(0.006)
        kept.append(libc.malloc(1000))
        return 0

    log = os.open(tmp_path / "log", os.O_CREAT | os.O_RDWR)
    words = endurance._many(endurance._Counted(call, None, lambda: False), log)
    os.close(log)
    libc.free.argtypes = [ctypes.c_void_p]
    for each in kept:
        libc.free(each)
    assert words.startswith("never frees")


def test_calls_that_are_timed_say_that_they_come_back():
    """A block of them takes seconds on a busy machine: silence would pass for an endless loop."""
    told = []
    counted = endurance._Counted(lambda: 0, None, lambda: told.append(counted.calls) is not None)
    for _ in range(100):
        counted.bare()
    assert len(told) >= 6
