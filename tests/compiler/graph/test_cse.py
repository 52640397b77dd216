"""Equal computations of a joint graph are done once, and only those."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import fusec
from fusec.graph.simplify.cse import merge_common
from support.processes import run_compiler

aten = torch.ops.aten


def graph_of(function, *inputs):
    return make_fx(function, tracing_mode="fake")(*inputs)


def targets(module):
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def merged(function, *inputs):
    """Merge, check that the result is the same, and return what is left."""
    module = graph_of(function, *inputs)
    before = module(*[each.clone() for each in inputs])
    merge_common(module.graph)
    module.graph.lint()
    module.recompile()
    after = module(*[each.clone() for each in inputs])
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
    return targets(module)


def test_equal_operators_are_merged_through_several_steps():
    x = torch.randn(3)
    left = merged(lambda x: (x.sin() * 2).sum() + (x.sin() * 2).prod(), x)
    assert left.count("aten.sin.default") == left.count("aten.mul.Tensor") == 1


def test_constants_that_only_compare_equal_are_not():
    x = torch.tensor([0.0, -1.0])
    left = merged(
        lambda x: [(x * 0.0).sum(), (x * -0.0).prod(), (x * 1).sum(), (x * 1.0).prod()], x
    )
    assert left.count("aten.mul.Tensor") == 4
    left = merged(lambda x: torch.full((2,), 1) + torch.full((2,), True) + x, x)
    assert left.count("aten.full.default") == 2


def test_arguments_by_name_and_lists_count():
    x = torch.randn(2, 3, 4)
    left = merged(
        lambda x: [x.sum([0]).exp(), x.sum([0]).sin(), x.sum([1]).sin(), x.sum([0], True).sin()], x
    )
    assert left.count("aten.sum.dim_IntList") == 3


def test_results_that_are_equal_stay_two_tensors():
    x = torch.randn(3)
    left = merged(lambda x: (x.sin(), x.sin(), x.cos().view(3), x.cos()), x)
    assert left.count("aten.sin.default") == left.count("aten.cos.default") == 2


def test_random_numbers_and_undefined_memory_are_left_alone():
    module = graph_of(
        lambda x: [
            (torch.rand_like(x) - torch.rand_like(x)).exp(),
            (torch.bernoulli(x) - torch.bernoulli(x)).exp(),
            (torch.empty_like(x).fill_(1) + torch.empty_like(x).fill_(2)).exp(),
        ],
        torch.rand(3),
    )
    before = len(targets(module))
    assert merge_common(module.graph) == 0
    assert len(targets(module)) == before


def test_nothing_is_merged_across_an_update():
    def function(x):
        before = x.sin() + 1
        x.copy_(x * 2)
        return before.exp(), x.sin().exp()

    x = torch.randn(3)
    left = merged(function, x)
    assert left.count("aten.sin.default") == 2


def test_what_is_no_operator_of_torch_is_a_wall():
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(aten.sin.default, (x,))
    graph.call_function(print, (x,))
    second = graph.call_function(aten.sin.default, (x,))
    third = graph.call_function(aten.sin.default, (x,))
    total = graph.call_function(aten.add.Tensor, (first, second))
    graph.output(graph.call_function(aten.add.Tensor, (total, third)))
    assert merge_common(graph) == 1


def test_parts_of_one_result_and_sizes():
    x = torch.randn(4, 2)
    left = merged(
        lambda x: [x.max(0)[0].exp(), x.max(0)[0].sin(), x.max(0)[1] + 1, x.max(0)[1] * 2], x
    )
    assert left.count("aten.max.dim") == 1
    assert left.count(str(operator.getitem)) == 2


def test_training_is_as_in_eager_and_imports_no_peer():
    code = """
import sys
import torch, torch.nn.functional as F, fusec

def f(x, w):
    return (F.gelu(x * w) + F.gelu(x * w).exp().softmax(-1)).sum()

torch.manual_seed(0)  # a fresh process draws others each time, large exponentials among them
given = [torch.randn(8, 16, requires_grad=True) for _ in range(2)]
again = [each.detach().clone().requires_grad_() for each in given]
f(*given).backward()
fusec.compile(f)(*again).backward()
for mine, theirs in zip(again, given):
    torch.testing.assert_close(mine.grad, theirs.grad)
print("torch._inductor.lowering" in sys.modules)
"""
    assert run_compiler(code).strip() == "False"


def test_stages_of_forward_and_of_a_later_backward():
    compiled = fusec.compile(lambda x: F.gelu(x).sum())
    x = torch.randn(8, requires_grad=True)
    y = compiled(x)
    (graph,) = compiled.graphs
    before = [stage.name for stage in graph.stages]
    assert before[:4] == ["capture", "decompose", "passes", "partition"]
    assert before[-1] == "build"
    y.backward()
    names = [stage.name for stage in graph.stages]
    assert names.count("build") == names.count("emit") == 2
    assert all(isinstance(stage.text, str) for stage in graph.stages)
    first = next(iter(compiled.explain().sections()))
    assert "1 graph" in first[0]
    assert "compiled in " in str(compiled.explain())
