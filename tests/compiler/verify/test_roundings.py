"""Half precision on the way: right results pass though eager is nearer, wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fusec
from fusec.report import Verdict
from fusec.verify.check import check_graph
from fusec.verify.comparison.exact_graph import ExactGraph

H, B = torch.float16, torch.bfloat16
Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(33, 129), torch.randn(129)


# A cell, and the same with a mistake. Every one of these is a result in float32 of values in
# half precision, or an integer: eager is exact in what it rounds, and rounds on the way.
CASES: dict[str, tuple[Function, Function]] = {
    "sum of rows, mean": (
        lambda x, w: (x.half() * 3).tanh().sum(-1).float().mean(),
        lambda x, w: (x.half()[:, :-1] * 3).tanh().sum(-1).float().mean(),
    ),
    "sum of all": (
        lambda x, w: (x.half() * 1.7).sum().float(),
        lambda x, w: (x.half() * 1.71).sum().float(),
    ),
    "sum of all, bfloat16": (
        lambda x, w: (x.bfloat16() * 1.7 + 1).sum().float(),
        lambda x, w: (x.bfloat16() * 1.7 + 1.02).sum().float(),
    ),
    "mean of rows": (
        lambda x, w: (x.to(H) * 1.7 + 0.3).mean(-1).float(),
        lambda x, w: (x.to(H) * 1.7 + 0.3).float().sum(-1) / 128,
    ),
    "mean of means, bfloat16": (
        lambda x, w: (x.to(B) * 1.7 + 1).mean(-1).float().mean() * 1000,
        lambda x, w: (x.to(B) * 1.75 + 1.02).mean(-1).float().mean() * 1000,
    ),
    "norm": (
        lambda x, w: (x.half() * 1.3).norm(dim=-1).float().sum(),
        lambda x, w: (x.half() * 1.3).norm(p=1.99, dim=-1).float().sum(),
    ),
    "softmax with weights": (
        lambda x, w: ((x.half() * 2).softmax(-1) * w.half()).float().sum(0),
        lambda x, w: ((x.half() * 2).softmax(-1) * w.half()).float()[:-1].sum(0),
    ),
    "softmax, bfloat16": (
        lambda x, w: ((x.to(B) * 2).softmax(-1) * w.to(B)).float().sum(),
        lambda x, w: ((x.to(B) * 1.8).softmax(-1) * w.to(B)).float().sum(),
    ),
    "entropy": (
        lambda x, w: -((x.half() * 2).softmax(-1).float() * x.half().log_softmax(-1).float()).sum(),
        lambda x, w: (
            -((x.half() * 2).softmax(-1).float() * x.half().log_softmax(-1).float()).sum() * 1.01
        ),
    ),
    "layer norm": (
        lambda x, w: (F.layer_norm(x.half(), (129,)) * w.half()).float().pow(2).mean(),
        lambda x, w: (F.layer_norm(x.half(), (129,), eps=0.02) * w.half()).float().pow(2).mean(),
    ),
    "variance": (
        lambda x, w: (x.half() * 2 + 1).var(-1).float().mean(),
        lambda x, w: (x.half() * 2 + 1).var(-1, correction=0).float().mean(),
    ),
    "product of matrices": (
        lambda x, w: (x.half() @ x.half().t()).float().mean(-1),
        lambda x, w: (x.half()[:, 1:] @ x.half()[:, 1:].t()).float().mean(-1),
    ),
    "product, gelu, bfloat16": (
        lambda x, w: F.gelu(x.to(B) @ x.to(B).t() * 0.1).float().mean(),
        lambda x, w: F.gelu(x.to(B) @ x.to(B).t() * 0.1, approximate="tanh").float().mean() * 1.01,
    ),
    "running sums": (
        lambda x, w: (x.half() * 1.1).cumsum(-1).float().mean(0),
        lambda x, w: (x.half() * 1.1).cumsum(-1).roll(1, -1).float().mean(0),
    ),
    "what a cast leaves": (
        lambda x, w: (x * 1.3).half().float() - x * 1.3,
        lambda x, w: x * 0,
    ),
    "a cast alone": (
        lambda x, w: (x * 1.234567).exp().half().float(),
        lambda x, w: (x * 1.234567).exp(),
    ),
    "eager overflows": (
        lambda x, w: ((x.half() * 1000) * (x.half() * 1000) / 1e6).float().mean(-1),
        lambda x, w: ((x.half() * 1000).float() * (x.half() * 1000).float() / 1.01e6).mean(-1),
    ),
    "how many are greater": (
        lambda x, w: ((x.half() * 3).tanh() > 0.5).sum(-1),
        lambda x, w: ((x.half() * 3).tanh() > 0.51).sum(-1),
    ),
    "where the largest is": (
        lambda x, w: (x.half() * 3).tanh().argmax(-1),
        lambda x, w: (x.half() * 3).tanh()[:, 1:].argmax(-1) + 1,
    ),
    "in place": (
        lambda x, w: x.half().mul_(1.3).add_(0.7).sum(-1).float().mean(),
        lambda x, w: x.half().mul_(1.3).add_(0.72).sum(-1).float().mean(),
    ),
    "difference of sums": (
        lambda x, w: ((x.half() * 3).sum(-1) - (x.half() * 2.9).sum(-1)).float().mean(),
        lambda x, w: ((x.half() * 3).sum(-1) - (x.half() * 2.5).sum(-1)).float().mean(),
    ),
    "rms norm": (
        lambda x, w: (
            (x.half() * torch.rsqrt(x.half().pow(2).mean(-1, keepdim=True)) * w.half()).float()
        ).mean(),
        lambda x, w: (
            (x.half() * torch.rsqrt(x.half().pow(2).mean(-1, keepdim=True) + 0.01) * w.half())
            .float()
            .mean()
        ),
    ),
}


def pair(given: Any) -> list[torch.Tensor]:
    """Return what a function takes, of the inputs of its graph, which leaves unused ones out."""
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    return tensors if len(tensors) == 2 else [*tensors, torch.empty(0)]


def judged(function: Function, other: Function) -> Verdict:
    """Return the verdict on a function in place of the kernels of another one."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(module)
        return module

    torch._dynamo.reset()
    torch.compile(function, backend=keep)(*inputs())
    (module,) = graphs
    exact = ExactGraph(module)
    used = inputs()[: len(list(module.graph.find_nodes(op="placeholder")))]
    return check_graph(
        lambda given: [other(*pair(given))],
        lambda given: list(module(*given)),
        lambda given: list(exact.results(given)),
        used,
        timed=False,
        run_drawn=lambda given, seed, made: list(exact.results(given, seed, made)),
        halves=exact.halves,
    )


# One graph for many of them: compiling is what takes time.
@pytest.mark.sample(1)
@pytest.mark.parametrize("first", [0, 1])
def test_right_ones_pass(first: int) -> None:
    functions = [right for right, _ in CASES.values()][first::2]
    torch._dynamo.reset()
    dynamic = True if first else None
    compiled = fusec.compile(
        lambda x, w: [f(x, w) for f in functions], keep_inputs=True, dynamic=dynamic
    )
    compiled(*inputs())
    (graph,) = compiled.graphs
    verdict = graph.verify()
    assert verdict.ok, verdict.reason
    assert len(verdict.outputs) == len(functions)
    kernel = graph.kernels[0]
    edited = graph.check(kernel, kernel.source + "\n// the same\n", timed=False)
    assert edited.ok, edited.reason


@pytest.mark.sample(11)
@pytest.mark.parametrize("case", CASES)
def test_wrong_ones_do_not(case: str) -> None:
    right, wrong = CASES[case]
    assert judged(right, right).ok
    verdict = judged(right, wrong)
    assert (verdict.ok, verdict.stage) == (False, "wrong")


def test_choices_in_a_large_graph() -> None:
    """Among many rows some have their greatest elements a rounding apart: either is right."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.layer_norm(F.gelu(x * 2 + 1), (x.shape[-1],))
        return y, y.argmax(-1)

    x = torch.randn(1100, 4000, generator=torch.Generator().manual_seed(0)).to(B)
    torch._dynamo.reset()
    compiled = fusec.compile(function, keep_inputs=True)
    fused, eager = compiled(x)[1], function(x)[1]
    assert not torch.equal(fused, eager)  # or nothing is asked here
    verdict = compiled.graphs[0].verify()
    assert verdict.ok, verdict.reason


def test_a_graph_in_float64_rounds_where_a_cast_says_so() -> None:
    """A value that eager rounds for its memory is not rounded; a view and an alias stay one."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x.half()
        row = h[0]
        h.add_(1)
        return torch.cat([row.float(), (h * 3)[1].to(torch.float32)])

    graphs: list[torch.fx.GraphModule] = []
    torch._dynamo.reset()
    torch.compile(function, backend=lambda module, _: graphs.append(module) or module)(*inputs())
    x = inputs()[0].double()
    (found,) = ExactGraph(graphs[0]).results([x])
    rounded = x.half().double()
    assert torch.equal(found, torch.cat([rounded[0] + 1, (rounded[1] + 1) * 3]))
    assert torch.equal(x, inputs()[0].double())


def test_updated_inputs_are_compared_with_what_float64_leaves() -> None:
    """The reference is the input as float64 leaves it, not as it was."""

    def right(given: Any) -> list[torch.Tensor]:
        given[0].mul_(3)
        return [given[0] * 2]

    def wrong(given: Any) -> list[torch.Tensor]:
        given[0].mul_(3)
        result = given[0] * 2
        given[0].mul_(0.9)
        return [result]

    x = [torch.randn(40, 50)]
    assert check_graph(right, right, right, x, timed=False).ok
    assert not check_graph(wrong, right, right, x, timed=False).ok
