"""What is done to steps besides fusion, condition for condition; nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, IntLike, Symbol
from fusec.ir.node import Node, dot, indirect, recording, reduce
from fusec.ir.program import Compute, Extern, Program, Step, TensorRef
from fusec.schedule import choices, choices_products
from fusec.schedule.order import expected_kernels, order_of
from fusec.schedule.overwrite import dimensions_within, overwrite
from fusec.schedule.plan import (
    drop_dead,
    products_of,
    schedule_program,
    small_products,
    with_products,
)
from fusec.schedule.quantized_operands import packed_operands
from fusec.schedule.redundant_copies import take_over
from fusec.schedule.sink_conversions import sink_conversions
from support.triton_bodies import F32, at, axes, buffer, f32

aten = torch.ops.aten
HALF, U8, I64 = torch.float16, torch.uint8, torch.int64
BIG = choices.LEAST_OVERWRITTEN_BYTES // 4


@pytest.fixture(autouse=True)
def _recorder():
    with recording():
        yield


def ref(of: Buffer) -> TensorRef:
    return TensorRef(of.name, of.shape, of.strides, Expr.of(0), of.dtype)


def kernel(
    reads: str,
    into: str,
    size: int = BIG,
    mode: str = "set",
    name: str = "",
    at_index: Callable[[Expr], Expr] = lambda i: i,
) -> Compute:
    (i,) = axes(size)
    value: Node = f32(1.0)
    for each in reads.split():
        value = ops.binary("add", value, ops.load(each, (at_index(Expr.of(i)),), F32))
    stores = tuple(Store(each, at(i), value, mode) for each in into.split())
    return Compute(name or f"to_{into}", Body((i,), (), stores))


def call(target: object, reads: list[Buffer], *outputs: str, name: str = "call") -> Extern:
    return Extern(name, target, tuple(map(ref, reads)), {}, outputs, "")  # type: ignore[arg-type]


def named(names: str, *shape: IntLike, **more: object) -> dict[str, Buffer]:
    return {name: buffer(name, shape, **more) for name in names.split()}  # type: ignore[arg-type]


def program(
    buffers: dict[str, Buffer], *steps: Step, inputs: str = "x", outputs: str = "c"
) -> Program:
    given = tuple(ref(buffers[name]) for name in outputs.split())
    return Program(tuple(inputs.split()), {}, buffers, steps, given)


# -- results written over what is read for the last time --------------------------------------


def places(given: Program) -> list[tuple[str, ...]]:
    changed, decisions = overwrite(given)
    assert all(d.fused and d.bytes_saved == -1 for d in decisions)
    assert (changed is given) is not decisions
    assert bool(decisions) is (changed is not given)
    return [step.writes() for step in changed.steps]


def test_a_result_lies_where_its_last_reader_found_it() -> None:
    buffers = named("x a b c", BIG)
    steps = kernel("x", "a"), kernel("a", "b"), kernel("b", "c")
    changed, decisions = overwrite(program(buffers, *steps))
    assert [(d.producer, d.consumer) for d in decisions] == [("to_a", "to_b"), ("to_b", "to_c")]
    assert len({step.writes() for step in changed.steps}) == 1
    last = changed.steps[-1]
    assert changed.output_buffers() == {last.writes()[0]}
    assert len(changed.buffers) == 4 - len(decisions)


@pytest.mark.parametrize("short", [0, 1])
def test_small_ones_have_memory_of_their_own(short: int) -> None:
    buffers = named("x a b c", BIG - short)
    steps = [kernel(r, w, BIG - short) for r, w in (("x", "a"), ("a", "b"))]
    last = call(aten.relu.default, [buffers["b"]], "c")
    expected = [("a",), ("b" if short else "a",), ("c",)]
    assert places(program(buffers, *steps, last)) == expected


def test_what_stays_where_it_is() -> None:
    buffers = named("x a b c", BIG)
    relu = call(aten.relu.default, [buffers["b"]], "c")
    first, second = kernel("x", "a"), kernel("a", "b")
    assert places(program(buffers, first, second, relu)) == [("a",), ("a",), ("c",)]
    # an input; what is read later; what is returned; of which there is a view; made by who knows
    assert places(program(buffers, kernel("x", "b"), relu)) == [("b",), ("c",)]
    later = kernel("a", "c")
    assert places(program(buffers, first, second, later, outputs="b c"))[1] == ("b",)
    assert places(program(buffers, first, second, relu, outputs="a c"))[1] == ("b",)
    view = call(aten.view.default, [buffers["a"]], "v")
    viewed = program(buffers | named("v", BIG), first, view, second, relu)
    assert places(viewed)[2] == ("b",)
    reader = call(aten.tanh.default, [buffers["a"]], "v")  # reads it, and makes no view
    read = program(buffers | named("v", BIG), first, reader, second, relu)
    assert places(read)[2] == ("a",)
    unknown = call(aten.tanh.default, [buffers["x"]], "a", name="tanh")
    assert places(program(buffers, unknown, second, relu))[1] == ("b",)
    fresh = call(aten.mm.default, [buffers["x"]], "a", name="mm")
    assert places(program(buffers, fresh, second, relu))[1] == ("a",)
    # another type, or elsewhere in memory
    halves = buffers | {"b": buffer("b", (BIG * 2,), HALF)}
    assert places(program(halves, first, second, relu))[1] == ("b",)
    shifted = kernel("a", "b", at_index=lambda i: BIG - 1 - i)
    assert places(program(buffers, first, shifted, relu))[1] == ("b",)
    # what another step has begun, or an input
    begun = program(buffers, first, kernel("x", "b"), replace(second, name="again"), relu)
    assert places(begun)[2] == ("b",)


def test_each_takes_one_and_none_is_taken_twice() -> None:
    buffers = named("x a b c d e", BIG)
    relu = call(aten.relu.default, [buffers["c"], buffers["d"]], "e")
    steps = kernel("x", "a"), kernel("x", "b"), kernel("a b", "c d"), relu
    changed, decisions = overwrite(program(buffers, *steps, outputs="e"))
    assert [step.writes() for step in changed.steps][2] == ("a", "b")
    assert [d.producer for d in decisions] == ["to_a", "to_b"]
    assert relu is not changed.steps[-1]
    assert changed.steps[-1].reads() == ("a", "b")
    two = kernel("x", "a"), kernel("a", "c d"), relu
    assert places(program(buffers, *two, outputs="e"))[1] == ("a", "d")


def test_everyone_hears_of_the_other_name() -> None:
    buffers = named("x a b c e", BIG)
    aside = kernel("x", "e")
    x, b = ref(buffers["x"]), ref(buffers["b"])
    last = Extern("last", aten.cat.default, ([b, x], 2), {"k": b}, ("c",), "", ("b",))
    steps = kernel("x", "a"), aside, kernel("a", "b"), last
    changed, _ = overwrite(program(buffers, *steps, outputs="c e"))
    assert changed.steps[1].body is aside.body
    cat = changed.steps[3]
    assert isinstance(cat, Extern)
    assert cat.args == ([ref(buffers["a"]), ref(buffers["x"])], 2)
    assert cat.kwargs == {"k": ref(buffers["a"])}
    assert cat.mutates == ("a",)


@pytest.mark.parametrize(
    ("given", "returned", "joined"),
    [
        ((1024 * 256,), False, True),
        ((4, 256, 256), False, False),  # a library's result keeps its shape, which is finer
        ((1024, 256), False, True),
        ((1024, 256), True, True),
        ((1024 * 256,), True, False),  # what the caller sees has the shape that it asked for
    ],
)
def test_two_shapes_of_one_memory(given: tuple[int, ...], returned: bool, joined: bool) -> None:
    i, j = axes(1024, 256)
    flat = Expr.of(i) * 256 + Expr.of(j)
    places = {1: (flat,), 2: at(i, j), 3: (Expr.of(i) // 256, Expr.of(i) % 256, Expr.of(j))}
    index = places[len(given)]
    buffers = named("x", 8) | {"p": buffer("p", given), "a": buffer("a", (1024, 256))}
    buffers["c"] = buffer("c", (1024, 256))
    mm = call(aten.mm.default, [buffers["x"]], "p", name="mm")
    value = ops.unary("neg", ops.load("p", index, F32))
    first = Compute("neg", Body((i, j), (), (Store("a", at(i, j), value),)))
    again = Store("c", at(i, j), ops.unary("exp", ops.load("a", at(i, j), F32)))
    second = Compute("exp", Body((i, j), (), (again,)))
    outputs = "a c" if returned else "c"
    changed, decisions = overwrite(program(buffers, mm, first, second, outputs=outputs))
    taken = [d for d in decisions if d.consumer == "neg"]
    assert bool(taken) is joined
    if joined:
        (store,) = changed.steps[1].body.stores  # type: ignore[union-attr]
        assert (store.buffer, store.index, store.made) == ("p", index, "a")
        (load,) = changed.steps[2].body.loads()  # type: ignore[union-attr]
        assert (load.buffer, load.index) == ("p", index)


@pytest.mark.parametrize(
    ("coarse", "fine", "found"),
    [
        (((6, 4), None), ((6, 4), None), (((0, 1),), ((1, 1),))),
        (((6, 4), (8, 1)), ((6, 4), (8, 1)), (((0, 1),), ((1, 1),))),
        (((6, 4), None), ((2, 3, 4), None), (((1, 1), (0, 3)), ((2, 1),))),
        (((24,), None), ((2, 3, 4), None), (((2, 1), (1, 4), (0, 12)),)),
        (((6, 4), None), ((2, 3, 1, 4), None), (((1, 1), (0, 3)), ((3, 1),))),
        (((1, 24), None), ((6, 4), None), ((), ((1, 1), (0, 4)))),
        (((6, 4), None), ((24,), None), None),
        (((6, 4), None), ((4, 6), None), None),
        (((6, 4), None), ((3, 8), None), None),
        (((6, 4), (1, 6)), ((2, 3, 4), None), None),
        (((4, 6), (1, 4)), ((6, 4), None), (((1, 1),), ((0, 1),))),
        (((6, 4), (8, 1)), ((2, 3, 4), None), None),
        (((6, 4), None), ((2, 3, 4), (24, 8, 2)), None),
        (((6, "n"), None), ((2, 3, "n"), None), None),
    ],
)
def test_dimensions_of_one_memory(coarse: object, fine: object, found: object) -> None:
    n = Expr.of(Symbol("n", "size", low=2))

    def made(of: object) -> Buffer:
        shape, strides = of  # type: ignore[misc]
        return buffer("x", tuple(n if s == "n" else s for s in shape), strides=strides)

    assert dimensions_within(made(coarse), made(fine)) == found


# -- copies of what nothing else reads --------------------------------------------------------


def copied(
    source: Buffer, made: Buffer, *, change: Callable[[Compute], Compute] = lambda step: step
) -> tuple[Program, Compute]:
    i, j = axes(6, 4)
    step = Compute("copy", Body((i, j), (), (Store("a", at(i, j), ops.load("p", at(i, j), F32)),)))
    buffers = {"x": buffer("x", (6, 4)), "p": source, "a": made, "c": buffer("c", (6, 4))}
    product = call(aten.mm.default, [buffers["x"], buffers["x"]], "p", name="mm")
    step = change(step)
    last = call(aten.relu.default, [made], "c", name="relu")
    return program(buffers, product, step, last), step


def taken(given: Program) -> bool:
    steps, decisions = take_over(given, given.steps)
    if not decisions:
        assert steps == given.steps
        return False
    (decision,) = decisions
    assert (decision.producer, decision.consumer, decision.fused) == ("mm", "copy", True)
    assert decision.bytes_saved == 2 * given.buffers["a"].bytes
    assert [step.name for step in steps] == [s.name for s in given.steps if s.name != "copy"]
    assert steps[0].writes() == ("a",)
    return True


def test_a_fresh_result_becomes_its_own_copy() -> None:
    p, a = buffer("p", (6, 4)), buffer("a", (6, 4))
    given, step = copied(p, a)
    assert taken(given)
    # returned, read by others, or no fresh memory
    assert not taken(replace(given, outputs=(ref(p),)))
    assert not taken(replace(given, inputs=("x", "p")))
    more = call(aten.tanh.default, [p], "d", name="tanh")
    assert not taken(replace(given, steps=(*given.steps, more)))
    mm, *others = given.steps
    assert not taken(replace(given, steps=(replace(mm, target=aten.tanh.default), *others)))
    assert not taken(replace(given, steps=tuple(others)))
    # elsewhere, in another layout, of another type or device, or more than a copy
    for other in (
        buffer("a", (6, 4), strides=(1, 6)),
        buffer("a", (6, 4), HALF),
        buffer("a", (6, 4), device="cuda"),
        buffer("a", (6, 5)),
    ):
        assert not taken(copied(p, other)[0])
    (store,) = step.body.stores
    i, j = step.body.axes
    assert isinstance(store.value, Node)
    turned = replace(store, value=ops.load("p", ((Expr.of(i) + 1) % 6, Expr.of(j)), F32))
    masked = replace(store, value=ops.load("p", at(i, j), F32, ops.load("m", (), torch.bool)))
    for each in (
        replace(store, mode="add"),
        replace(store, value=ops.unary("neg", store.value)),
        turned,
        masked,
    ):
        body = replace(step.body, stores=(each,))
        assert not taken(copied(p, a, change=lambda s, b=body: replace(s, body=b))[0])  # type: ignore[misc]
    both = replace(step.body, stores=(store, replace(store, buffer="c")))
    assert not taken(copied(p, a, change=lambda s: replace(s, body=both))[0])


# -- conversions, not long before they are read -----------------------------------------------

SUNK = (64 << 10) // 4  # elements of the least conversion that waits


def order(*steps: Step, sizes: int = SUNK, inputs: str = "u v w") -> list[str]:
    names = {n for s in steps for n in (*s.reads(), *s.writes())}
    buffers = {n: buffer(n, (sizes,)) for n in names}
    found = sink_conversions(steps, inputs.split(), buffers)
    assert sorted(s.name for s in found) == sorted(s.name for s in steps)
    return [step.name for step in found]


def test_conversions_wait_until_they_are_read() -> None:
    one, two = kernel("u", "a", SUNK), kernel("v", "b", SUNK)
    first, second = kernel("a", "p", SUNK), kernel("p b", "q", SUNK)
    assert order(one, two, first, second) == ["to_a", "to_b", "to_p", "to_q"]
    # four of these have room beside each other, so that the fifth waits
    many = [kernel("u", f"a{n}", SUNK) for n in range(6)]
    readers = [kernel(f"a{n} p{n}", f"p{n + 1}", SUNK) for n in range(6)]
    expected = [f"to_a{n}" for n in range(4)]
    for n in range(6):
        expected += [f"to_p{n + 1}", *([f"to_a{n + 4}"] if n < 2 else [])]
    found = order(*many, *readers, sizes=(32 << 20) // 16)
    assert sorted(found) == sorted(expected)
    assert found[:5] == expected[:5]
    for n in range(6):
        assert found.index(f"to_a{n}") < found.index(f"to_p{n + 1}")
    assert found.index("to_a4") > found.index("to_p1")
    larger = order(*many, *readers, sizes=(32 << 20) // 16 + 1)
    assert larger.index("to_a3") > larger.index("to_p1")
    # nobody reads it: at the end
    assert order(one, kernel("v", "p", SUNK, name="x"), sizes=SUNK)[-1] == "x"


def test_a_schedule_has_its_conversions_late() -> None:
    buffers = named("u v a p q", SUNK)
    steps = (
        kernel("u", "a", SUNK, name="one"),
        call(aten.relu.default, [buffers["v"]], "p", name="first"),
        call(aten.relu.default, [buffers["a"]], "q", name="reader"),
    )
    found = schedule_program(program(buffers, *steps, inputs="u v", outputs="p q")).program
    assert [step.name for step in found.steps] == ["first", "one", "reader"]


def test_what_is_no_conversion_of_inputs_stays_in_its_place() -> None:
    after = kernel("v", "p", SUNK, name="first"), kernel("a", "q", SUNK, name="reader")
    moved = ["first", "one", "reader"]
    stays = ["one", "first", "reader"]
    for one, expected in (
        (kernel("u", "a", SUNK, name="one"), True),
        (kernel("u", "a", SUNK, "add", name="one"), False),
        (kernel("", "a", SUNK, name="one"), False),  # reads nothing
        (kernel("k", "a", SUNK, name="one"), False),  # no input
        (kernel("u", "a b", SUNK, name="one"), False),
    ):
        large = call(aten.relu.default, [buffer("v", (SUNK,))], "p", name="first")
        found = order(one, large, after[1])
        assert found == (moved if expected else stays), one
    changed = replace(
        call(aten.relu_.default, [buffer("u", (SUNK,))], name="first"), mutates=("u",)
    )
    assert order(kernel("u", "a", SUNK, name="one"), changed, after[1]) == stays
    again = kernel("v", "a", SUNK, "add", name="first")
    assert order(kernel("u", "a", SUNK, name="one"), again, after[1]) == stays
    large = call(aten.relu.default, [buffer("v", (SUNK,))], "p", name="first")
    assert order(kernel("u", "a", SUNK, name="one"), large, after[1], sizes=SUNK - 1) == stays
    assert order(kernel("u", "a", SUNK, name="one"), large, after[1], inputs="u") == moved


# -- who waits for whom -----------------------------------------------------------------------


def test_what_steps_wait_for() -> None:
    buffers = named("x a b c d e", 8)
    steps: list[Step] = [
        kernel("x", "a", 8),
        call(aten.relu.default, [buffers["a"]], "b", name="relu"),
        kernel("b", "c", 8),
        kernel("a", "d", 8),
        kernel("c d", "e", 8),
    ]
    found = order_of(steps)
    names = [step.name for step in steps]
    waits = {(a, b) for a in names for b in names if found.waits(a, b)}
    assert waits == {
        ("relu", "to_a"), ("to_c", "to_a"), ("to_c", "relu"), ("to_d", "to_a"), ("to_e", "to_a"),
        ("to_e", "relu"), ("to_e", "to_c"), ("to_e", "to_d"),
    }  # fmt: skip
    apart = {(a, b) for a in names for b in names if found.separated(a, b)}
    assert apart == {("to_a", "to_c"), ("to_c", "to_a"), ("to_a", "to_e"), ("to_e", "to_a")}
    # one that follows, and updates what is read here
    late = order_of([kernel("x a", "b", 8), kernel("x", "a", 8, "add")])
    assert not late.waits("to_b", "to_a")


def test_readers_that_share_a_kernel() -> None:
    buffers = named("x a b c d p", 8)
    relu = call(aten.relu.default, [buffers["a"]], "p", name="relu")
    a, b, c, d = (
        kernel("x", "a", 8), kernel("x b0", "b", 8), kernel("p", "c", 8), kernel("x", "d", 9),
    )  # fmt: skip
    found = order_of([a, relu, b, c, d])

    assert [set(k.reads) for k in expected_kernels([[a], [b]], found)] == [{"x", "b0"}]  # type: ignore[attr-defined]
    first, then = expected_kernels([[a], [c]], found)
    assert (first.first, then.first) == (True, False)
    assert [set(k.reads) for k in expected_kernels([[c, b]], found)] == [{"p", "x", "b0"}]
    assert len(expected_kernels([[a], [d]], found)) == 2
    assert len(expected_kernels([[a], [d], [b]], found)) == 2


# -- products ---------------------------------------------------------------------------------


def product(
    rows: IntLike = 8, columns: IntLike = 256, inner: int = 512, device: str = "cpu", **more: object
) -> tuple[dict[str, Buffer], Extern]:
    (i, j), k = axes(rows, columns), axes(inner, prefix="r")
    left, right = ops.load("x", at(i, *k), HALF), ops.load("w", at(*k, j), HALF)
    body = Body((i, j), k, (Store("p", at(i, j), dot(left, right, k, F32, "ieee")),))
    buffers = {
        "x": buffer("x", (rows, inner), HALF, device=device),
        "w": buffer("w", (inner, columns), HALF, device=device),
        "p": buffer("p", (rows, columns), device=device),
    }
    step = call(aten.mm.default, [buffers["x"], buffers["w"]], "p", name="mm")
    return buffers, replace(step, body=body, **more)  # type: ignore[arg-type]


def unpacked(
    buffers: dict[str, Buffer], size: int, dtype: torch.dtype = U8, scales: int = 0
) -> tuple[dict[str, Buffer], Compute]:
    k, j = axes(*buffers["w"].shape)
    value = ops.cast(ops.load("bytes", (Expr.of(k) % size, Expr.of(j)), dtype), F32)
    more = {"bytes": buffer("bytes", (size, *buffers["w"].shape[1:]), dtype)}
    if scales:
        more["scale"] = buffer("scale", (scales,))
        value = ops.binary("mul", value, ops.load("scale", (Expr.of(j) % scales,), F32))
    store = Store("w", at(k, j), ops.cast(value, HALF))
    return buffers | more, Compute("unpack", Body((k, j), (), (store,)))


def packed(
    rows: int = 8,
    columns: int = 256,
    size: int = 512,
    dtype: torch.dtype = U8,
    scales: int = 0,
    change: Callable[[Compute], Compute] = lambda step: step,
) -> float | None:
    buffers, mm = product(rows, columns)
    buffers, maker = unpacked(buffers, size, dtype, scales)
    found = packed_operands(Program((), {}, buffers, (change(maker), mm), ()))
    assert found.keys() <= {"mm"}
    return found.get("mm")


def test_operands_of_fewer_bits() -> None:
    assert packed() == 1 / 2
    assert packed(size=256) == 1 / 4
    assert packed(scales=128) == pytest.approx(1 / 2 + 128 * 4 / (512 * 256 * 2))
    assert packed(rows=64) == 1 / 2
    assert packed(rows=65) is None
    assert packed(rows=256, columns=64) is None  # the large operand is the other one
    assert packed(rows=8, columns=128) == 1 / 2
    assert packed(rows=8, columns=127) is None
    assert packed(dtype=torch.int8) == 1 / 2
    assert packed(dtype=torch.float8_e4m3fn) is None
    assert packed(dtype=torch.int16) is None
    assert packed(size=512 * 9 // 8) == 9 / 16
    assert packed(size=512 * 9 // 8 + 1) is None


def test_operands_that_are_not_unpacked_element_by_element() -> None:
    def changed(**changes: object) -> float | None:
        return packed(change=lambda step: replace(step, body=replace(step.body, **changes)))  # type: ignore[arg-type]

    buffers, _ = product()
    _, maker = unpacked(buffers, 512)
    (store,) = maker.body.stores
    (r,) = axes(4, prefix="r")
    summed = ops.cast(reduce("sum", ops.cast(store.value, F32), (r,), F32), HALF)
    assert changed(stores=(replace(store, value=summed),), reduce_axes=(r,)) is None
    assert changed(stores=(store, replace(store, buffer="other"))) is None
    assert changed(stores=(replace(store, mode="put"),)) is None
    assert changed(stores=(store,)) == 1 / 2


def scheduled_as(rows: int, size: int) -> bool:
    """Whether a product of unpacked rows stays one, for tensor cores."""
    buffers, mm = product(rows, 256)
    k, j = axes(512, 256)
    (i, c), (n,) = axes(rows, 256), axes(512, prefix="r")
    right = ops.load("w", at(c, n), HALF)
    made = dot(ops.load("x", at(i, n), HALF), right, (n,), F32, "ieee")
    mm = replace(mm, body=Body((i, c), (n,), (Store("p", at(i, c), made),)))
    buffers["w"] = buffer("w", (256, 512), HALF)
    value = ops.cast(ops.load("bytes", (Expr.of(k) % size, Expr.of(j)), U8), HALF)
    turned = Compute("unpack", Body((k, j), (), (Store("w", at(j, k), value),)))
    buffers["bytes"] = buffer("bytes", (size, 256), U8)
    found = with_products(Program((), {}, buffers, (turned, mm), ()), ["mm"])
    (step,) = (s for s in found.steps if s.name == "mm")
    assert isinstance(step, Compute)
    return bool(step.body.products)


def test_a_vector_times_a_matrix_is_a_sum_unless_two_numbers_are_a_byte() -> None:
    assert not scheduled_as(1, 512)  # half as many bytes
    assert not scheduled_as(1, 512 * 5 // 8 + 1)
    assert scheduled_as(1, 512 * 5 // 8)
    assert scheduled_as(1, 256)
    assert scheduled_as(2, 512)
    buffers, mm = product()
    given = Program((), {}, buffers, (mm,), ())
    assert with_products(given, []) == given
    assert products_of(given) == ("mm",)
    assert products_of(replace(given, steps=(replace(mm, body=None),))) == ()
    opaque = replace(given, steps=(replace(mm, body=None),))
    assert with_products(opaque, ["mm"]) == opaque


def test_products_of_vectors_and_small_ones() -> None:
    def vector(rows: int, columns: int) -> bool:
        buffers, mm = product(rows, columns)
        assert mm.body is not None
        return choices_products.is_vector_product(mm.body, buffers)

    assert not vector(1, 256)  # whose matrix is not contiguous along the sum
    assert vector(256, 1)
    assert not vector(256, 2)
    buffers, mm = product(256, 1)
    assert mm.body is not None
    for batch, still in ((1, True), (2, False)):
        outer = replace(mm.body, axes=(*axes(batch, prefix="b"), *mm.body.axes))
        assert choices_products.is_vector_product(outer, buffers) is still
    (made,) = mm.body.products
    left = ops.unary("neg", made.args[0])
    other = dot(left, made.args[1], made.axes, F32, "ieee")
    (store,) = mm.body.stores
    computed = replace(mm.body, stores=(replace(store, value=other),))
    assert not choices_products.is_vector_product(computed, buffers)

    def small(rows: IntLike, columns: int, inner: int) -> bool:
        _, mm = product(rows, columns, inner)
        assert mm.body is not None
        return choices_products.is_small_product(mm.body)

    assert small(64, 128, 128)
    assert not small(65, 128, 128)
    assert not small(1, 1, 129)
    assert not small(0, 128, 128)
    assert not small(Expr.of(Symbol("n", "size", low=2)), 8, 8)


def test_products_that_kernels_are_best_for() -> None:
    def small(of: tuple[dict[str, Buffer], Extern], names: tuple[str, ...] = ("mm",)) -> bool:
        buffers, step = of
        return small_products(Program((), {}, buffers, (step,), ()), names) == ("mm",)

    gpu = {"device": "cuda"}
    assert small(product(64, 128, 128, **gpu))  # type: ignore[arg-type]
    assert not small(product(64, 128, 128))
    assert not small(product(64, 128, 128, **gpu), ())  # type: ignore[arg-type]
    assert not small(product(64, 128, 129, **gpu))  # type: ignore[arg-type]
    assert not small(product(65, 128, 128, **gpu))  # type: ignore[arg-type]
    assert small(product(65, 128, 129, odd_rows=True, **gpu))  # type: ignore[arg-type]
    assert not small(product(65, 128, 129, odd_rows=True))
    buffers, step = product(64, 128, 128, **gpu)  # type: ignore[arg-type]
    assert not small((buffers, replace(step, body=None)))
    buffers, mm = product(8, 256, device="cuda")
    buffers, maker = unpacked(buffers, 512)
    assert small_products(Program((), {}, buffers, (maker, mm), ()), ("mm",)) == ("mm",)


# -- what nobody reads ------------------------------------------------------------------------


def test_what_nobody_reads_is_not_computed() -> None:
    buffers = named("x a b c d e", 8)
    both = kernel("x", "a b", 8)
    random = call(aten.bernoulli.default, [buffers["x"]], "d", name="random")
    plain = call(aten.relu.default, [buffers["x"]], "d", name="relu")
    check = Extern("check", aten._assert_async.msg, (ref(buffers["x"]), "no"), {}, (), "")
    given = program(buffers, both, kernel("x", "e", 8), random, plain, check, kernel("a", "c", 8))
    found = drop_dead(given)
    assert [step.name for step in found.steps] == ["to_a b", "random", "check", "to_c"]
    assert [step.writes() for step in found.steps] == [("a",), ("d",), (), ("c",)]
    assert found.steps[-1] is given.steps[-1]
    into = program(buffers, kernel("a", "x", 8), outputs="c")
    assert drop_dead(into).steps == into.steps  # an input that is written
    place = indirect(ops.load("n", (), I64), Expr.of(8))
    assert place.symbols()
