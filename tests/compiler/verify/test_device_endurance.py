"""Many calls on a device, without one: what its memory and streams say is made up."""

from __future__ import annotations

import threading

import pytest
import torch

from fusec.timing import measure
from fusec.verify.isolation import device_endurance, sandbox, state
from fusec.verify.isolation.process import NoAnswer, WorkerEnded
from support import handwritten_kernels as vk


class Operand:
    """An argument that lies in this machine's memory."""

    updated = False

    def __init__(self) -> None:
        self.raw = torch.zeros(8, dtype=torch.uint8)

    def clear(self) -> None:
        self.raw.fill_(7)

    def restore(self) -> None:
        pass


@pytest.fixture
def device(monkeypatch):
    """A device that has memory, and nothing to wait for."""
    free = [1 << 34]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free[0], 1 << 35))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(device_endurance, "_on_other_streams", lambda call, operands: "")
    return free


def test_memory_that_is_never_freed(device):
    def leaks():
        device[0] -= 4 << 20

    found = device_endurance.endure(None, leaks, None, [Operand()])
    assert found["problem"] == "state"
    assert found["words"] == "never frees 4 MB of the device's memory a call"


def test_tensors_that_are_kept(device, monkeypatch):
    """They come from memory that torch has already: none of the device's is taken."""
    held = []
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: len(held) << 20)
    words = device_endurance._leaks(lambda: held.append(1))
    assert words == "never frees 1 MB of the device's memory a call"


def test_memory_that_others_take_is_no_leak(device, monkeypatch):
    """Somebody else's job begins: what is free shrinks at each look, with calls and without."""

    def taken():
        device[0] -= 16 << 20
        return device[0], 1 << 35

    monkeypatch.setattr(torch.cuda, "mem_get_info", taken)
    assert not device_endurance._leaks(lambda: None)


def test_memory_that_others_take_for_a_while_is_no_leak(device):
    calls = []

    def call():
        calls.append(1)
        if len(calls) < 100:  # in each window, and by no call
            device[0] -= 1 << 20

    assert not device_endurance._leaks(call)


def test_what_is_made_once_is_no_leak(device):
    calls = []

    def once():
        calls.append(1)
        if len(calls) == 3:
            device[0] -= 1 << 30

    found = device_endurance.endure(None, once, None, [Operand()])
    assert found == {"calls": len(calls), "timed": None}


def test_a_change_of_torch(device):
    before = torch.get_default_dtype()
    try:
        found = device_endurance.endure(
            None, lambda: torch.set_default_dtype(torch.float64), None, [Operand()]
        )
    finally:
        torch.set_default_dtype(before)
    assert found["words"] == "changes torch's default type"


def test_random_numbers_of_the_gpu(monkeypatch):
    drawn = [0]
    for name, answer in {
        "is_initialized": True,
        "current_stream": None,
        "current_device": 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.tensor(drawn))
    before, threads = state.of_torch(), threading.enumerate()
    assert state.changes_of_torch(before, threads) == ""
    drawn[0] += 4
    assert state.changes_of_torch(before, threads) == "changes torch's random numbers"


def test_threads_that_stay():
    before = state.of_torch()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        others = [t for t in threading.enumerate() if t is not thread]
        assert state.changes_of_torch(before, others) == "leaves 1 thread running"
    finally:
        stop.set()
        thread.join()
    assert state.changes_of_torch(before, threading.enumerate()) == ""


def test_both_are_timed_and_the_calls_counted(device, monkeypatch):
    clock = measure._WallClock  # events need a device
    monkeypatch.setattr(measure, "_EventClock", lambda flush, synchronize: clock(None))
    calls = []
    asked = {"seconds": 0.02, "calls": 500, "copied": 64}
    found = device_endurance.endure(asked, lambda: calls.append(1), lambda: None, [Operand()])
    assert set(found["timed"]) == {"candidate", "generated", "copy"}
    assert found["calls"] == len(calls) >= 500


RESOURCES = {"problem": "resources", "wanted": 262144, "there": 1024, "traceback": ""}


class Faked:
    """A worker that answers as it is told."""

    under = ()

    def __init__(self, answer):
        self.answer, self.started = answer, 0

    def ask(self, request, files, limit, retry=True):
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"reports": self.answer, "timeout": False, "status": 0, "log": "", "seconds": 0.0}

    def start(self):
        self.started += 1

    def close(self):
        self.answer = "closed"


@pytest.mark.parametrize(
    ("answer", "stage", "reason"),
    [
        (NoAnswer("none"), "timeout", "endless loop"),
        (NoAnswer("none", "compile", 60.0), "compile", "compiler did not finish within 60 s"),
        (
            [{"result": {**RESOURCES, "what": "shared memory"}}],
            "compile",
            "asks for 262,144 bytes of shared memory for each program, and this GPU has 1,024",
        ),
        (
            [{"result": {**RESOURCES, "what": "threads"}}],
            "compile",
            "asks for 262,144 threads for each program, and 1,024 are the most",
        ),
        (
            [{"result": {**RESOURCES, "what": "tensor memory"}}],
            "compile",
            "asks for 262144 of tensor memory; there is 1024",
        ),
        (WorkerEnded("gone"), "crash", "aborted"),
        (
            [{"result": {"problem": "state", "words": "works on a stream of its own", "calls": 3}}],
            "unsafe",
            "works on a stream of its own (seen in 3 calls)",
        ),
        (
            [{"result": {"problem": "margin", "name": "out", "distance": 0}}],
            "bounds",
            "writes past the end of `out` (by 1 element)",
        ),
        (
            [
                {
                    "result": {
                        "problem": "device",
                        "message": "CUDA error: an illegal memory access was encountered",
                        "traceback": "",
                    }
                }
            ],
            "bounds",
            "out of bounds",
        ),
    ],
)
def test_what_a_device_worker_says(monkeypatch, answer, stage, reason):
    faked = Faked(answer)
    monkeypatch.setattr(sandbox, "_device_timer", faked)
    monkeypatch.setattr(sandbox, "_device", lambda cases: "cuda:0")
    found = sandbox.endure(
        target="triton",
        entry="launch",
        signature=vk.signature(8),
        text=vk.TRITON,
        library=None,
        cases=[vk.case(8)],
        timeout=5.0,
    )
    assert (found.result.ok, found.result.stage) == (False, stage)
    assert reason in found.result.reason
    assert faked.started == 1  # the next check finds one that is ready
