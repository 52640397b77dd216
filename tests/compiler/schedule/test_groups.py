"""Steps under fusion: who depends on whom, what joining two saves, and what it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr
from fusec.ir.node import Node, recording
from fusec.ir.program import Compute, Extern, ExternKind, Program, Step, TensorRef
from fusec.schedule import fusion_groups
from fusec.schedule.fusion_groups import Groups, has_effects, join_labels
from fusec.schedule.overrides import Overrides, pair
from support.triton_bodies import F32, at, axes, buffer, f32

aten = torch.ops.aten
BUFFERS = {name: buffer(name, (8,)) for name in "abcdefghxyz"}


@pytest.fixture(autouse=True)
def _recorder():
    with recording():
        yield


def kernel(reads: str, writes: str, mode: str = "set", name: str = "") -> Compute:
    (i,) = axes(8)
    value: Node = f32(1.0)
    for each in reads:
        value = ops.binary("add", value, ops.load(each, at(i), F32))
    stores = tuple(Store(each, at(i), value, mode) for each in writes)
    return Compute(name or f"to_{writes}", Body((i,), (), stores), f"label {writes}")


def call(target: Any, reads: str, outputs: tuple[str, ...], mutates: str = "") -> Extern:
    args = tuple(TensorRef(n, BUFFERS[n].shape, BUFFERS[n].strides, Expr.of(0), F32) for n in reads)
    return Extern(f"call_{reads}", target, args, {}, outputs, "", tuple(mutates))


def group(
    *steps: Step, outputs: str = "", members: dict[str, frozenset[str]] | None = None
) -> Groups:
    refs = tuple(
        TensorRef(n, BUFFERS[n].shape, BUFFERS[n].strides, Expr.of(0), F32) for n in outputs
    )
    return Groups(Program(("x", "y"), {}, BUFFERS, steps, refs), steps, members or {})


def places(mask: int) -> set[int]:
    return {n for n in range(12) if mask >> n & 1}


def before(groups: Groups) -> list[set[int]]:
    """Who must run before each; that the other direction says the same is seen, too."""
    found = [places(mask) for mask in groups.before]
    for n, mask in enumerate(groups.after):
        assert places(mask) == {k for k, earlier in enumerate(found) if n in earlier}
    return found


def test_who_reads_what_another_writes_runs_after_it() -> None:
    groups = group(kernel("x", "a"), kernel("a", "b"), kernel("x", "c"), kernel("bc", "d"))
    assert before(groups) == [set(), {0}, set(), {0, 1, 2}]
    assert groups.readers == {"x": {0, 2}, "a": {1}, "b": {3}, "c": {3}}
    assert groups.writer == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert groups.position == {"to_a": 0, "to_b": 1, "to_c": 2, "to_d": 3}
    assert groups.kept == {"x", "y"}
    assert groups.version == [0] * 4
    assert groups.members == [frozenset({f"to_{n}"}) for n in "abcd"]


def test_who_writes_again_runs_after_those_that_have_read() -> None:
    groups = group(
        kernel("x", "a"),
        kernel("a", "b"),
        kernel("y", "a", "add"),  # reads it, too
        kernel("a", "c"),
        kernel("y", "a", "put", "again"),
    )
    assert before(groups) == [set(), {0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}]
    # the input is written when it has been read
    assert before(group(kernel("x", "a"), kernel("y", "x", "add"))) == [set(), {0}]
    twice = group(kernel("x", "b"), kernel("x", "a"), kernel("y", "a", name="new"))
    assert before(twice) == [set(), set(), {1}]


def test_random_numbers_come_in_eagers_order() -> None:
    groups = group(
        call(aten.bernoulli.default, "x", ("a",)),
        call(aten.relu.default, "x", ("b",)),
        call(aten.bernoulli.default, "y", ("c",)),
        kernel("y", "d"),
        call(aten._assert_async.msg, "b", ()),
    )
    assert before(groups) == [set(), set(), {0}, set(), {0, 1, 2}]


def test_pairs_are_producers_consumers_and_those_that_read_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = [kernel("x", "a"), kernel("a", "b"), kernel("x", "c"), kernel("y", "d")]
    groups = group(*steps, call(aten.relu.default, "xa", ("e",)), kernel("e", "f"))
    assert groups.pairs_of(0) == {(0, 1), (0, 2)}
    assert groups.pairs_of(1) == {(0, 1)}
    assert groups.pairs_of(2) == {(0, 2)}
    assert groups.pairs_of(3) == groups.pairs_of(4) == groups.pairs_of(5) == set()
    many = group(*(kernel("x", n) for n in "abcdefgh"))
    assert len(many.pairs_of(3)) == 7
    assert len(group(*(kernel("x", n) for n in "abcdefghz")).pairs_of(0)) == 2
    monkeypatch.setattr(fusion_groups, "MAX_PAIRED_READERS", 7)
    assert many.pairs_of(0) == {(0, 1), (0, 2)}
    assert many.pairs_of(3) == {(1, 3), (2, 3), (3, 4), (3, 5)}
    assert many.pairs_of(7) == {(5, 7), (6, 7)}
    # the one that must run first is in front
    turned = group(kernel("x", "a"), kernel("xa", "b"), kernel("yb", "y", "add"))
    assert turned.pairs_of(2) == {(1, 2)}
    assert turned.ordered(1, 0) == turned.ordered(0, 1) == (0, 1)
    assert groups.ordered(3, 0) == (3, 0)


def test_pairs_that_somebody_asked_for() -> None:
    names = {"to_a": frozenset({"one", "two"})}
    steps = (kernel("x", "a"), kernel("y", "b"), call(aten.relu.default, "y", ("c",)))
    groups = group(*steps, members=names)
    asked = Overrides(together=frozenset({pair("two", "to_b"), pair("to_b", "call_y")}))
    assert groups.wanted(0, asked) == {(0, 1)}
    assert groups.wanted(1, asked) == {(1, 0)}
    assert groups.wanted(2, asked) == set()
    assert groups.wanted(0, Overrides()) == set()
    other = Overrides(together=frozenset({pair("two", "somebody")}))
    assert groups.wanted(0, other) == set()


@pytest.mark.parametrize(
    ("first", "second", "others", "outputs", "saved"),
    [
        (("x", "a"), ("a", "b"), [], "", 2),  # neither written nor read
        (("x", "a"), ("a", "b"), [], "a", 1),
        (("x", "a"), ("a", "b"), [("a", "c")], "", 1),  # another one reads it
        (("x", "a"), ("x", "b"), [], "", 1),
        (("xy", "a"), ("yx", "b"), [], "", 2),
        (("x", "a"), ("y", "b"), [], "", 0),
        (("x", "a"), ("xa", "b"), [], "", 3),
        (("x", "ac"), ("ca", "b"), [("c", "d")], "", 3),
        (("x", "a"), ("a", "x"), [], "", 2),
    ],
)
def test_traffic_that_one_kernel_saves(
    first: tuple[str, str],
    second: tuple[str, str],
    others: list[tuple[str, str]],
    outputs: str,
    saved: int,
) -> None:
    groups = group(*(kernel(*each) for each in (first, second, *others)), outputs=outputs)
    assert groups.saved_bytes(0, 1) == saved * 8 * 4


def test_what_must_run_between() -> None:
    groups = group(kernel("x", "a"), kernel("a", "b"), kernel("ab", "c"), kernel("y", "d"))
    assert groups.blocked(0, 2)
    assert not groups.blocked(0, 1)
    assert not groups.blocked(1, 2)
    assert not groups.blocked(0, 3)
    assert not groups.blocked(2, 0)


def test_one_step_in_place_of_two() -> None:
    names = {"to_a": frozenset({"one"}), "to_b": frozenset({"two", "three"})}
    steps = (
        kernel("x", "ah"),
        kernel("ay", "b"),
        kernel("h", "c"),
        kernel("bc", "d"),
        kernel("d", "e"),
    )
    groups = group(*steps, outputs="e", members=names)
    assert groups.unread(0, 1) == {"a"}
    assert groups.unread(0, 2) == {"h"}
    assert groups.unread(4, 3) == set()
    both = kernel("xy", "abh").body
    assert groups.replace(0, 1, both) == 0
    fused = groups.compute(0)
    assert fused is not None
    assert (fused.name, fused.label, fused.writes()) == ("to_ah", "label ah + label b", ("b", "h"))
    assert groups.compute(1) is None
    assert groups.members[0] == {"to_ah", "two", "three"}
    assert groups.version == [1, 1, 0, 0, 0]
    assert before(groups) == [set(), set(), {0}, {0, 2}, {0, 2, 3}]
    assert groups.readers["x"] == groups.readers["y"] == {0}
    assert groups.readers["a"] == set()
    assert (groups.writer["b"], groups.writer["h"]) == (0, 0)
    assert [step.name for step in groups.in_order()] == ["to_ah", "to_c", "to_d", "to_e"]


def test_what_ran_before_either_runs_before_both() -> None:
    steps = (
        kernel("x", "a"),
        kernel("a", "b"),
        kernel("y", "c"),
        kernel("c", "d"),
        kernel("bd", "e"),
        kernel("y", "f"),
    )
    groups = group(*steps)
    groups.replace(1, 3, kernel("ac", "bd").body)
    assert before(groups) == [set(), {0, 2}, set(), set(), {0, 1, 2}, set()]
    assert [step.name for step in groups.in_order()] == ["to_a", "to_c", "to_f", "to_b", "to_e"]


def test_steps_wait_for_what_they_need() -> None:
    steps = (kernel("x", "a"), kernel("a", "b"), kernel("y", "c"), kernel("c", "d"))
    groups = group(*steps)
    groups.replace(1, 3, kernel("ac", "bd").body)  # of which one needs what comes third
    assert [step.name for step in groups.in_order()] == ["to_a", "to_c", "to_b"]


def test_a_kernel_of_rows_takes_sums_over() -> None:
    steps = (
        kernel("x", "a"),  # before the rows
        kernel("a", "b"),  # the rows
        kernel("y", "c"),  # before the columns
        kernel("cx", "d"),  # the columns
        kernel("b", "e"),  # after the rows
        kernel("d", "f"),  # after the columns
    )
    groups = group(*steps)
    part = buffer("part", (4,))
    rows, rest = kernel("acx", "b", name="rows"), kernel("z", "d", name="rest")
    groups.cross(1, 3, rows, rest, [part])
    assert groups.buffers["part"] is part
    assert groups.compute(1) is rows
    assert groups.compute(3) is rest
    assert before(groups) == [set(), {0, 2}, set(), {0, 1, 2}, {0, 1, 2}, {0, 1, 2, 3}]
    assert groups.version == [0, 1, 0, 1, 0, 0]
    assert groups.readers["c"] == {1}
    assert groups.readers["x"] == {0, 1}
    assert groups.readers["z"] == {3}
    assert groups.writer["d"] == 3
    assert groups.members[1] == {"to_b", "to_d"}
    assert groups.members[3] == {"to_d"}
    order = [step.name for step in groups.in_order()]
    assert order == ["to_a", "to_c", "rows", "rest", "to_e", "to_f"]


@pytest.mark.parametrize(
    ("target", "effects"),
    [
        (aten.relu.default, False),
        (aten.relu_.default, True),
        (aten.bernoulli.default, True),
        (aten._assert_async.msg, True),
        (aten.nonzero.default, True),  # its size was promised
        (lambda x: x, True),
    ],
)
def test_what_does_more_than_compute(target: Callable[..., Any], effects: bool) -> None:
    assert has_effects(call(target, "x", ("a",))) is effects


def test_constants_and_errors_that_are_wanted() -> None:
    assert not has_effects(Extern("constant", lambda: 3, (), {}, ("a",), ""))
    refused = Extern("relu", aten.relu.default, (), {}, ("a",), "", kind=ExternKind.REFUSED)
    assert has_effects(refused)


def test_labels() -> None:
    assert join_labels("gelu + sum", "sum + mul") == "gelu + sum + mul"
    assert join_labels("gelu", "") == join_labels("", "gelu") == "gelu"
    assert join_labels("", "") == ""
