"""The host program line for line, and what it is made of: names, sizes, roles, bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from fusec.codegen import host_program
from fusec.codegen.common.signatures import (
    argument_buffers,
    body_sizes,
    checks,
    identifier,
    make_signature,
)
from fusec.codegen.host_program import HostProgram, emit_host
from fusec.codegen.host_values import (
    LARGE_BYTES,
    buffer_bytes,
    called_as,
    direct_target,
    returns_list,
)
from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.checks import CheckKind, check_name
from fusec.ir.index import Expr, IntLike, Symbol
from fusec.ir.node import Node, indirect, op, recording
from fusec.ir.program import Compute, Extern, Program, Step, TensorRef
from fusec.report import SourceLine
from support.triton_bodies import F32, at, axes, buffer, f32

aten = torch.ops.aten
N = Symbol("n", "size", low=2)
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _recorder():
    with recording():
        yield


def named(**shapes: tuple[IntLike, ...]) -> dict[str, Buffer]:
    return {name: buffer(name, shape) for name, shape in shapes.items()}


def ref(of: Buffer, **changes: object) -> TensorRef:
    return replace(TensorRef(of.name, of.shape, of.strides, Expr.of(0), of.dtype), **changes)  # type: ignore[arg-type]


def kernel(name: str, reads: str, writes: str, size: IntLike = 8) -> Compute:
    (i,) = axes(size)
    value: Node = f32(1.0)
    for each in reads.split():
        value = ops.binary("add", value, ops.load(each, at(i), F32))
    stores = tuple(Store(each, at(i), value) for each in writes.split())
    return Compute(name, Body((i,), (), stores))


def call(
    target: object, args: Sequence[object], outputs: tuple[str, ...], **more: object
) -> Extern:
    kwargs = more.pop("kwargs", {})
    name = f"call_{next(_numbers)}"
    return Extern(name, target, tuple(args), kwargs, outputs, "", **more)  # type: ignore[arg-type]


def written(
    steps: Sequence[Step],
    buffers: dict[str, Buffer],
    outputs: Sequence[object],
    inputs: tuple[str, ...] = ("x",),
    *,
    sizes: dict[Symbol, tuple[str, int | None]] | None = None,
    pointers: bool = True,
    traced: bool = False,
) -> HostProgram:
    program = Program(inputs, sizes or {}, buffers, tuple(steps), tuple(outputs))
    by_pointers = {step.name: pointers for step in steps if isinstance(step, Compute)}
    return emit_host(program, by_pointers, traced=traced)


def lines(host: HostProgram) -> list[str]:
    head, *rest = host.text.splitlines()
    assert head == "def run(inputs):"
    assert all(line.startswith("    ") for line in rest)
    return [line.strip() for line in rest]


BEGIN = ["x, = inputs", "expect_inputs(inputs)", "inputs.clear()"]


def test_kernels_of_one_call_share_memory_without_a_name() -> None:
    buffers = named(x=(8,), a=(8,), b=(8,), c=(8,))
    steps = [kernel("one", "x", "a"), kernel("two", "a", "b"), kernel("three", "b x", "c")]
    host = written(steps, buffers, [ref(buffers["c"]), ref(buffers["b"])])
    assert lines(host) == [
        *BEGIN,
        "b = empty_cpu((8,), (1,), float32)",
        "c = empty_cpu((8,), (1,), float32)",
        "launch_one_to_three(x, b, c)",
        "del x",
        "return [c, b]",
    ]
    (group,) = host.groups.values()
    assert group.steps == tuple(steps)
    assert (group.buffers, group.sizes, group.inner) == (("x", "b", "c"), (), ("a",))
    assert host.constants == {}
    single = written(steps[:1], buffers, [ref(buffers["a"])])
    assert lines(single)[-3:] == ["launch_one(x, a)", "del x", "return [a]"]


def test_kernels_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = named(x=(8,), a=(8,), b=(8,), c=(8,))
    steps = [kernel("one", "x", "a"), kernel("two", "a", "b c")]
    outputs = [ref(buffers["b"]), 3, None, ref(buffers["c"])]
    allocated = [f"{n} = empty_cpu((8,), (1,), float32)" for n in "abc"]
    own = {
        "tensors": (["one(x, a)"], ["two(a, b, c)"]),
        "traced": (["launch('one', [x, a], [])"], ["launch('two', [a, b, c], [])"]),
        "pointers": (
            [
                "status = one(x.data_ptr(), a.data_ptr(), threads())",
                "if status: failed('one', status)",
            ],
            [
                "status = two(a.data_ptr(), b.data_ptr(), c.data_ptr(), threads())",
                "if status: failed('two', status)",
            ],
        ),
    }
    for how, (first, second) in own.items():
        if how == "pointers":  # too much memory to keep until the last one is done
            monkeypatch.setattr(host_program, "GROUPED_BYTES", 3 * 8 * 4 - 1)
        host = written(steps, buffers, outputs, pointers=how != "tensors", traced=how == "traced")
        assert lines(host) == [
            *BEGIN, allocated[0], *first, "del x", *allocated[1:], *second, "del a",
            "return [b, 3, None, c]",
        ]  # fmt: skip
        assert host.groups == {}


@pytest.mark.parametrize(("size", "grouped"), [(1 << 21, True), ((1 << 21) + 1, False)])
def test_kernels_of_no_more_than_16_mib_are_launched_at_once(size: int, grouped: bool) -> None:
    buffers = named(x=(size,), a=(size,))
    host = written([kernel("one", "x", "a", size)], buffers, [ref(buffers["a"])])
    assert bool(host.groups) is grouped


def test_names_that_the_text_has_are_left_to_it() -> None:
    words = [
        "run", "inputs", "status", "failed", "expect", "expect_inputs", "empty", "empty_cpu",
        "empty_large", "empty_cuda", "multiply_into", "one", "float32", "bool_", "_",
    ]  # fmt: skip
    buffers = {f"b{n}": replace(buffer(f"b{n}", (8,)), hint=word) for n, word in enumerate(words)}
    made = buffer("made", (8,))
    steps = [kernel("one", "b0", "made")]
    host = written(steps, {**buffers, "made": made}, [ref(made)], tuple(buffers))
    names = lines(host)[0].removesuffix(" = inputs").split(", ")
    assert [name.rstrip("2").rstrip("_") for name in names[:12]] == words[:12]
    assert not {*words[:13], "_"} & set(names)
    assert len(set(names)) == len(words)


def test_a_group_ends_where_an_operator_is_called() -> None:
    buffers = named(x=(8,), a=(8,), b=(8,), c=(8,), d=(8,), e=(8,))
    steps = [
        kernel("one", "x", "a"),
        kernel("two", "a", "b"),
        call(aten.sort.stable, [ref(buffers["b"])], ("c", ""), kwargs={"stable": True}),
        kernel("three", "c", "d"),
        kernel("four", "d b", "e"),
    ]
    host = written(steps, buffers, [ref(buffers["e"])])
    assert lines(host) == [
        *BEGIN,
        "b = empty_cpu((8,), (1,), float32)",
        "launch_one_to_two(x, b)",
        "del x",
        "c, _ = aten_sort_stable(b, stable=True)",
        "del _",
        "c = expect(c, (8,), (1,), float32, 'aten.sort.stable')",
        "e = empty_cpu((8,), (1,), float32)",
        "launch_three_to_four(c, b, e)",
        "del c",
        "del b",
        "return [e]",
    ]
    assert host.constants == {"aten_sort_stable": aten.sort.stable}
    assert [group.inner for group in host.groups.values()] == [("a",), ("d",)]


def test_sizes_come_from_inputs() -> None:
    n, m = Expr.of(N), Symbol("m", "size", low=2)
    buffers = named(x=(n,), a=(n,), b=(n + 1,))
    steps = [kernel("one", "x", "a", n), kernel("two", "a", "b", n + 1)]
    sizes = {N: ("x", 0), m: ("count", None)}
    outputs = [ref(buffers["b"]), Expr.of(m) * 2]
    host = written(steps, buffers, outputs, ("x", "count"), sizes=sizes)
    assert lines(host) == [
        "x, count = inputs",
        "expect_inputs(inputs)",
        "inputs.clear()",
        "n = x.size(0)",
        "m = count",
        "a = empty_cpu((n,), (1,), float32)",
        "status = one(x.data_ptr(), a.data_ptr(), n, threads())",
        "if status: failed('one', status)",
        "del x",
        "b = empty_cpu((n + 1,), (1,), float32)",
        "status = two(a.data_ptr(), b.data_ptr(), n, threads())",
        "if status: failed('two', status)",
        "del a",
        "return [b, m * 2]",
    ]
    none = written([], {}, [1, True], ())
    assert lines(none) == ["inputs.clear()", "return [1, True]"]


def test_arguments_of_operators() -> None:
    buffers = named(x=(8, 4), a=(8, 4), b=(8, 4), c=(8, 4), d=(8,))
    x, a = buffers["x"], buffers["a"]
    token = object()
    part = ref(
        x, shape=(Expr.of(2), Expr.of(4)), strides=(Expr.of(4), Expr.of(1)), offset=Expr.of(8)
    )
    steps = [
        call(aten.relu.default, [ref(x)], ("a",), where=SourceLine("cell", 7, "a = x.relu()")),
        call(aten.cat.default, [[part, ref(a, offset=Expr.of(4))], 0], ("b",)),
        call(
            token,
            [(1,), (1, "two"), 0.5, math.inf, token, torch.int32],
            ("c",),
            kwargs={"at": None},
        ),
        call(aten.unbind_copy.int, [ref(a)], ("d",)),
        call(aten._assert_async.msg, [ref(a), "not so"], ("",)),
        call(aten.relu_.default, [ref(buffers["b"])], ("",), mutates=("b",)),
    ]
    host = written(steps, buffers, [ref(buffers["b"]), ref(x, apart=True)])
    view = "as_strided((2, 4), (4, 1), x.storage_offset() + 8)"
    assert lines(host) == [
        *BEGIN,
        "a = aten_relu_default(x)",
        "a = expect(a, (8, 4), (4, 1), None, 'aten.relu.default (line 7)')",
        f"b = aten_cat_default([x.{view}, a.as_strided((8, 4), (4, 1), 4)], 0)",
        "b = expect(b, (8, 4), (4, 1), None, 'aten.cat.default')",
        f"{name_of(host, token)}((1,), (1, 'two'), 0.5, {name_of(host, math.inf)}, "
        f"{name_of(host, token)}, {name_of(host, torch.int32)}, at=None)",
        "aten_unbind_copy_int(a)",
        "aten__assert_async_msg(a, 'not so')",
        "del a",
        "aten_relu__default(b)",
        "return [b, x.as_strided((8, 4), (4, 1), x.storage_offset() + 0)]",
    ]


def name_of(host: HostProgram, value: object) -> str:
    (name,) = (name for name, known in host.constants.items() if known is value)
    return name


def test_results_that_nobody_reads_are_looked_at_where_their_size_was_promised() -> None:
    buffers = named(x=(8,), a=(8,), b=(8,))
    x = ref(buffers["x"])
    assert "expect(" not in written([call(aten.relu.default, [x], ("a",))], buffers, [1]).text
    promised = call(aten.masked_select.default, [x, x], ("a",))
    assert "a = expect(a, (8,), (1,), None" in written([promised], buffers, [1]).text
    listed = call(aten.split.Tensor, [x, 4], ("a",))
    assert "a, = aten_split_Tensor(x, 4)" in written([listed], buffers, [ref(buffers["a"])]).text


def test_large_memory_and_other_devices() -> None:
    count = LARGE_BYTES // 4
    for size, empty in ((count, "empty_large"), (count - 1, "empty_cpu")):
        buffers = named(x=(8,), a=(size,))
        text = written([kernel("one", "x", "a")], buffers, [ref(buffers["a"])]).text
        assert f"a = {empty}(({size},), (1,), float32)" in text
    for device in ("cuda", "meta"):
        buffers = {n: buffer(n, (8,), device=device) for n in ("x", "a")}
        host = written([kernel("one", "x", "a")], buffers, [ref(buffers["a"])], pointers=False)
        (name,) = host.constants
        assert host.constants[name] == torch.device(device)
        empty = f"empty_cuda((8,), (1,), float32, {name})"
        other = f"empty((8,), (1,), dtype=float32, device={name})"
        assert f"a = {empty if device == 'cuda' else other}" in host.text


@pytest.mark.parametrize(
    ("rows", "more", "into"),
    [
        (1024, {}, True),
        (1023, {}, False),
        (1024, {"kwargs": {"out": None}}, False),
        (1024, {"target": aten.relu.default}, False),
        (1024, {"outputs": ("",)}, False),
        (1024, {"device": "cuda"}, False),
    ],
)  # fmt: skip
def test_large_products_are_written_into_memory_of_ours(
    rows: int, more: dict[str, object], into: bool
) -> None:
    device = str(more.pop("device", "cpu")) if "device" in more else "cpu"
    buffers = {n: buffer(n, (rows, 1024), device=device) for n in ("x", "a")}
    outputs = more.get("outputs", ("a",))
    step = call(
        more.get("target", aten.mm.default),
        [ref(buffers["x"]), ref(buffers["x"])],
        outputs,  # type: ignore[arg-type]
        kwargs=more.get("kwargs", {}),
    )
    text = written([step], buffers, [ref(buffers["a"])] if outputs == ("a",) else [1]).text
    product = "multiply_into(aten_mm_default, x, x, out=a)"
    assert (product in text) is ("multiply_into(" in text) is into
    assert ("a = empty_large(" in text) is into
    unread = written([step], buffers, [1]).text
    assert "multiply_into(" not in unread


def test_what_is_called() -> None:
    assert called_as(aten.mm.default) is torch.mm
    assert called_as(aten.relu.default) is aten.relu.default
    assert direct_target(aten.bmm.default) is torch.bmm
    assert direct_target(aten.relu.default) is aten.relu.default._op
    assert direct_target(math.sqrt) is math.sqrt
    assert [returns_list(t) for t in (aten.split.Tensor, aten.relu.default, math.sqrt)] == [
        True, False, False,
    ]  # fmt: skip
    assert returns_list(aten._assert_async.msg) is False
    assert returns_list(aten.sort.stable) is False


def test_bytes_with_gaps() -> None:
    assert buffer_bytes(buffer("a", (3, 5))) == 60
    assert buffer_bytes(buffer("a", (3, 5), strides=(10, 2))) == (2 * 10 + 4 * 2 + 1) * 4
    assert buffer_bytes(buffer("a", (3, 0))) == 0
    assert buffer_bytes(buffer("a", (), torch.int64)) == 8
    n = Expr.of(N)
    assert buffer_bytes(buffer("a", (3, n))) is None
    assert buffer_bytes(buffer("a", (3, 4), strides=(n, 1))) is None


def test_names() -> None:
    taken = {"x", "x2", "y1"}
    given = ("x", "y1", "y1", "a b", "", "9", "for", "uint8_t", "fx_exp", "_z_", "float32")
    found = [identifier(text, taken, "value") for text in given]
    assert found == [
        "x3", "y1_2", "y1_3", "a_b", "value", "value_9", "for_", "uint8_t_", "fx_exp_", "z",
        "float32",
    ]  # fmt: skip
    assert taken == {"x", "x2", "y1", *found}


def test_sizes_that_a_kernel_needs() -> None:
    """Of loops, of positions, of buffers, of places where it stores; in order of creation."""
    a, b, c, d, e, other = (Symbol(name, "size", low=2) for name in "abcdef")
    (i,), (j,) = axes(Expr.of(c)), axes(Expr.of(b), prefix="r")
    value = ops.load("x", (Expr.of(j) + Expr.of(d),), F32)
    body = Body((i,), (j,), (Store("y", (Expr.of(i) + Expr.of(e),), value),))
    x = buffer("x", (Expr.of(a),))
    buffers = {"x": x, "y": buffer("y", (8,)), "z": buffer("z", (Expr.of(other),))}
    assert body_sizes(body, buffers) == (a, b, c, d, e)
    wide = {"x": buffer("x", (8,), strides=(Expr.of(other),)), "y": buffer("y", (8,))}
    assert body_sizes(body, wide) == (b, c, d, e, other)


def test_roles_and_checks_of_arguments() -> None:
    i, j = axes(8, 4)
    n = ops.load("n", at(i), torch.int64)
    valid = ops.logical_not(ops.load("ok", at(i), torch.bool))
    checked = op(check_name(CheckKind.INDEX, "too far"), (valid, n), torch.int64)
    divisor = op(check_name(CheckKind.DIVISION, "by zero"), (valid, n), torch.int64)
    row = indirect(checked, Expr.of(8))
    value = ops.binary(
        "add", ops.load("x", (row, Expr.of(j)), F32), ops.load("both", at(i, j), F32)
    )
    stores = (
        Store("both", at(i, j), value),
        Store("new", at(i, j), ops.cast(op("floordiv", (n, divisor), torch.int64), F32)),
        Store("some", (row, Expr.of(j)), value, "add"),
    )
    body = Body((i, j), (), stores)
    buffers = named(x=(8, 4), both=(8, 4), new=(8, 4), some=(8, 4))
    buffers |= {"n": buffer("n", (8,), torch.int64), "ok": buffer("ok", (8,), torch.bool)}
    buffers["x"] = replace(buffers["x"], hint="class")
    buffers["new"] = replace(buffers["new"], hint="")
    order = argument_buffers(body)
    assert order[-3:] == ("both", "new", "some")
    assert set(order[:-3]) == {"x", "n", "ok"}
    signature, names = make_signature(body, buffers, {"n"})
    assert names == {
        "x": "class_",
        "n": "n2",
        "ok": "ok",
        "both": "both",
        "new": "new_",
        "some": "some",
    }
    roles = {a.name: a.role for a in signature.arguments}
    assert roles == {
        "class_": "in", "n2": "in", "ok": "in", "both": "inout", "new_": "out", "some": "inout",
    }  # fmt: skip
    assert set(signature.checks) == {"too far", "by zero"}
    assert [signature.checks[n - 1] for n in signature.divisions] == ["by zero"]
    assert checks(body) == {"too far": CheckKind.INDEX, "by zero": CheckKind.DIVISION}
    assert signature.sizes == ()


@pytest.mark.parametrize(
    "name",
    "INT64_MIN UINT8_MAX INT32_C INTPTR_MAX SIZE_MAX M_PI M_2_SQRTPI M_LN10f FP_NAN HUGE_VALF "
    "NULL int64_t uint8_t fx_exp double operator tl lambda".split(),
)
def test_names_that_headers_take_are_left_to_them(name: str) -> None:
    assert identifier(name, set(), "value") == f"{name}_"


def test_names_that_are_nobody_elses() -> None:
    for name in "W_Q X_MAX M_norm Mint64_t MIN M_b int64 NULLS size_t Null X_FP_NAN".split():
        assert identifier(name, set(), "value") == name
