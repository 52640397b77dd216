"""Many inputs that a graph updates, such as a network's running statistics."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fusec
from fusec.call.updates import copy_all


def test_what_is_copied_and_how_often_by_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[int] = []
    original = torch._foreach_copy_

    def counted(targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        together.append(len(targets))
        original(targets, values)

    monkeypatch.setattr(torch, "_foreach_copy_", counted)
    same = torch.randn(3)
    pairs = [(torch.full((n,), -1.0), torch.randn(n)) for n in (5, 0, 7, 1)]
    pairs += [(torch.zeros((), dtype=torch.int64), torch.tensor(4)) for _ in range(2)]
    pairs += [(torch.zeros(4, 6).t(), torch.randn(6, 4)), (same, same)]
    whole = torch.zeros(4, 4)
    pairs += [(whole[:, ::2], torch.randn(4, 2))]
    versions = [target._version for target, _ in pairs]
    copy_all(iter(pairs))
    assert together == [6]
    for target, value in pairs:
        torch.testing.assert_close(target, value, rtol=0, atol=0)
    assert not whole[:, 1::2].any()
    assert all(t._version > v for (t, _), v in zip(pairs, versions, strict=True))


@pytest.mark.parametrize("view", [False, True])
def test_what_was_saved_for_a_gradient_and_is_updated_is_not_used(view: bool) -> None:
    compiled = fusec.compile(lambda x: x.add_(1).mul(2))
    weight = torch.ones(3, requires_grad=True)
    whole = torch.ones(2, 3)
    for _ in range(3):
        loss = (weight * whole).sum()
        compiled(whole[0] if view else whole)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x


@pytest.mark.sample(1)
@pytest.mark.parametrize("records", [True, False])
def test_running_statistics(records: bool) -> None:
    torch.manual_seed(0)
    module = Norms()
    exact = copy.deepcopy(module).double()
    compiled = fusec.compile(module)
    pointers = [buffer.data_ptr() for buffer in module.buffers()]
    for step in range(3):
        x = torch.randn(5, 6, 7, 7)
        with torch.set_grad_enabled(records):
            ours, truth = compiled(x), exact(x.double())
            if records:
                ours.square().mean().backward()
        torch.testing.assert_close(ours.double(), truth, rtol=1e-4, atol=1e-4)
        for (name, buffer), true in zip(module.named_buffers(), exact.buffers(), strict=True):
            if "tracked" in name:
                assert int(buffer) == int(true) == step + 1
            torch.testing.assert_close(buffer.double(), true.double(), rtol=1e-4, atol=1e-5)
    assert [buffer.data_ptr() for buffer in module.buffers()] == pointers


def test_operators_on_lists_are_taken_apart() -> None:
    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        halves = torch._foreach_mul(tensors, 0.5)
        return torch._foreach_add(torch._foreach_sqrt(torch._foreach_abs(halves)), tensors, alpha=2)

    tensors = [torch.randn(n) for n in (7, 7, 30)]
    compiled = fusec.compile(function)
    torch.testing.assert_close(compiled(*tensors), function(*tensors))
    assert not compiled.graphs[0].externs
