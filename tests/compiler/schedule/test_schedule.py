"""Fusion: what becomes one kernel, what does not, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import fx

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.interpret import run_body
from fusec.ir.node import Recorder, index_value, recording
from fusec.ir.program import Compute, Program
from fusec.lower import lower_graph
from fusec.options import Options
from fusec.schedule import products_of, schedule_program
from fusec.schedule.align import _complete
from fusec.schedule.fusion_groups import Groups
from fusec.schedule.one_hot import fold_one_hots
from fusec.schedule.step_graph import fusion_view
from support.interpreted import Interpreted
from support.triton_bodies import F32, at, axes, buffer, f32

x = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))


def kernels_of(function: Callable[..., Any], *args: torch.Tensor) -> Interpreted:
    torch._dynamo.reset()
    backend = Interpreted()
    actual = torch.compile(function, backend=backend, dynamic=False)(*args)
    expected = function(*args)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    return backend


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: torch.tanh(x) * 2 + 1, 1),
        (lambda x: (torch.tanh(x), torch.tanh(x) + 1), 1),
        (lambda x: F.layer_norm(F.gelu(x * 2), (32,)) + x, 1),
        (lambda x: ((x.exp() / x.exp().sum(1, keepdim=True)), x.exp()), 1),
        (lambda x: (x.sum(1), x.amax(1), (x - x.mean(1, keepdim=True))), 1),
        (lambda x: F.cross_entropy(x, torch.arange(16)), 2),
        (lambda x: x.sum(0) + x.sum(1).sum(), 3),
        (lambda x: (x @ x.t() + 1).relu().softmax(-1), 1),
        (lambda x: torch.cat([x.relu(), x * 2], 1).sigmoid(), 1),
        (lambda x: x.t().contiguous() + 1, 1),
        (lambda x: ((x * x[:, :1]).sum(1), x[:, 0] * 2), 1),
    ],
    ids=[
        "chain",
        "shared chain",
        "norm with prologue and epilogue",
        "softmax and its numerator",
        "sibling reductions",
        "cross entropy",
        "row and column",
        "epilogue of a product",
        "cat",
        "transpose",
        "rows beside a reduction",
    ],
)
def test_number_of_kernels(function: Callable[..., Any], count: int) -> None:
    backend = kernels_of(function, x)
    assert backend.kernel_count == count, str(backend.schedules[0])


def test_refusals_carry_a_reason() -> None:
    backend = kernels_of(lambda x: (x / x.exp().sum(0)).sum(1), x)
    refused = [d for d in backend.schedules[0].decisions if not d.fused]
    assert refused
    assert all(d.reason for d in refused)


def test_expensive_values_are_not_computed_again_and_again() -> None:
    scale = torch.randn(32)
    backend = kernels_of(lambda x, s: x.view(4, 4, 32) * torch.tanh(s.exp()), x, scale)
    assert backend.kernel_count == 2
    refused = [d.reason for d in backend.schedules[0].decisions if not d.fused]
    assert any("would be computed 16 times" in reason for reason in refused)


def test_row_values_are_computed_outside_of_the_row() -> None:
    scale = torch.randn(16, 1)
    assert kernels_of(lambda x, s: x * torch.tanh(s.exp()), x, scale).kernel_count == 1


def test_loops_are_joined_and_ordered_by_stride() -> None:
    backend = kernels_of(
        lambda x: torch.tanh(x).permute(2, 0, 1).contiguous() + 1, x.view(4, 4, 32)
    )
    (body,) = [s.body for s in backend.schedules[0].program.steps]
    assert [str(a.size) for a in body.axes] == ["32", "16"]
    backend = kernels_of(torch.tanh, x.view(4, 4, 32))
    (body,) = [s.body for s in backend.schedules[0].program.steps]
    assert [str(a.size) for a in body.axes] == ["512"]


def test_unused_results_are_not_computed() -> None:
    backend = kernels_of(lambda x: (torch.tanh(x), torch.var_mean(x, 1)[1])[1], x)
    (body,) = [s.body for s in backend.schedules[0].program.steps]
    assert len(body.stores) == 1


def test_a_symbolic_size_stays_symbolic() -> None:
    torch._dynamo.reset()
    backend = Interpreted()
    compiled = torch.compile(
        lambda x: F.layer_norm(F.gelu(x), (32,)), backend=backend, dynamic=True
    )
    for rows in (5, 9, 33):
        given = torch.randn(rows, 32)
        torch.testing.assert_close(compiled(given), F.layer_norm(F.gelu(given), (32,)))
    assert len(backend.schedules) == 1


def test_a_fusion_that_orders_two_other_steps_keeps_them_apart() -> None:
    """``late`` and ``early`` read the same tensor, and nothing orders them until the steps on
    the large tensor, which each is connected to through a product, have become one kernel."""

    def function(x: torch.Tensor, large: torch.Tensor, w: torch.Tensor) -> tuple[Any, ...]:
        shifted = large + 1
        late = x + shifted[0] @ w
        early = x.sin()
        scaled = large * (early @ w)
        return shifted, late, early, scaled

    backend = kernels_of(function, torch.randn(8, 8), torch.randn(64, 8, 8), torch.randn(8, 8))
    assert backend.kernel_count == 3


def test_a_product_that_stays_a_call_is_shown_as_one() -> None:
    class Called(Interpreted):
        """Lowers products as what kernels could compute, and has kernels compute none or all."""

        def _compile(self, module: fx.GraphModule, inputs: Any) -> Any:
            with recording(Recorder()) as recorder:
                program = lower_graph(
                    module, recorder=recorder, abilities=Options(target="triton").abilities
                )
                chosen = products_of(program) if self.products else ()
                made = schedule_program(program, None, chosen)
                self.view = fusion_view(program, made.program, made.decisions)
            return make_boxed_func(module.forward)

    for products, kind in ((True, "kernel"), (False, "extern")):
        torch._dynamo.reset()
        backend = Called(products=products)
        torch.compile(lambda x: torch.relu(x @ x.t()) * 2, backend=backend, dynamic=False)(x)
        for graph in (backend.view.before, backend.view.after):
            assert {node.kind for node in graph.nodes if "mm" in node.label} == {kind}


def test_who_reads_a_tensor_runs_before_who_changes_it() -> None:
    names = ("a", "b", "one", "two", "three")
    buffers = {name: buffer(name, (8,), F32) for name in names}

    def step(number: int, source: str, into: str) -> Compute:
        (i,) = axes(8)
        value = ops.unary("neg", ops.load(source, at(i), F32))
        return Compute(f"step{number}", Body((i,), (), (Store(into, at(i), value),)))

    moves = (("b", "one"), ("a", "two"), ("b", "a"), ("a", "three"), ("two", "b"))
    with recording():
        steps = tuple(step(number, *move) for number, move in enumerate(moves))
        groups = Groups(Program(("a", "b"), {}, buffers, steps, ()), steps, {})
    before = [{k for k in range(5) if groups.before[n] >> k & 1} for n in range(5)]
    # the third changes what the second reads, the last what the first and the third read
    assert before == [set(), set(), {1}, {1, 2}, {0, 1, 2}]
    after = [{k for k in range(5) if groups.after[n] >> k & 1} for n in range(5)]
    assert after == [{4}, {2, 3, 4}, {3, 4}, set(), set()]


@pytest.mark.parametrize("outside", [False, True])
def test_a_sum_of_a_row_with_one_number_in_it_is_that_number(outside: bool) -> None:
    buffers = {"place": buffer("place", (5,), torch.int64), "w": buffer("w", (5, 7))}
    buffers["y"] = buffer("y", (5,))
    with recording():
        (i,), (r,) = axes(5), axes(7, prefix="r")
        here = ops.binary(
            "eq", index_value(Expr.of(r), torch.int64), ops.load("place", at(i), torch.int64)
        )
        one = ops.load("w", at(i, r) if outside else (Expr.of(i), Expr.of(2)), F32)
        row = ops.where(here, one, f32(0.0))
        body = Body((i,), (r,), (Store("y", at(i), ops.reduce("sum", row, (r,), F32)),))
        settled = fold_one_hots(body)
    # what differs along the row is still looked for
    assert settled.has_reduction is outside
    tensors = {"place": torch.tensor([0, 6, 3, -1, 9]), "w": torch.randn(5, 7)}
    tensors["y"] = torch.empty(5)
    run_body(settled, tensors)
    hot = torch.arange(7) == tensors["place"][:, None]
    chosen = tensors["w"] if outside else tensors["w"][:, 2:3]
    torch.testing.assert_close(tensors["y"], torch.where(hot, chosen, 0.0).sum(1))


def test_loops_that_two_bodies_share_in_part_are_matched_for_the_rest() -> None:
    shared, mine, theirs = axes(6, 4, 4)
    mapping: dict[Symbol, Expr] = {}
    assert _complete(mapping, (shared, mine), (shared, theirs), {shared: Expr.of(shared)}) is None
    assert mapping == {shared: Expr.of(shared), mine: Expr.of(theirs)}
    mapping = {}
    assert _complete(mapping, (shared, mine), (shared, mine), {}) is None
    assert mapping == {shared: Expr.of(shared), mine: Expr.of(mine)}
