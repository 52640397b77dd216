"""What an interpreted kernel touches, as it is watched: nothing is interpreted here."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fusec.targets.triton.toolchain import watch as module
from fusec.targets.triton.toolchain.watch import (
    Access,
    OutOfBounds,
    Race,
    Watch,
    _spoiled,
    _Watched,
    ranges,
)


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([5, 5], "5"),
        ([3, 1, 2], "1:4"),
        ([0, 1], "0:2"),
        ([0, 1, 2, 3, 16, 17], "0:4, 16:18"),
        ([0, 4, 8], "0:9:4"),
        ([0, 4], "0, 4"),  # two are no row of their own
        ([0, 4, 8, 9, 10], "0:9:4, 9:11"),
        ([0, 2, 4, 7], "0:5:2, 7"),
        ([0, 10, 30], "0, 10, 30"),
        ([0, 10, 30, 70], "0, 10, 30, 70"),
        ([0, 10, 30, 70, 150], "0, 10, 30, 70, ..."),
    ],
)
def test_places_as_one_writes_slices(places: list[int], text: str) -> None:
    assert ranges(places) == text


def test_fewer_of_them() -> None:
    assert ranges([0, 10, 30], 2) == "0, 10, ..."
    assert ranges([0, 10], 2) == "0, 10"


@pytest.mark.parametrize(
    ("program", "text"),
    [((3,), "program 3"), ((3, 1), "program (3, 1)"), ((0, 0, 2), "program (0, 0, 2)")],
)
def test_programs(program: tuple[int, ...], text: str) -> None:
    access = Access("kernel", program, "load", "x", (0,), (), 0, 4, None)
    assert (access.place, access.problem) == (text, "")


@pytest.mark.parametrize(
    ("kind", "verb"), [("load", "loads"), ("store", "stores to"), ("atomic", "updates")]
)
def test_what_is_wrong(kind: str, verb: str) -> None:
    for size, counted in ((1, "1 element"), (4000, "4,000 elements")):
        access = Access("kernel", (1,), kind, "x", (0, 4000), (4000,), 0, size, None)  # type: ignore[arg-type]
        assert access.problem == (
            f"program 1 {verb} x[4000], but x has {counted}: mask the lanes that are beyond it"
        )
    before = Access("kernel", (1,), kind, "x", (-1, 0), (-1,), 0, 8, None)  # type: ignore[arg-type]
    assert before.problem == f"program 1 {verb} x[-1], before x begins: mend the address"


def watched(*tensors: torch.Tensor) -> Watch:
    found = Watch(_tensors=[_Watched.of(f"t{n}", t) for n, t in enumerate(tensors)])
    found.begin("kernel", "nowhere.py")
    return found


def touch(
    watch: Watch,
    kind: str,
    address: int,
    places: list[int],
    mask: bool | list[bool] = True,
    program: tuple[int, int, int] = (0, 0, 0),
    strict: bool = True,
) -> list[bool]:
    found = watch.note(
        kind,  # type: ignore[arg-type]
        np.array([address + 4 * p for p in places], dtype=np.uint64),
        np.array(mask),
        program,
        (4, 3, 2),
        strict,
    )
    return list(map(bool, found))


def test_tensors_with_gaps_and_without_elements() -> None:
    base = torch.zeros(100)
    part = _Watched.of("x", base[10:90].view(8, 10)[:, :4])
    assert (part.start, part.size, part.itemsize) == (base.data_ptr() + 40, 7 * 10 + 3 + 1, 4)
    assert _Watched.of("x", base[:0]).size == 0
    assert _Watched.of("x", base[0]).size == 1
    assert part.distance(part.start) == part.distance(part.start + 74 * 4 - 1) == 0
    assert part.distance(part.start - 3) == 3
    assert part.distance(part.start + 74 * 4) == 1
    empty = _Watched.of("x", base[:0])
    assert empty.distance(empty.start + 3) == 0  # its place, nevertheless
    assert empty.distance(empty.start + 4) == 1


def test_what_is_counted() -> None:
    x = torch.zeros(8)
    watch, start = watched(x), x.data_ptr()
    assert touch(watch, "load", start, [0, 1, 2, 9], [True, True, False, False]) == [
        True, True, False, False,
    ]  # fmt: skip
    assert (watch.read, watch.written, watch.starts) == (8, 0, 1)
    assert touch(watch, "store", start, [3]) == [True]
    assert (watch.read, watch.written) == (8, 4)
    touch(watch, "atomic", start, [4, 5])
    assert (watch.read, watch.written) == (16, 12)
    first, second, third = watch.accesses
    assert (first.kind, first.tensor, first.elements, first.outside) == ("load", "t0", (0, 1), ())
    assert (first.masked, first.size, first.kernel, first.line) == (2, 8, "kernel", None)
    assert (second.masked, third.elements) == (0, (4, 5))
    # what no lane touches is an access, too
    assert touch(watch, "load", start, [0, 1], False) == [False, False]
    assert (watch.accesses[-1].masked, watch.accesses[-1].tensor) == (2, "")


def test_what_lies_outside() -> None:
    memory = torch.zeros(100)
    x, y = memory[10:20], memory[50:60]
    watch = watched(x, y)
    for places in ([-1], [10], [0, 12]):
        with pytest.raises(OutOfBounds):
            touch(watch, "load", x.data_ptr(), places)
    with pytest.raises(OutOfBounds):  # between two elements
        watch.note("load", np.array([x.data_ptr() + 2]), np.array(True), (0, 0, 0), (1, 1, 1), True)
    watch = watched(x, y)
    assert touch(watch, "store", y.data_ptr(), [-1, 9, 10], strict=False) == [False, True, False]
    (access,) = watch.accesses
    assert (access.tensor, access.outside, access.elements) == ("t1", (-1, 10), (-1, 9, 10))
    assert watch.written == 4
    assert touch(watch, "load", x.data_ptr(), [0, 9]) == [True, True]


def test_two_programs_and_one_element() -> None:
    x = torch.zeros(8)
    watch, start = watched(x), x.data_ptr()
    touch(watch, "store", start, [0, 1], program=(1, 2, 1))
    touch(watch, "load", start, [0], program=(1, 2, 1))  # its own
    touch(watch, "load", start, [2], program=(0, 0, 0))
    touch(watch, "load", start, [2], program=(1, 0, 0))  # two that load
    for kind, verb in (("load", "loads"), ("store", "stores to")):
        # none of these is the same in another direction of the grid
        for program in ((0, 0, 0), (1, 2, 0), (1, 1, 1), (2, 2, 1), (2, 0, 1), (2, 1, 1)):
            with pytest.raises(Race, match=rf"program .* {verb} t0\[1\], to which another"):
                touch(watch, kind, start, [2, 1], program=program)
    touch(watch, "load", start, [0, 1], program=(3, 0, 0), strict=False)
    touch(watch, "atomic", start, [0, 1], program=(3, 0, 0))  # in turn, by the hardware
    watch.begin("next", "nowhere.py")  # a kernel after the other
    assert watch.starts == 2
    touch(watch, "load", start, [0, 1], program=(3, 0, 0))


def test_every_program_has_a_number_of_its_own() -> None:
    x = torch.zeros(24)
    watch = watched(x)
    for n, program in enumerate(np.ndindex(4, 3, 2)):
        touch(watch, "store", x.data_ptr(), [n], program=program)  # type: ignore[arg-type]
    assert sorted(watch._tensors[0].owners) == list(range(24))


def test_some_accesses_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 2)
    x = torch.zeros(8)
    watch = watched(x)
    for places in ([0], [1], [2], [8], [3]):
        touch(watch, "load", x.data_ptr(), places, strict=False)
    assert [access.elements for access in watch.accesses] == [(0,), (1,), (8,)]
    assert watch.dropped == 2


def test_what_nobody_may_rely_on() -> None:
    missing = np.array([False, True])
    assert np.isnan(_spoiled(np.zeros(2, np.float32), missing)).tolist() == [False, True]
    assert _spoiled(np.zeros(2, np.int8), missing).tolist() == [0, 127]
    assert _spoiled(np.zeros(2, np.uint8), missing).tolist() == [0, 255]
    assert _spoiled(np.zeros(2, bool), missing).tolist() == [False, True]


@pytest.mark.parametrize(
    ("grid", "shown"),
    [((4, 1, 1), (2,)), ((4, 3, 1), (2, 0)), ((4, 1, 2), (2, 0, 0)), ((1, 1, 1), (2,))],
)
def test_a_place_has_a_number_for_each_dimension_of_the_grid(
    grid: tuple[int, int, int], shown: tuple[int, ...]
) -> None:
    x = torch.zeros(8)
    watch = watched(x)
    for mask in (True, False):
        watch.note("load", np.array([x.data_ptr()]), np.array(mask), (2, 0, 0), grid, True)
    assert [access.program for access in watch.accesses] == [shown] * 2
