"""The verifier of graphs and programs: silent where nothing is wrong, and finds each mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

import fusec
from fusec.graph.verifier import graph_problems
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.body_verifier import MODES, Problem, body_problems
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Cast, Const, Load, Node, Op, Reduce, Scan, indirect, recording
from fusec.ir.program import Compute, Extern, Program, TensorRef
from fusec.ir.shapes import contiguous_strides
from fusec.ir.verifier import InvalidProgram, check_program, require, verifies

FLOAT, HALF, INT, BOOL = torch.float32, torch.float16, torch.int64, torch.bool


def exprs(*values: Any) -> tuple[Expr, ...]:
    return tuple(Expr.of(v) for v in values)


def buffer(name: str, *shape: Any, dtype: torch.dtype = FLOAT) -> Buffer:
    sizes = exprs(*shape)
    return Buffer(name, sizes, contiguous_strides(sizes), dtype)


I, J, R, Q = (Symbol(n, "axis", Expr.of(s)) for n, s in (("i", 4), ("j", 8), ("r", 8), ("q", 4)))
N = Symbol("n", "size", low=2)


def load(name: str, *index: Any, dtype: torch.dtype = FLOAT, mask: Node | None = None) -> Load:
    return Load(name, exprs(*index), dtype, mask, 0)


def const(value: Any, dtype: torch.dtype = FLOAT) -> Const:
    return Const(value, dtype)


def add(x: Node, y: Node, dtype: torch.dtype = FLOAT) -> Op:
    return Op("add", (x, y), dtype)


def total(value: Node, *axes: Symbol, kind: str = "sum", dtype: torch.dtype = FLOAT) -> Reduce:
    return Reduce(kind, value, axes, dtype)


def program() -> Program:
    """``z = x + 1`` and ``s = z.sum(1)``, then a copy of ``s`` by an operator."""
    sums = Body((I,), (R,), (Store("s", exprs(I), total(load("z", I, R), R)),))
    plus = Body((I, J), (), (Store("z", exprs(I, J), add(load("x", I, J), const(1.0))),))
    whole = TensorRef("s", exprs(4), exprs(1), Expr.of(0), FLOAT)
    call = Extern("op2", torch.clone, (whole,), {}, ("c",), "for a test")
    buffers = {
        b.name: b for b in (buffer("x", 4, 8), buffer("z", 4, 8), buffer("s", 4), buffer("c", 4))
    }
    outputs = tuple(
        TensorRef(n, buffers[n].shape, buffers[n].strides, Expr.of(0), FLOAT) for n in ("z", "c")
    )
    steps = (Compute("op0", plus), Compute("op1", sums), call)
    return Program(("x",), {}, buffers, steps, outputs)


def with_buffer(which: str, **changes: Any) -> Callable[[Program], Program]:
    def change(p: Program) -> Program:
        return replace(p, buffers={**p.buffers, which: replace(p.buffers[which], **changes)})

    return change


def with_body(step: int, change: Callable[[Body], Body]) -> Callable[[Program], Program]:
    def changed(p: Program) -> Program:
        steps = list(p.steps)
        steps[step] = replace(steps[step], body=change(steps[step].body))  # type: ignore[union-attr]
        return replace(p, steps=tuple(steps))

    return changed


def with_store(step: int = 0, **changes: Any) -> Callable[[Program], Program]:
    return with_body(step, lambda b: replace(b, stores=(replace(b.stores[0], **changes),)))


def stored(value: Node, **more: Any) -> Callable[[Program], Program]:
    return with_store(0, value=value, **more)


def reduced(value: Node) -> Callable[[Program], Program]:
    return with_store(1, value=value)


def with_steps(change: Callable[[list[Any]], list[Any]]) -> Callable[[Program], Program]:
    return lambda p: replace(p, steps=tuple(change(list(p.steps))))


def with_extern(**changes: Any) -> Callable[[Program], Program]:
    return with_steps(lambda steps: [*steps[:2], replace(steps[2], **changes)])


X, H = load("x", I, J), const(2.0, HALF)
# kind of problem -> what makes it of a program that is right, one or several ways
BROKEN: list[tuple[str, Callable[[Program], Program]]] = [
    ("repeated_input", lambda p: replace(p, inputs=("x", "x"))),
    ("repeated_step", with_steps(lambda s: [s[0], replace(s[1], name="op0"), s[2]])),
    ("buffer_name", with_buffer("z", name="y")),
    ("stride_count", with_buffer("z", strides=exprs(1))),
    ("negative_size", with_buffer("z", shape=exprs(4, -8))),
    ("negative_stride", with_buffer("z", strides=exprs(-8, 1))),
    ("size_source", lambda p: replace(p, sizes={N: ("y", 0)})),
    ("size_source", lambda p: replace(p, sizes={N: ("x", 2)})),
    ("unbound_size", with_buffer("z", shape=exprs(4, N))),
    ("unbound_size", with_body(0, lambda b: replace(b, axes=(Symbol("k", size=Expr.of(N)), J)))),
    ("size_of_axis", with_buffer("z", shape=exprs(4, I))),
    ("unknown_buffer", stored(add(load("y", I, J), const(1.0)))),
    ("unknown_buffer", with_store(0, buffer="y")),
    ("unknown_buffer", lambda p: replace(p, outputs=(replace(p.outputs[0], buffer="y"),))),  # type: ignore[type-var]
    ("read_before_write", with_steps(lambda s: [s[1], s[0], s[2]])),
    ("read_before_write", with_steps(lambda s: s[1:])),
    ("defined_twice", with_steps(lambda s: [*s, replace(s[2], name="op3")])),
    ("mutates_unread", with_extern(mutates=("z",))),
    ("output_not_written", with_steps(lambda s: s[:2])),
    (
        "view_out_of_bounds",
        lambda p: replace(p, outputs=(replace(p.outputs[0], offset=Expr.of(1)),)),  # type: ignore[type-var]
    ),
    ("not_stored_once", with_body(0, lambda b: replace(b, stores=b.stores * 2))),
    (
        "not_stored_once",
        with_body(0, lambda b: replace(b, axes=(I, K7), stores=(store_of(b, I, K7),))),
    ),
    ("repeated_axis", with_body(0, lambda b: replace(b, axes=(I, J, I)))),
    ("axis_without_size", with_body(0, lambda b: replace(b, axes=(I, J, Symbol("k"))))),
    ("no_store", with_body(0, lambda b: replace(b, stores=()))),
    ("store_mode", with_store(0, mode="append")),
    ("store_rank", with_store(0, index=exprs(I))),
    ("store_dtype", stored(Cast(X, torch.float64, False, False))),
    ("stored_repeatedly", with_body(0, lambda b: replace(b, axes=(I, J, Q)))),
    ("reduced_axis_escapes", reduced(load("z", I, R))),
    ("load_after_overwrite", stored(load("z", I, 0))),
    ("load_rank", stored(load("x", I))),
    ("load_dtype", stored(Cast(load("x", I, J, dtype=torch.int32), FLOAT, False, False))),
    ("mask_dtype", stored(load("x", I, J, mask=X))),
    ("foreign_axis", stored(load("x", I, R))),
    ("foreign_axis", with_store(0, index=exprs(I, R))),
    ("out_of_bounds", stored(load("x", I, Expr.of(J) + 1))),
    ("out_of_bounds", stored(load("x", Expr.of(I) - 1, J))),
    ("out_of_bounds", stored(load("x", J, J))),
    ("out_of_bounds", with_store(0, index=exprs(I, Expr.of(J) + 1))),
    ("indirect_type", stored(load("x", I, indirect(X, Expr.of(8))))),
    ("unknown_operation", stored(Op("plus", (X, X), FLOAT))),
    ("operation_arity", stored(Op("exp", (X, X), FLOAT))),
    ("operation_type", stored(Op("lshift", (X, X), FLOAT))),
    ("mixed_types", stored(add(X, const(1, INT)))),
    ("condition_type", stored(Op("where", (X, X, X), FLOAT))),
    ("result_type", stored(Op("lt", (X, X), FLOAT))),
    ("result_type", reduced(total(load("z", I, R), R, kind="argmax"))),
    (
        "half_arithmetic",
        stored(Cast(add(H, H, HALF), FLOAT, False, False)),
    ),
    ("check_types", stored(Op("check:index:out of range", (X, X), FLOAT))),
    ("reduction_kind", reduced(total(load("z", I, R), R, kind="median"))),
    ("reduction_kind", reduced(Scan("mean", load("z", I, R), R, FLOAT))),
    ("reduced_axes", stored(total(X, J))),
    ("reduced_axes", stored(Scan("sum", X, J, FLOAT))),
    ("bitcast_width", stored(Cast(const(1, INT), FLOAT, False, True))),
    ("constant_range", stored(Cast(const(-5, torch.uint8), FLOAT, False, False))),
    ("constant_range", stored(Cast(const(300, torch.int8), FLOAT, False, False))),
    ("companion", with_body(1, lambda b: replace(b, companions=(load("z", I, R),)))),
]
K7 = Symbol("k", "axis", Expr.of(7))


def store_of(body: Body, *index: Any) -> Store:
    return replace(body.stores[0], index=exprs(*index), value=load("x", *index))


def test_nothing_is_wrong_with_what_is_right() -> None:
    assert check_program(program()) == []
    require("a stage", [])


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_each_mistake_is_found(number: int) -> None:
    kind, change = BROKEN[number]
    with recording():
        found = check_program(change(program()))
    assert kind in {problem.kind for problem in found}, found
    with pytest.raises(InvalidProgram, match="please report it"):
        require("lower", found)


def test_every_rule_has_a_mistake() -> None:
    """Every kind that the verifier knows is in the table, and there are more than thirty."""
    import re
    from pathlib import Path

    from fusec.ir import body_verifier, verifier

    texts = [Path(module.__file__).read_text() for module in (verifier, body_verifier)]
    known = {kind for text in texts for kind in re.findall(r'Problem\("(\w+)"', text)}
    assert known == {kind for kind, _ in BROKEN}
    assert len(BROKEN) > 50


def test_modes_are_those_of_stores() -> None:
    doc = Store.__doc__ or ""
    assert all(f"``{mode}``" in doc for mode in MODES)


def test_loops_over_nothing() -> None:
    none = Symbol("i", "axis", Expr.of(0))
    body = Body((none,), (), (Store("z", exprs(0), const(0.0)),))
    assert body_problems(body, {"z": buffer("z", 0)}) == []


# -- graphs -----------------------------------------------------------------------------------


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in inputs]
    return make_fx(function, tracing_mode="fake", decomposition_table={})(*fakes)


def sample() -> fx.GraphModule:
    return traced(lambda x, y: (torch.sigmoid(x + y).sum(1), x * 2), *torch.randn(2, 4, 8))


def node_of(module: fx.GraphModule, name: str) -> fx.Node:
    return next(n for n in module.graph.nodes if name in str(n.target))


def wrong_dtype(module: fx.GraphModule) -> None:
    node = node_of(module, "sigmoid")
    node.meta["val"] = node.meta["val"].double()


def wrong_shape(module: fx.GraphModule) -> None:
    node = node_of(module, "aten.sum")
    node.args = (node.args[0], [0])


def another_operator(module: fx.GraphModule) -> None:
    node_of(module, "aten.sum").target = torch.ops.aten.amax.default
    node = node_of(module, "amax")
    node.args = (node.args[0], [0, 1])


def unknown_value(module: fx.GraphModule) -> None:
    del node_of(module, "sigmoid").meta["val"]


def late_input(module: fx.GraphModule) -> None:
    first, last = node_of(module, "sigmoid"), node_of(module, "aten.mul")
    with module.graph.inserting_after(first):
        extra = module.graph.placeholder("extra")
    extra.meta["val"] = last.meta["val"]


def used_before(module: fx.GraphModule) -> None:
    add_node, last = node_of(module, "aten.add"), node_of(module, "aten.mul")
    add_node.args = (last, add_node.args[1])


def refused(module: fx.GraphModule) -> None:
    node = node_of(module, "aten.sum")
    node.args = (node.args[0], [5])


GRAPHS: dict[str, tuple[Callable[[fx.GraphModule], None], str]] = {
    "another dtype": (wrong_dtype, "value_dtype"),
    "another dimension": (wrong_shape, "value_shape"),
    "another operator": (another_operator, "value_shape"),
    "nothing known": (unknown_value, "no_value"),
    "an input in the middle": (late_input, "late_input"),
    "used before it is there": (used_before, "broken_graph"),
    "a dimension that is not there": (refused, "refused"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_each_mistake_in_a_graph_is_found(name: str) -> None:
    module = sample()
    assert graph_problems(module) == []
    change, kind = GRAPHS[name]
    change(module)
    found = graph_problems(module)
    assert kind in {problem.kind for problem in found}, found


# -- in the pipeline --------------------------------------------------------------------------


def test_a_stage_that_yields_something_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import fusec.pipeline as pipeline

    monkeypatch.setenv("FUSEC_STRICT", "1")
    monkeypatch.setenv("FUSEC_VERIFY", "1")
    assert verifies()
    wrong = [Problem("for_a_test", "op0", "is wrong")]
    monkeypatch.setattr(pipeline, "check_program", lambda program: wrong)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"after lower: op0: is wrong \[for_a_test\]"):
        fusec.compile(F.gelu)(torch.randn(4))


def test_what_nobody_has_written_is_read_by_no_kernel_without_the_verifier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step that the scheduler loses would leave what lay in memory: the graph runs in eager."""
    import fusec.pipeline as pipeline

    def losing(*args: Any) -> Any:
        found = schedule(*args)
        program = found.program
        return replace(found, program=replace(program, steps=program.steps[1:]))

    schedule = pipeline.schedule_program
    monkeypatch.setattr(pipeline, "schedule_program", losing)
    monkeypatch.delenv("FUSEC_VERIFY", raising=False)
    monkeypatch.delenv("FUSEC_STRICT", raising=False)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x.exp())[0] + 1

    torch._dynamo.reset()
    compiled = fusec.compile(function)
    x = torch.randn(4, 8)
    torch.testing.assert_close(compiled(x), function(x))
    (reason,) = compiled.fallbacks
    assert "which is not there yet [read_before_write]" in reason


def test_a_pass_that_breaks_a_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import fusec.graph.pipeline as passes

    def broken(subject: passes.Subject) -> int:
        for node in subject.module.graph.nodes:
            if node.target is torch.ops.aten.tanh.default:
                node.meta["val"] = node.meta["val"].double()
        return 1

    table = tuple(replace(p, run=broken) if p.name == "cse" else p for p in passes.PASSES)
    monkeypatch.setattr(passes, "PASSES", table)
    monkeypatch.setenv("FUSEC_STRICT", "1")
    monkeypatch.setenv("FUSEC_VERIFY", "1")
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"after the pass cse: tanh: .* \[value_dtype\]"):
        fusec.compile(torch.tanh)(torch.randn(4))


# -- kernels and host programs ----------------------------------------------------------------


def compiled_part(target: str = "cpp") -> Any:
    torch._dynamo.reset()
    compiled = fusec.compile(
        lambda x, y: (torch.sort(F.gelu(x))[0] + y).sum(1), target=target, dynamic=True
    )
    compiled(torch.randn(4, 8), torch.randn(4, 8))
    return compiled.graphs[0].parts[0].state


def argument(number: int, **changes: Any) -> Callable[[Any], Any]:
    def change(kernel: Any) -> Any:
        given = list(kernel.signature.arguments)
        given[number] = replace(given[number], **changes)
        return replace(kernel, signature=replace(kernel.signature, arguments=tuple(given)))

    return change


KERNELS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another name": (lambda k: replace(k, name="other"), "kernel_name"),
    "an entry that is not there": (lambda k: replace(k, entry="other"), "kernel_entry"),
    "an entry that is no name": (lambda k: replace(k, entry="a b"), "kernel_entry"),
    "an argument less": (
        lambda k: replace(k, signature=replace(k.signature, arguments=k.signature.arguments[:-1])),
        "argument_count",
    ),
    "another type": (argument(0, dtype=torch.float64), "argument_type"),
    "another role": (argument(0, role="out"), "argument_role"),
    "a size less": (lambda k: replace(k, signature=replace(k.signature, sizes=())), "size_count"),
    "a line that is not there": (lambda k: replace(k, origins={9999: ()}), "origin_line"),
    "a brace too many": (lambda k: replace(k, text=k.text + "{"), "kernel_syntax"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_each_mistake_in_a_kernel_is_found(name: str) -> None:
    from fusec.codegen.verifier import kernel_problems

    state = compiled_part()
    (step, *_) = (step for step in state.scheduled.steps if isinstance(step, Compute))
    kernel = state.kernels[step.name].source
    buffers = state.scheduled.buffers
    assert kernel_problems(step, kernel, buffers) == []
    change, kind = KERNELS[name]
    assert kind in {p.kind for p in kernel_problems(step, change(kernel), buffers)}


@pytest.mark.triton
def test_a_triton_kernel_must_be_python() -> None:
    from fusec.codegen.verifier import kernel_problems

    state = compiled_part("triton")
    (step, *_) = (step for step in state.scheduled.steps if isinstance(step, Compute))
    kernel = state.kernels[step.name].source
    broken = replace(kernel, text=kernel.text + "\n)")
    problems = kernel_problems(step, broken, state.scheduled.buffers)
    assert "kernel_syntax" in {p.kind for p in problems}


HOSTS: dict[str, tuple[Callable[[str], str], str]] = {
    "no Python": (lambda text: text + ")", "host_syntax"),
    "a name from nowhere": (
        lambda text: text.replace("return [", "return [other, "),
        "unknown_name",
    ),
    "freed too early": (
        lambda text: text.replace(
            "    return [", f"    del {text.split('return [')[1][:-2]}\n    return ["
        ),
        "unknown_name",
    ),
    "no result": (lambda text: text[: text.index("    return")], "no_return"),
}


@pytest.mark.parametrize("name", HOSTS)
def test_each_mistake_in_a_host_program_is_found(name: str) -> None:
    from fusec.codegen.host_values import DTYPES, PROVIDED
    from fusec.codegen.verifier import host_problems

    state = compiled_part()
    given = {*state.kernels, *PROVIDED, *DTYPES}
    assert host_problems(state.host, given) == []
    change, kind = HOSTS[name]
    broken = replace(state.host, text=change(state.host.text))
    assert kind in {p.kind for p in host_problems(broken, given)}


def test_tokens_of_effects_in_backward_may_come_late() -> None:
    """AOTAutograd adds them itself, in the middle of a joint graph."""
    x = torch.randn(4, 4, requires_grad=True)
    fusec.compile(lambda x: torch.linalg.eigvals(x).abs())(x).sum().backward()
    (expected,) = torch.autograd.grad(torch.linalg.eigvals(x).abs().sum(), x)
    assert x.grad is not None
    assert torch.allclose(x.grad, expected, rtol=1e-4, atol=1e-5)
