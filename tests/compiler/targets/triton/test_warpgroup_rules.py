"""Which attention is written for warpgroups: one fact changed at a time, nothing compiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Node, cast, dot, op, recording
from fusec.machine import MachineFacts, using
from fusec.targets.triton.plan import choices_warpgroups
from fusec.targets.triton.plan.attention_gradients import Gradients, Total, choose_gradients
from fusec.targets.triton.plan.choice import Knob
from fusec.targets.triton.plan.choices_attention import Attention, Listed
from fusec.targets.triton.plan.choices_warpgroups import (
    _fits,
    _gradients_fit,
    _possible_turns,
    _turns,
    choose_warpgroup_gradients,
    choose_warpgroups,
)
from support.decisions import compare, runs
from support.triton_bodies import F32, at, axes, buffer, f32
from support.whole_programs import MACHINE

F16, BF16 = torch.float16, torch.bfloat16


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording():
        yield


class Parts:
    """Queries, keys and values of one head, and what is made of them."""

    def __init__(
        self, rows: int = 256, keys: int = 512, depth: int = 128, width: int = 128, dtype: Any = F16
    ) -> None:
        self.row, self.key = axes(rows, keys)
        self.depth, self.width = axes(depth, width, prefix="r")
        sizes = {"q": (rows, depth), "k": (keys, depth), "v": (keys, width), "g": (rows, width)}
        self.buffers = {name: buffer(name, shape, dtype) for name, shape in sizes.items()}
        places = {
            "q": (self.row, self.depth),
            "k": (self.key, self.depth),
            "v": (self.key, self.width),
            "g": (self.row, self.width),
        }
        self.loads: dict[str, Any] = {
            name: ops.load(name, at(*place), dtype) for name, place in places.items()
        }
        self.score = dot(self.loads["q"], self.loads["k"], (self.depth,), F32)
        self.entry = Symbol("entry", "axis", Expr.of(4))

    def listed(self, rows: int, columns: int) -> Listed:
        place: Any = ops.load("place", at(self.entry), torch.int32)
        return Listed(place, place, rows, columns, self.entry)

    def attention(self, **changed: Any) -> Attention:
        weights = cast(op("exp2", (self.score,), F32), F16)
        values = cast(self.loads["v"], F16)
        result = Store("out", at(self.row, self.width), cast(self.score, F16))
        found = Attention(
            batch=None,
            head=None,
            row=self.row,
            key=self.key,
            depth=self.depth,
            width=self.width,
            query=self.loads["q"],
            keys=self.loads["k"],
            values=self.loads["v"],
            product=self.score,  # type: ignore[arg-type]
            weighted=dot(weights, values, (self.key,), F32),  # type: ignore[arg-type]
            modified=self.score,
            mask=None,
            partial=None,
            full=None,
            factor=1.0,
            result=result,
            sums=None,
            mosts=None,
        )
        return replace(found, **changed)

    def gradients(self, **changed: Any) -> Gradients:
        of_weight: Any = dot(self.loads["g"], self.loads["v"], (self.width,), F32)
        weight = op("exp2", (self.score,), F32)
        root = op("mul", (weight, of_weight), F32)
        product: Any = dot(cast(root, self.loads["k"].dtype), self.loads["k"], (self.key,), F32)
        store = Store("out", at(self.row, self.depth), cast(product, F16))
        total = Total(store, root, product, 1.0, self.depth)
        score: Any = self.score
        found = Gradients(
            batch=None,
            head=None,
            own=self.row,
            over=self.key,
            member=None,
            score=score,
            of_weight=of_weight,
            totals=(total,),
            kept=None,
            mask=None,
            partial=None,
            full=None,
            by_keys=False,
        )
        return replace(found, **changed)


def fits(parts: Parts, **changed: Any) -> bool:
    return _fits(parts.attention(**changed), parts.buffers)


def gradients_fit(parts: Parts, **changed: Any) -> bool:
    return _gradients_fit(parts.gradients(**changed), parts.buffers)


def moved(held: Buffer, *strides: int) -> Buffer:
    return replace(held, strides=tuple(map(Expr.of, strides)))


SIZES: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "whole tiles": ({}, True, True),
    "one tile": ({"rows": 128, "keys": 128}, True, True),
    "half a tile of rows": ({"rows": 192}, False, False),
    "half a step of keys": ({"keys": 576}, False, True),
    "a quarter of a step": ({"keys": 544}, False, False),
    "short rows": ({"depth": 64, "width": 64}, False, False),
    "long rows": ({"depth": 256, "width": 256}, False, False),
    "short values": ({"width": 64}, False, False),
    "short keys": ({"depth": 64}, False, False),
    "bfloat16": ({"dtype": BF16}, True, False),  # of which a gradient is of another type
    "float32": ({"dtype": F32}, False, False),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    sizes, forward, backward = SIZES[name]
    assert fits(Parts(**sizes)) == forward
    assert gradients_fit(Parts(**sizes)) == backward


def test_types_of_all_operands_and_of_the_result() -> None:
    parts = Parts()
    others: dict[str, Load] = {
        name: ops.load(name, load.index, BF16)  # type: ignore[misc]
        for name, load in parts.loads.items()
    }
    assert not fits(parts, keys=others["k"])
    assert not fits(parts, values=others["v"])
    store = parts.attention().result
    assert not fits(parts, result=replace(store, value=parts.score))  # float32
    halves = {"query": others["q"], "keys": others["k"], "values": others["v"]}
    assert fits(parts, **halves)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_each_operand_has_whole_rows(name: str) -> None:
    parts = Parts()
    held = parts.buffers[name]
    for strides, fit in (((136, 1), True), ((132, 1), False), ((129, 1), False), ((256, 2), False)):
        parts.buffers[name] = moved(held, *strides)
        assert fits(parts) == fit, strides


@pytest.mark.parametrize("name", ["q", "k", "g", "v"])
def test_each_operand_of_gradients_has_whole_rows(name: str) -> None:
    parts = Parts()
    held = parts.buffers[name]
    for strides, fit in (((136, 1), True), ((132, 1), False), ((129, 1), False), ((256, 2), False)):
        parts.buffers[name] = moved(held, *strides)
        assert gradients_fit(parts) == fit, strides


# Rows and columns of a block, whether attention over 512 keys fits, and its gradients.
BLOCKS = [
    (128, 128, True, True),
    (256, 256, True, True),
    (64, 128, False, False),
    (192, 128, False, False),
    (128, 64, False, True),
    (128, 96, False, False),
    (128, 384, False, False),  # the second block reaches beyond the keys
    (128, 512, True, True),  # one block, which ends with them
    (128, 640, True, True),  # one block, as if it ended with them
]


@pytest.mark.parametrize(("rows", "columns", "forward", "backward"), BLOCKS)
@pytest.mark.parametrize("which", ["partial", "full"])
def test_blocks(which: str, rows: int, columns: int, forward: bool, backward: bool) -> None:
    parts = Parts()
    assert fits(parts, **{which: parts.listed(rows, columns)}) == forward
    assert gradients_fit(parts, **{which: parts.listed(rows, columns)}) == backward


def test_sizes_that_are_known_when_it_is_compiled() -> None:
    parts = Parts()
    some = Symbol("n", "axis", Expr.of(Symbol("s", "size", low=0, hint=256)))
    assert not fits(parts, row=some)
    assert not fits(parts, key=some)
    assert not gradients_fit(parts, own=some)
    assert not gradients_fit(parts, over=some)


def test_strides_of_heads_count_as_those_of_rows_do() -> None:
    parts = Parts()
    heads = axes(4, prefix="h")
    parts.loads["q"] = ops.load("q", at(*heads, parts.row, parts.depth), F16)
    held = buffer("q", (4, 256, 128), F16)
    for strides, fit in (((1 << 15, 128), True), ((1 << 15, 132), False), ((132, 128), False)):
        parts.buffers["q"] = moved(held, *strides, 1)
        assert fits(parts) == fit, strides


def on_a_gpu(**changed: Any) -> MachineFacts:
    gpu = {"name": "sm_90", "there": True, **changed}
    return replace(MACHINE, gpu=replace(MACHINE.gpu, **gpu))


def chosen(parts: Parts, settings: Mapping[str, int] | None = None, **changed: Any) -> str:
    found = choose_warpgroups(parts.attention(**changed), parts.buffers, settings or {})
    return "" if found is None else f"{found.kind} {shown(found.knobs)}"


def chosen_gradients(
    parts: Parts, settings: Mapping[str, int] | None = None, **changed: Any
) -> str:
    found = parts.gradients(**changed)
    choice = choose_warpgroup_gradients(found, parts.buffers, settings or {})
    return "" if choice is None else f"{choice.kind} {shown(choice.knobs)}"


def shown(knobs: Iterable[Knob]) -> str:
    return ", ".join(f"{k.name}={k.value} of {' '.join(map(str, k.choices))}" for k in knobs)


@pytest.fixture
def _gluon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices_warpgroups, "_has_gluon", lambda: True)


@pytest.mark.usefixtures("_gluon")
def test_tunables() -> None:
    parts = Parts(rows=1024)
    block = parts.listed(128, 128)
    with using(on_a_gpu()):
        lines = {
            "all": chosen(parts),
            "blocks": chosen(parts, partial=block),
            "blocks of heads": chosen(parts, partial=block, head=axes(132)[0]),
            "others": chosen(parts, {"TURNS": 4, "BLOCK_N": 64}),
            "queries": chosen_gradients(parts),
            "queries of blocks": chosen_gradients(parts, partial=block),
            "keys": chosen_gradients(parts, by_keys=True),
            "keys of blocks": chosen_gradients(
                parts, by_keys=True, partial=block, head=axes(132)[0]
            ),
            "keys of few blocks": chosen_gradients(parts, by_keys=True, partial=block),
            "other queries": chosen_gradients(parts, {"GROUP_H": 8, "NUM_STAGES": 3}),
        }
    compare("warpgroups", (f"{name}: {line}" for name, line in lines.items()))


def test_tunables_of_gradients_in_triton() -> None:
    def lines() -> Iterator[str]:
        for dtype in (F16, F32):
            for depth in (16, 64, 65, 128, 129, 256):
                for rows, keys in ((1024, 2048), (24, 40), (40, 24), (1, 1)):
                    parts = Parts(rows, keys, depth, 64, dtype)
                    for by_keys in (False, True):
                        choice = choose_gradients(parts.gradients(by_keys=by_keys), parts.buffers)
                        where = f"{rows} x {keys} of {depth} {dtype} {by_keys}"
                        yield f"{where}: {' '.join(f'{k.name}={k.value}' for k in choice.knobs)}"
        parts = Parts(1024, 1024)
        for rows, columns in ((128, 128), (128, 32), (32, 128)):
            for which in ("partial", "full"):
                for by_keys in (False, True):
                    listed = {which: parts.listed(rows, columns), "by_keys": by_keys}
                    choice = choose_gradients(parts.gradients(**listed), parts.buffers)
                    yield f"{which} blocks of {rows} x {columns} {by_keys}: {shown(choice.knobs)}"
        given = choose_gradients(parts.gradients(), parts.buffers, (("BLOCK_N", 32),))
        yield f"others: {shown(given.knobs)}"

    with using(MACHINE):
        compare("attention_gradients", lines())


@pytest.mark.usefixtures("_gluon")
@pytest.mark.parametrize("choose", [chosen, chosen_gradients])
def test_who_gets_none(choose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with using(on_a_gpu()):
        assert choose(Parts())
        assert choose(Parts(), {"GROUP_H": 8})
        assert not choose(Parts(), {"GROUP_H": 8, "NUM_WARPS": 4}), "of the other kernel"
        assert not choose(Parts(rows=192))
    with using(on_a_gpu(there=False)):
        assert not choose(Parts())
    with using(on_a_gpu(name="sm_80")):
        assert not choose(Parts())
    monkeypatch.setattr(choices_warpgroups, "_has_gluon", lambda: False)
    with using(on_a_gpu()):
        assert not choose(Parts())


def test_values_that_gradients_need_beside_the_weights() -> None:
    """A few values of each score; a kernel of keys has registers for the weights alone."""
    parts = Parts()
    for count in range(7):
        slopes = [op("exp2", (op("mul", (parts.score, f32(n + 2.5)), F32),), F32)
                  for n in range(count)]  # fmt: skip
        found = parts.gradients()
        (total,) = found.totals
        root: Node = found.of_weight
        for slope in slopes:
            root = op("mul", (root, slope), F32)
        total = replace(total, root=root)
        for by_keys, most in ((False, 5), (True, 1)):
            fit = gradients_fit(parts, totals=(total,), by_keys=by_keys)
            assert fit == (0 < count <= most), (count, by_keys)


def test_what_becomes_of_scores_and_of_gradients() -> None:
    parts = Parts()
    bias = ops.load("bias", at(parts.row, parts.key), F32)
    of_row = ops.load("of_row", at(parts.row), F32)
    found = parts.gradients()
    (total,) = found.totals

    def fit(root: Node, *more: Node) -> bool:
        totals = [replace(total, root=each) for each in (root, *more)]
        return gradients_fit(parts, totals=tuple(totals))

    assert fit(op("mul", (total.root, of_row), F32))
    assert not fit(op("mul", (total.root, bias), F32))
    assert not fit(op("fmod", (total.root, of_row), F32))
    weight = op("exp2", (parts.score,), F32)
    assert fit(total.root, weight), "one of both is no gradient"
    assert not fit(total.root, op("neg", (total.root,), F32)), "two gradients"
    assert not fit(weight), "no gradient"


def test_what_becomes_of_scores() -> None:
    parts = Parts()
    slope = ops.load("slope", (), F32)
    bias = ops.load("bias", at(parts.row, parts.key), F32)
    of_key = ops.load("of_key", at(parts.key), F32)

    def changed(node: Node, name: str = "add") -> bool:
        return fits(parts, modified=op(name, (parts.score, node), F32))

    assert changed(slope, "mul")
    assert changed(of_key)
    assert not changed(bias), "a number for each score lies in memory otherwise"
    assert not changed(of_key, "fmod")
    below = op("lt", (of_key, slope), torch.bool)
    assert fits(parts, mask=below)
    assert not fits(parts, mask=op("lt", (bias, slope), torch.bool))


# As many as leave the last multiprocessors with no more to do than one tile at a time would.
TURNS = (
    "1 to 16: 1; 17 to 33: 2; 34 to 49: 1; 50 to 66: 4; 67 to 82: 1; 83 to 99: 2; "
    "100 to 115: 1; 116 to 132: 8; 133 to 139: 1"
)


def test_tiles_in_turn() -> None:
    assert _possible_turns(Expr.of(128)) == (1,)
    assert _possible_turns(Expr.of(256)) == (1, 2)
    assert _possible_turns(Expr.of(384)) == (1,)
    assert _possible_turns(Expr.of(1024)) == (1, 2, 4, 8)
    with using(MACHINE):  # 132 multiprocessors
        assert _turns(Expr.of(8192), Expr.of(64), listed=False) == 1
        found = runs(lambda n: _turns(Expr.of(1024), Expr.of(n), listed=True), range(1, 140))
    assert found == TURNS
