"""Programs as graphs to draw: nodes, edges, and the bytes that flow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, recording
from fusec.ir.program import Compute, Extern, ExternKind, Program, Step, TensorRef
from fusec.report import FusionDecision
from fusec.schedule.rules import known_names
from fusec.schedule.step_graph import (
    FusionView,
    GraphEdge,
    GraphNode,
    StepGraph,
    fusion_view,
    kernels_of,
    rule_for,
    step_graph,
    why,
)
from support.triton_bodies import F32, at, axes, buffer

BUFFERS: dict[str, Buffer] = {name: buffer(name, (8,)) for name in "abcsxyz"}
BUFFERS["n"] = buffer("n", (Expr.of(Symbol("n", "size", low=2)),))


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording():
        yield


def kernel(reads: str, writes: str, made: str = "") -> Compute:
    (i,) = axes(8)
    value: Node = ops.load(reads[0], at(i), F32)
    for each in reads[1:]:
        value = ops.binary("add", value, ops.load(each, at(i), F32))
    stores = tuple(Store(each, at(i), value, made=made) for each in writes)
    return Compute(f"to_{writes}", Body((i,), (), stores), f"label_{writes}")


def ref(name: str) -> TensorRef:
    return TensorRef(name, BUFFERS[name].shape, BUFFERS[name].strides, Expr.of(0), F32)


def call(reads: str, into: str, kind: ExternKind = ExternKind.OPERATOR) -> Extern:
    target = torch.ops.aten.mm.default
    args = tuple(map(ref, reads))
    return Extern(f"to_{into}", target, args, {}, (into,), "a reason", label="mm", kind=kind)


def graph(*steps: Step, outputs: str = "z", inputs: tuple[str, ...] = ("x", "y")) -> StepGraph:
    program = Program(inputs, {}, BUFFERS, steps, tuple(map(ref, outputs)))
    names = {step.name: (step.name,) for step in steps if isinstance(step, Compute)}
    return step_graph(program, steps, names)


def edges(found: StepGraph) -> set[tuple[str, str, str]]:
    assert all(edge.bytes == 32 for edge in found.edges if edge.tensor != "n")
    return {(edge.source, edge.target, edge.tensor) for edge in found.edges}


def kinds(found: StepGraph) -> dict[str, str]:
    return {node.name: node.kind for node in found.nodes}


def test_what_flows_from_inputs_to_outputs() -> None:
    found = graph(kernel("x", "a"), call("ay", "b"), kernel("ab", "z"))
    assert edges(found) == {
        ("input x", "to_a", "x"),
        ("to_a", "to_b", "a"),
        ("input y", "to_b", "y"),
        ("to_a", "to_z", "a"),
        ("to_b", "to_z", "b"),
        ("to_z", "output z", "z"),
    }
    assert kinds(found) == {
        **{"input x": "input", "input y": "input", "output z": "output"},
        **{"to_a": "kernel", "to_b": "extern", "to_z": "kernel"},
    }
    assert found.node("to_b").detail == "a reason"
    assert found.node("to_a").kernels == ("to_a",)
    assert found.traffic == 32 * (5 + 3)  # a is read twice


def test_inputs_that_nobody_reads_are_not_shown() -> None:
    found = graph(kernel("x", "z"), inputs=("x", "y", "a number"))
    assert set(kinds(found)) == {"input x", "to_z", "output z"}


def test_what_nobody_wrote_has_no_edge() -> None:
    """A constant of the graph's own, say; and a step that reads what it writes."""
    found = graph(kernel("s", "a"), kernel("ab", "b"), kernel("b", "z"))
    assert edges(found) == {
        ("to_a", "to_b", "a"),
        ("to_b", "to_z", "b"),
        ("to_z", "output z", "z"),
    }
    again = graph(kernel("x", "a"), Compute("to_a", kernel("a", "z").body, "again"))
    assert ("to_a", "to_a", "a") not in edges(again)


def test_what_no_user_asked_for_counts_as_an_input() -> None:
    found = graph(call("x", "s", ExternKind.OWNED_TENSOR), kernel("sx", "z"))
    assert kinds(found)["input to_s"] == "input"
    assert edges(found) == {
        ("input to_s", "to_z", "s"),
        ("input x", "to_z", "x"),
        ("to_z", "output z", "z"),
    }


def test_an_output_that_is_an_input() -> None:
    found = graph(kernel("x", "z"), outputs="zxc")
    assert ("input x", "output x", "x") in edges(found)
    assert "output c" not in kinds(found)  # nobody wrote it


def test_symbolic_sizes_leave_the_traffic_open() -> None:
    assert graph(kernel("x", "n"), outputs="n").traffic == -1


def test_what_is_written_over_another_tensor_has_its_own_name() -> None:
    found = graph(kernel("x", "a", made="c"), kernel("a", "z"))
    assert ("to_a", "to_z", "c") in edges(found)


def test_kernels_of_steps() -> None:
    """What is computed where it is read belongs to the kernels of those who read it."""
    steps = kernel("x", "a"), kernel("a", "b"), kernel("a", "c"), kernel("bc", "z")
    program = Program(("x",), {}, BUFFERS, (kernel("x", "b"), kernel("xb", "z")), (ref("z"),))
    found = kernels_of((*steps, call("z", "s")), program)
    assert found == {
        **{"to_a": ("to_b", "to_z"), "to_b": ("to_b",)},
        **{"to_c": ("to_z",), "to_z": ("to_z",)},
    }


def test_what_fusion_did() -> None:
    """Each computation has its kernels before and after; calls and inputs have none."""
    lowered = (kernel("x", "a"), call("a", "c"), kernel("ac", "z"))
    scheduled = (kernel("x", "a"), call("a", "c"), replace(kernel("ac", "z"), name="fused"))
    before, after = (
        Program(("x",), {}, BUFFERS, steps, (ref("z"),)) for steps in (lowered, scheduled)
    )
    view = fusion_view(before, after, [])
    assert {n.name: n.kernels for n in view.before.nodes if n.kind in ("kernel", "extern")} == {
        "to_a": ("to_a",), "to_c": (), "to_z": ("fused",),
    }  # fmt: skip
    assert {n.name: n.kernels for n in view.after.nodes if n.kind in ("kernel", "extern")} == {
        "to_a": ("to_a",), "to_c": (), "fused": ("fused",),
    }  # fmt: skip


def node(name: str, kind: str, *kernels: str, detail: str = "") -> GraphNode:
    return GraphNode(name, name.rstrip("0123456789"), kind, kernels, (), detail)  # type: ignore[arg-type]


BEFORE = StepGraph(
    (
        node("x", "input"),
        node("sin1", "kernel", "first"),
        node("sin2", "kernel", "first"),
        node("exp", "kernel", "first", "second"),
        node("sum", "kernel", "second"),
        node("tanh", "kernel", "third"),
        node("mm", "extern", detail="BLAS"),
    ),
    (GraphEdge("exp", "sum", "e", 4), GraphEdge("sin1", "tanh", "s", 4)),
)
DECISIONS = (
    FusionDecision("sin1", "exp", True, "it saves"),
    FusionDecision("exp", "sum", False, "too far"),
    FusionDecision("sin2", "sum", False, "too long"),
)
VIEW = FusionView(BEFORE, BEFORE, DECISIONS)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ("x", "exp", "x is an input: it has to be in memory."),
        ("exp", "x", "x is an input: it has to be in memory."),
        ("sin1", "exp", "sin and exp share the kernel first: it saves."),
        ("exp", "sin1", "exp and sin share the kernel first: it saves."),
        ("exp", "sin2", "exp and sin share the kernel first, through what is between them."),
        ("mm", "exp", "mm and exp are apart: mm runs as ATen's own kernel (BLAS)."),
        ("exp", "mm", "exp and mm are apart: mm runs as ATen's own kernel (BLAS)."),
        ("sin2", "sum", "sin and sum are apart: too long."),
        ("sum", "sin2", "sum and sin are apart: too long."),
        ("sin1", "sum", "sin and sum are apart: too far."),  # of the groups that they are in
        (
            "sum",
            "tanh",
            "sum and tanh are apart: they share no tensor, so that one kernel would save no memory"
            " traffic.",
        ),
        (
            "sin1",
            "tanh",
            "sin and tanh are apart: other fusions saved more, and left no way to put these two "
            "together.",
        ),
    ],
)
def test_why(first: str, second: str, text: str) -> None:
    assert why(VIEW, first, second) == text


def test_rules_number_what_is_there_twice() -> None:
    assert rule_for(VIEW, "sin1", "exp") == "sin#1:exp"
    assert rule_for(VIEW, "sum", "sin2") == "sum:sin#2"


def test_what_a_kernel_could_do_as_well_has_both_names() -> None:
    opaque = call("xy", "a")
    product = replace(opaque, body=kernel("xy", "a").body)
    for step, names in ((opaque, {"aten.mm"}), (product, {"aten.mm", "mm"})):
        program = Program(("x", "y"), {}, BUFFERS, (step, kernel("a", "z")), (ref("z"),))
        expected = dict.fromkeys(names, ("to_a",))
        assert known_names(program) == expected | {"label_z": ("to_z",)}
