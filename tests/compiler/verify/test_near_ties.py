"""Which element is the greatest, where roundings alone tell several apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fusec
from fusec.report import Verdict
from fusec.verify.check import check_graph
from fusec.verify.comparison import graph_outputs
from fusec.verify.comparison.exact_graph import ExactGraph

Function = Callable[[torch.Tensor], Any]

CHOICES: dict[str, Function] = {
    "argmax": lambda y: y.argmax(-1),
    "argmin, kept": lambda y: (-y).argmin(1, keepdim=True),
    "of columns": lambda y: torch.argmax(input=y.t().contiguous(), dim=0),
    "of all": lambda y: y[:30].argmax(),
    "max, both": lambda y: y.max(-1),
    "min, indices": lambda y: torch.min(-y, 1).indices,
}


def values(seed: int = 0) -> torch.Tensor:
    return torch.randn(400, 3000, generator=torch.Generator().manual_seed(seed)).bfloat16()


def normed(x: torch.Tensor) -> torch.Tensor:
    """Rows whose greatest elements are, in some, a rounding apart."""
    return F.layer_norm(F.gelu(x * 2 + 1), (x.shape[-1],))


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few runs, as in a graph of many elements."""
    monkeypatch.setattr(graph_outputs, "_LARGE", 0)


@pytest.mark.parametrize("choice", CHOICES)
def test_either_of_two_that_a_rounding_tells_apart(choice: str) -> None:
    torch._dynamo.reset()
    compiled = fusec.compile(lambda x: CHOICES[choice](normed(x)), keep_inputs=True)
    compiled(values())
    verdict = compiled.graphs[0].verify()
    assert verdict.ok, verdict.reason


def judged(function: Function, x: torch.Tensor, other: Function) -> Verdict:
    """Return the verdict on a function in place of the kernels of another one."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(module)
        return module

    torch._dynamo.reset()
    torch.compile(function, backend=keep)(x)
    (module,) = graphs
    exact = ExactGraph(module)
    return check_graph(
        lambda given: [other(*given)],
        lambda given: list(module(*given)),
        lambda given: list(exact.results(given)),
        [x],
        timed=False,
        run_drawn=lambda given, seed, made: list(exact.results(given, seed, made)),
        halves=exact.halves,
    )


def second(y: torch.Tensor) -> torch.Tensor:
    """Where the greatest element is but for one."""
    return y.float().topk(2, dim=-1).indices[:, 1]


def test_a_choice_is_judged_by_its_element() -> None:
    x = values(1)

    def right(x: torch.Tensor) -> torch.Tensor:
        return normed(x.float()).argmax(-1)  # nothing is rounded on the way

    def one_off(x: torch.Tensor) -> torch.Tensor:
        found = right(x)
        found[17] = second(normed(x.float()))[17] if apart[17] else (found[17] + 1) % 3000
        return found

    def out_of_range(x: torch.Tensor) -> torch.Tensor:
        found = right(x)
        found[3] = 3000
        return found

    best = normed(x.float()).topk(2, dim=-1).values
    apart = best[:, 0] - best[:, 1] > 0.05 * best[:, 0]

    def function(x: torch.Tensor) -> torch.Tensor:
        return normed(x).argmax(-1)

    assert judged(function, x, right).ok
    for wrong in (one_off, out_of_range, lambda x: second(normed(x))):
        assert not judged(function, x, wrong).ok


def test_what_nobody_rounds_is_told_apart() -> None:
    """Inputs that are one unit apart, and equal ones: the first of the greatest is right."""
    x = torch.full((40, 64), 2.0).bfloat16()
    x[:, 9] += 2**-6
    assert judged(lambda x: x.argmax(-1), x, lambda x: torch.full((40,), 9)).ok
    assert not judged(lambda x: x.argmax(-1), x, lambda x: torch.full((40,), 8)).ok
    x[:, 30] = x[:, 9]
    assert not judged(lambda x: x.argmax(-1), x, lambda x: torch.full((40,), 30)).ok
