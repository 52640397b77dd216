"""Results written over what is read for the last time: where, and that nothing else changes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import fusec
from fusec.ir.index import Expr
from fusec.schedule import overwrite
from fusec.schedule.overwrite import dimensions_within
from fusec.schedule.step_graph import fusion_view
from support.triton_bodies import F32, buffer

Function = Callable[..., object]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    monkeypatch.setattr(overwrite, "LEAST_OVERWRITTEN_BYTES", 0)
    torch._dynamo.reset()
    torch.manual_seed(0)


def count(compiled: fusec.CompiledFunction) -> int:
    """Return how many results lie where something else did."""
    made = [d for g in compiled.graphs for d in g.fusions if d.fused]
    return sum("for the last time" in d.reason for d in made)


def same(function: Function, *inputs: torch.Tensor, target: str = "cpp") -> int:
    """Compare three calls with eager's, inputs included; return ``count``."""
    compiled = fusec.compile(function, emulate_rounding=True, target=target)
    theirs = tuple(copy.deepcopy(x) for x in inputs)
    with torch.no_grad():
        for _ in range(3):
            kept = compiled(*inputs)
            torch.testing.assert_close(compiled(*inputs), function(*theirs), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(kept, function(*theirs), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(inputs, theirs, rtol=0, atol=0)
    return count(compiled)


def _activation(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(torch.relu(torch.mm(x, w)), w)


def _returned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, w).exp()


def _of_more_dimensions(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(torch.mm(x, w).view(4, 6, 2, -1)) * 0.5
    return torch.mm(y.view(24, -1), w)


def _one_over_another(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.mm(torch.relu(torch.mm(x, w)), w)
    z = torch.mm(torch.sigmoid(y), w)
    return torch.mm((z.view(2, 12, -1) + 1).relu().view(24, -1), w)


def _of_two(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y, z = torch.mm(x, w), torch.mm(x + 1, w)
    return torch.mm(y + z, w), torch.mm(y * z, w)


def _changed_then_updated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.relu(torch.mm(x, w))
    y[3:7] = 0.25
    return torch.mm(y, w)


@pytest.mark.sample(6)
@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize(
    ("function", "most"),
    [
        (_activation, 1),
        (_returned, 1),
        (_of_more_dimensions, 1),
        (_one_over_another, 3),
        (_of_two, 2),
        (_changed_then_updated, 1),
    ],
)
def test_over_what_a_library_made(function: Function, most: int, target: str) -> None:
    found = same(function, torch.randn(24, 24), torch.randn(24, 24) / 5, target=target)
    assert 0 < found <= most


def _read_later(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.mm(x, w)
    return torch.mm(y.exp(), torch.mm(w, y))


def _returned_too(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.mm(x, w)
    return y, y.exp()


def _an_input(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(x.exp(), w)


def _elsewhere(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.mm(x, w)
    return y + y.flip(0)


def _turned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, w).t().contiguous() * 2


def _of_another_type(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, w).double() + 1


def _by_its_sum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.mm(x, w)
    return y / (y.sum(0) + 100)


def _a_part(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, w)[2:].exp()


def _seen_by_a_view(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.mm(x, w)
    return y[:5], y.exp()


@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize(
    "function",
    [
        *(_read_later, _returned_too, _an_input, _elsewhere, _turned),
        *(_of_another_type, _by_its_sum, _a_part, _seen_by_a_view),
    ],
)
def test_what_has_to_stay(function: Function, target: str) -> None:
    assert same(function, torch.randn(24, 24), torch.randn(24, 24) / 5, target=target) == 0


def test_an_expanded_tensor_is_not_written() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.expand(16, 64) * 1)

    same(function, torch.randn(64))


class _Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.inner = nn.Linear(16, 64)
        self.outer = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        x = (x + self.second(x)).relu()
        y: torch.Tensor = self.outer(nn.functional.gelu(self.inner(x.permute(0, 2, 3, 1))))
        return x + y.permute(0, 3, 1, 2)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_a_network(format: torch.memory_format) -> None:
    module = _Convolutions().eval()
    x = torch.randn(2, 3, 20, 12).to(memory_format=format)
    assert same(module, x) >= 3


def test_a_network_learns_the_same() -> None:
    ours = _Convolutions()
    theirs = copy.deepcopy(ours)
    compiled = fusec.compile(ours)
    for _ in range(3):
        x = torch.randn(2, 3, 20, 12)
        one, two = compiled(x).square().mean(), theirs(x).square().mean()
        torch.testing.assert_close(one, two)
        one.backward()
        two.backward()
        for mine, plain in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, plain.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_small_results_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overwrite, "LEAST_OVERWRITTEN_BYTES", 24 * 24 * 4 + 1)
    assert same(_activation, torch.randn(24, 24), torch.randn(24, 24)) == 0


@pytest.mark.parametrize(
    "function", [_activation, _returned, _one_over_another, _of_more_dimensions, _of_two]
)
def test_the_graph_shows_who_computes_what(function: Function) -> None:
    compiled = fusec.compile(function)
    with torch.no_grad():
        compiled(torch.randn(24, 24), torch.randn(24, 24))
    (part,) = compiled.graphs[0].parts
    state = part.state
    assert state.program is not None
    assert state.schedule is not None
    view = fusion_view(state.program, state.scheduled, state.schedule.decisions)
    shown = {kernel for node in view.before.nodes for kernel in node.kernels}
    assert all(node.kernels for node in view.before.nodes if node.kind == "kernel")
    assert shown == set(part.kernels)
    # results are called what they are, not what they are written over
    before, after = (
        {node.label for node in graph.nodes if node.kind == "output"}
        for graph in (view.before, view.after)
    )
    assert before == after
    read = {edge.tensor for edge in view.after.edges}
    assert read <= {edge.tensor for edge in view.before.edges}


def test_which_dimensions_are_of_which() -> None:
    def within(coarse: tuple[int, ...], *fine: int, last: bool = False) -> object:
        given = buffer("fine", fine, F32)
        if last:  # channels innermost
            _, c, h, w = fine
            strides = tuple(Expr.of(s) for s in (c * h * w, 1, w * c, c))
            given = type(given)("fine", given.shape, strides, F32)
        return dimensions_within(buffer("coarse", coarse, F32), given)

    assert within((6, 5), 6, 5) == (((0, 1),), ((1, 1),))
    assert within((6, 5), 2, 3, 5) == (((1, 1), (0, 3)), ((2, 1),))
    assert within((6, 5), 2, 1, 3, 5, 1) == (((2, 1), (0, 3)), ((3, 1),))
    assert within((30, 1), 6, 5) == (((1, 1), (0, 5)), ())
    assert within((2 * 3 * 4, 7), 2, 7, 3, 4, last=True) == (((3, 1), (2, 4), (0, 12)), ((1, 1),))
    assert within((5, 6), 6, 5) is None
    assert within((2, 3, 5), 6, 5) is None
    assert within((6, 5), 3, 10) is None


def test_shapes_of_which_neither_is_within_the_other() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.tanh(torch.mm(x, w).view(14, 15)) * 0.5, v)

    assert same(function, torch.randn(6, 8), torch.randn(8, 35), torch.randn(15, 4)) == 0
    assert (
        same(
            lambda x, w, v: torch.mm(torch.tanh(torch.mm(x, w).view(14, 15)) * 0.5, v),
            *(torch.randn(14, 8), torch.randn(8, 15), torch.randn(15, 4)),
        )
        == 1
    )
