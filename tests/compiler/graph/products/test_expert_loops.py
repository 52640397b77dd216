"""Loops over experts, as ``transformers`` defines them, in training: traced, and right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

import fusec
from fusec.graph.products import expert_loops, grouped

Tensor = torch.Tensor
_LIBRARY = torch.library.Library("fusec_test_experts", "DEF")
_LIBRARY.define("loop(Tensor input, Tensor weight, Tensor offs) -> Tensor")
_LIBRARY.define("gradient(Tensor input) -> Tensor")


def rows_of(offs: Tensor) -> list[slice]:
    ends = offs.tolist()
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _run(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    return torch.cat([input[rows] @ w for rows, w in zip(rows_of(offs), weight, strict=True)])


def _keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.offs = inputs[2]


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    input, weight = ctx.saved_tensors
    rows = rows_of(ctx.offs)  # what cannot be traced
    of_input = [gradient[r] @ w.T for r, w in zip(rows, weight, strict=True)]
    of_weight = [input[r].T @ gradient[r] for r in rows]
    return torch.cat(of_input), torch.stack(of_weight), None


_LIBRARY.impl("loop", _run, "CompositeExplicitAutograd")
_LIBRARY.impl("loop", lambda i, w, o: i.new_empty(i.shape[0], w.shape[2]), "Meta")
torch.library.register_autograd(
    "fusec_test_experts::loop", _gradients, setup_context=_keep, lib=_LIBRARY
)
loop = torch.ops.fusec_test_experts.loop


@pytest.fixture(autouse=True)
def _named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_loops, "LOOP", "fusec_test_experts::loop")
    monkeypatch.setattr(expert_loops, "GRADIENT", "fusec_test_experts::no_such_operator")
    torch._dynamo.reset()


def loss(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    return loop(x.sin(), weight=weight, offs=offs).square().sum()


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_training_is_one_graph_with_eagers_gradients(dtype: torch.dtype) -> None:
    compiled = fusec.compile(loss)
    for rows, ends in ((10, [4, 4, 10]), (10, [0, 9, 10]), (0, [0, 0, 0]), (7, [7, 7, 7])):
        offs = torch.tensor(ends, dtype=torch.int32)
        given = [torch.randn(rows, 6), torch.randn(3, 5, 6).transpose(1, 2)]
        results = []
        for function in (loss, compiled):
            x, weight = (each.to(dtype).requires_grad_() for each in given)
            value = function(x, weight, offs)
            value.backward()
            results.append((value.detach(), x.grad, weight.grad))
        for own, eager in zip(results[1], results[0], strict=True):
            assert own is not None
            assert eager is not None
            assert own.stride() == eager.stride()
            torch.testing.assert_close(own, eager)
    assert not compiled.breaks
    assert not compiled.fallbacks


def test_what_has_an_operator_for_its_gradient_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    module = captured()
    changed = expert_loops.trace_gradients(module)
    assert changed is not module
    assert expert_loops.trace_gradients(changed) is changed  # nothing is left to do
    monkeypatch.setattr(expert_loops, "GRADIENT", "fusec_test_experts::gradient")
    assert expert_loops.trace_gradients(module) is module


@pytest.mark.parametrize("target", [loop, loop.default], ids=["packet", "overload"])
def test_the_captured_graph_is_left_as_it_is(target: Any) -> None:
    module = captured(target)
    changed = expert_loops.trace_gradients(module)
    before, after = ([n.target for n in m.graph.nodes] for m in (module, changed))
    assert before[3] is target
    assert after[3] is torch.ops.fusec.expert_loop.default
    assert before[:3] == after[:3]


def test_other_calls_stay() -> None:
    module = captured(torch.bmm)
    assert expert_loops.trace_gradients(module) is module


def test_on_a_gpu_they_become_products() -> None:
    assert torch.ops.fusec.expert_loop.default._schema.name == grouped.OWN_LOOP
    assert torch.ops.fusec.expert_loop_backward.default._schema.name == grouped.OWN_BACKWARD


def captured(target: Any = loop) -> fx.GraphModule:
    graph = fx.Graph()
    given = tuple(graph.placeholder(name) for name in ("x", "weight", "offs"))
    graph.output(graph.call_function(target, given))
    return fx.GraphModule({}, graph)
