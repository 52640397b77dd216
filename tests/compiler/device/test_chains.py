"""Kernels in a row as one launch, over a driver that the test stands in for."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from fusec.call import native
from fusec.device import driver as device_machine
from fusec.device.start_rows import MANY_PROGRAMS
from fusec.errors import BadOption
from support.collector import looking_at_what_is_new
from support.fake_device import ByHand, Device, calls, library, like, operator, scale, steps_of

N = 8
NEVER, MEASURED, ALWAYS = 0, 1, 2


@pytest.fixture(scope="module", autouse=True)
def _native_part() -> Iterator[None]:
    if native.types(wait=True) is None:
        pytest.skip(f"no native part: {native.problem()}")
    with looking_at_what_is_new():
        yield


@pytest.fixture
def lib() -> Iterator[Any]:
    gc.collect()
    calls()
    yield library()[0]
    library()[0].fake_refuse(0)
    library()[0].fake_slow(0, 0)
    library()[0].fake_end()


def program(device: Device, *, between: bool = False) -> ByHand:
    """Return z = 6 x in two starts, perhaps with an operator between them."""
    x, y, z = like("x", N), like("y", N), like("z", N)
    if between:
        w = like("w", N)
        steps: list[Any] = [y, scale("x", "y", N, 2), operator("y", "w", N, 1, device)]
        steps += [z, scale("w", "z", N, 3)]
        return ByHand(steps_of((x,), steps, (z, w)), device, lambda x: [x * 6, x * 2], graphs=False)
    steps = [y, scale("x", "y", N, 2), z, scale("y", "z", N, 3)]
    return ByHand(steps_of((x,), steps, (z,)), device, lambda x: [x * 6], graphs=False)


def run(made: ByHand, times: int) -> list[list[str]]:
    """Call on new inputs; return what the driver was asked at each call."""
    asked, kept = [], []
    for _ in range(times):
        x = torch.randn(N)
        calls()
        outputs = made.call(x)
        asked.append(calls())
        kept.append((x, outputs[0]))
        assert all(torch.equal(out, x * 6) for x, out in kept)  # earlier ones stay
    return asked


def test_two_starts_are_one_launch(lib: Any) -> None:
    made = program(Device(chaining=ALWAYS))
    asked = run(made, 5)
    assert "build 2 2" in asked[0]  # in a mode in which nobody else's capture minds
    assert all(each[-1] == "graph" for each in asked)
    assert all("launch" not in line for each in asked[1:] for line in each)
    before = lib.fake_graphs()
    del made
    gc.collect()
    assert lib.fake_graphs() < before


def test_large_kernels_wait_only_for_what_they_need(lib: Any) -> None:
    x, names = like("x", N), ("a", "b", "c", "y")
    made: list[Any] = [like(name, N) for name in names]
    large = [scale("x", "a", N, 2), scale("x", "b", N, 3), scale("a", "c", N, 5)]
    large += [scale("b", "y", N, 7)]
    starts = [
        replace(s, grid=(MANY_PROGRAMS, 1, 1), writes=(n,))
        for s, n in zip(large, names, strict=True)
    ]
    steps = steps_of((x,), [*made, *starts], tuple(made))

    def host(x: torch.Tensor) -> list[torch.Tensor]:
        return [2 * x, 3 * x, 10 * x, 21 * x]

    program = ByHand(steps, Device(chaining=ALWAYS), host, graphs=False)
    given = torch.randn(N)
    for _ in range(3):
        for out, wanted in zip(program.call(given), host(given), strict=True):
            torch.testing.assert_close(out, wanted)
    asked = [line for line in calls() if line.startswith("node")]
    assert asked == ["node after", "node after", "node after 0", "node after 1"]


def test_what_did_not_move_is_not_told_again(lib: Any) -> None:
    made = program(Device(chaining=ALWAYS))
    x = torch.randn(N)
    for _ in range(4):
        calls()
        (out,) = made.call(x)
        assert torch.equal(out, x * 6)
        del out  # so that the next call's memory is where this one's was
    assert calls().count("tell kernel") <= 2


def test_operators_part_the_chains(lib: Any) -> None:
    asked = run(program(Device(chaining=ALWAYS), between=True), 4)
    assert asked[0].count("build 1 2") == 2
    assert [line for line in asked[-1] if "tell" not in line] == [
        "graph",
        "launch 1x1x1 1 0 on 7",  # the operator's own
        "graph",
    ]


@pytest.mark.parametrize("slow", ["launches", "graphs"])
def test_the_quicker_way_is_taken(lib: Any, slow: str) -> None:
    made = program(Device(chaining=MEASURED))
    asked = run(made, 3)
    assert not any("build" in line for each in asked for line in each)
    lib.fake_slow(slow == "launches", slow == "graphs")
    asked += run(made, 27)
    last = [line.split()[0] for line in asked[-1] if "tell" not in line]
    assert last == (["graph"] if slow == "launches" else ["launch", "launch"])
    assert ("drop" in [line for each in asked for line in each]) is (slow == "graphs")


def test_while_somebody_captures_the_stream_nothing_is_joined(lib: Any) -> None:
    device = Device(chaining=ALWAYS)
    made = program(device)
    run(made, 3)
    lib.fake_begin(device.stream)
    calls()
    x = torch.ones(N)
    made.call(x)
    assert [line.split()[0] for line in calls()] == ["launch", "launch"]
    lib.fake_end()
    run(made, 2)


@pytest.mark.parametrize("what", [2, 3, 4])
def test_a_driver_that_refuses_costs_nothing(lib: Any, what: int) -> None:
    lib.fake_refuse(what if what == 3 else 0)
    made = program(Device(chaining=ALWAYS))
    run(made, 2)
    lib.fake_refuse(what)
    asked = run(made, 3)
    assert [line.split()[0] for line in asked[-1]] == ["launch", "launch"]


def test_an_error_of_a_kernel_arrives(lib: Any) -> None:
    made = program(Device(chaining=NEVER))
    run(made, 2)
    lib.fake_refuse(1)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        made.call(torch.randn(N))


def test_threads_tell_and_launch_as_one(lib: Any) -> None:
    made = program(Device(chaining=ALWAYS))
    run(made, 2)
    wrong = []

    def work() -> None:
        for _ in range(200):
            x = torch.randn(N)
            if not torch.equal(made.call(x)[0], x * 6):
                wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_edited_kernel_takes_its_chain_along(lib: Any) -> None:
    made = program(Device(chaining=ALWAYS))
    run(made, 3)
    made.forget()
    asked = run(made, 3)
    assert any("build 2 2" in each for each in asked)


def test_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSEC_GPU_CHAINS", raising=False)
    assert device_machine.chaining() == MEASURED
    monkeypatch.setenv("FUSEC_GPU_CHAINS", "never")
    assert device_machine.chaining() == NEVER
    monkeypatch.setenv("FUSEC_GPU_CHAINS", "perhaps")
    with pytest.raises(BadOption, match="perhaps"):
        device_machine.chaining()
