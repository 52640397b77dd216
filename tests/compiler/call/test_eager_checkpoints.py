"""A graph with checkpoints that runs in eager: backward computes again what forward computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import fusec
from fusec.call.eager_graph import run_eagerly

Function = Callable[[torch.Tensor], torch.Tensor]
again = partial(checkpoint, use_reentrant=False)


def policy(ctx: Any, operator: object, *args: Any, **options: Any) -> CheckpointPolicy:
    saved = operator is torch.ops.aten.sin.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


def dropped(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x.sin(), 0.5).exp() * x


def with_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
    return F.dropout(y.float().sin(), 0.5).exp()


def chosen(x: torch.Tensor) -> torch.Tensor:
    return again(dropped, x, context_fn=partial(create_selective_checkpoint_contexts, policy))


FUNCTIONS: dict[str, Function] = {
    "dropout": lambda x: again(dropped, x),
    "noise": lambda x: again(lambda v: (v * torch.rand_like(v)).exp(), x.sin()),
    "twice": lambda x: again(dropped, again(dropped, x) * 2),
    "nested": lambda x: again(lambda v: again(dropped, v * 2).sin(), x),
    "autocast": lambda x: again(with_autocast, x),
    "options": lambda x: again(dropped, x, preserve_rng_state=True, determinism_check="none"),
    "chosen": chosen,
}


def gradients(function: Callable[..., Any], loss: Callable[[Any], torch.Tensor]) -> Any:
    torch.manual_seed(0)
    x = torch.linspace(0.1, 1, 12).view(3, 4).requires_grad_()
    result = function(x)
    return loss(result).detach(), torch.autograd.grad(loss(result).sum(), x)[0]


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_graph_that_eager_runs(function: Function) -> None:
    def with_a_view(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return function(x), y[1:], y[1:].detach()  # for which a graph runs in eager

    compiled = fusec.compile(with_a_view)
    for _ in range(2):
        ours, theirs = (gradients(f, lambda r: r[0]) for f in (compiled, with_a_view))
        torch.testing.assert_close(ours, theirs)
    (graph,) = compiled.graphs
    assert graph.fallback
    assert not torch.is_autocast_enabled("cpu")


def test_the_captured_graph_stays_as_it_is() -> None:
    captured = []

    def take(module: torch.fx.GraphModule, inputs: Any) -> Any:
        captured.append((module, [str(n) for m in module.children() for n in m.graph.nodes]))
        return run_eagerly(module)

    function = FUNCTIONS["nested"]
    ours = gradients(torch.compile(function, backend=take), lambda r: r)
    torch.testing.assert_close(ours, gradients(function, lambda r: r))
    ((module, text),) = captured
    assert "tag_activation_checkpoint" in module.code
    assert [str(n) for m in module.children() for n in m.graph.nodes] == text
    assert all("checkpointed" not in m.code for m in module.children())
