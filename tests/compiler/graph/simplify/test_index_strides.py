"""``x[indices]``, losses, reductions and norms lie as in eager, whatever their operands do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import fusec

T = torch.Tensor


def positions(size: int, *shape: int) -> T:
    """Return indices into a dimension of ``size``, which repeat."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) % max(size, 1)).reshape(shape)


INDEXED: dict[str, Callable[[T], T]] = {
    "none": lambda x: x[positions(x.shape[0], 0)],
    "none in a column": lambda x: x[positions(x.shape[0], 0, 1)],
    "behind one more": lambda x: x[None, positions(x.shape[0], 0, 1)],
    "turned": lambda x: x[positions(x.shape[0], 3, 2).t()],
    "turned, at the end": lambda x: x[..., positions(x.shape[-1], 3, 2).t()],
    "turned, second": lambda x: x[:, positions(x.shape[1], 2, 3).t()],
    "first and last": lambda x: x[positions(x.shape[0], 3, 1), ..., positions(x.shape[-1], 1, 2)],
    "of 32 bits": lambda x: x[positions(x.shape[0], 2, 1).int(), positions(x.shape[1], 1, 3).int()],
    "used": lambda x: (x[positions(x.shape[0], 3, 2).t()] * 2).exp().transpose(0, 1) + 1,
    "a take": lambda x: x.take(positions(max(x.numel(), 1), 3, 2).t()) if x.numel() else x,
}
LAYOUTS: dict[str, Callable[[], T]] = {
    "in order": lambda: torch.randn(6, 5),
    "turned": lambda: torch.randn(5, 10, 4).permute(2, 1, 0),
    "one row": lambda: torch.randn(5, 10, 1).permute(2, 1, 0),
    "a column": lambda: torch.randn(1, 6).t(),
    "no columns": lambda: torch.randn(0, 6).t(),
    "no rows": lambda: torch.randn(0, 2),
    "one image": lambda: torch.randn(1, 4, 5, 6).contiguous(memory_format=torch.channels_last),
    "no width": lambda: torch.randn(2, 2, 2, 0).contiguous(memory_format=torch.channels_last),
    "windows": lambda: torch.randn(5, 1, 33).unfold(1, 1, 3),
}


def compare(function: Callable[..., Any], *inputs: T) -> None:
    torch._dynamo.reset()
    wanted = tree_leaves(function(*inputs))
    found = tree_leaves(fusec.compile(function)(*inputs))
    torch.testing.assert_close(found, wanted)
    assert [each.stride() for each in found] == [each.stride() for each in wanted]


@pytest.mark.sample(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_indices(layout: str) -> None:
    x = LAYOUTS[layout]()

    def works(function: Callable[[T], T]) -> bool:
        try:
            function(x)
        except IndexError:  # there is nothing to take
            return False
        return True

    taken = [function for function in INDEXED.values() if works(function)]
    assert len(taken) > 4
    compare(lambda x: [function(x) for function in taken], x)


def test_gradients_of_what_is_indexed() -> None:
    def function(x: T, w: T) -> T:
        taken = x[:, positions(10, 2, 3).t()]
        return (taken * w).softmax(-1) * taken

    def gradients(call: Callable[..., T]) -> list[T]:
        torch.manual_seed(0)
        x = torch.randn(5, 10, 4).permute(2, 1, 0).requires_grad_()
        w = torch.randn(3, 2, 5, requires_grad=True)
        made = call(x, w)
        return [made, *torch.autograd.grad(made, (x, w), torch.ones_like(made).cumsum(0))]

    wanted, found = gradients(function), gradients(fusec.compile(function))
    torch.testing.assert_close(found, wanted)
    assert [each.stride() for each in found] == [each.stride() for each in wanted]


def test_symbolic_sizes() -> None:
    """What shows in the elements is left there as torch's fake tensors say it."""

    def function(x: T, at: T) -> T:
        return x[at] * 2

    compiled = fusec.compile(function, dynamic=True)
    for size in (6, 4, 9):
        x, at = torch.randn(size, 5), positions(size, 3, 1)
        torch.testing.assert_close(compiled(x, at), function(x, at))
        assert compiled(x, at).stride() == function(x, at).stride()


@pytest.mark.parametrize("height", [1, 3])
def test_rolls_of_symbolic_sizes(height: int) -> None:
    """One of a dimension of one element lies in order, and of others as its input does."""

    def function(x: T) -> list[T]:
        whole = [x.roll(1, -1), x.roll(2), x.roll((1, 1), (1, 2)), x.roll(1, 1), x.roll(4, 1)]
        return [*whole, x.roll(1, -1).transpose(0, 2)]

    compiled = fusec.compile(function, dynamic=True)
    for size in (2, 3):
        image = torch.randn(size, 4, 6, 6)[..., :height, :1]  # with gaps, or it stays as it is
        x = image.contiguous(memory_format=torch.channels_last)
        wanted, found = function(x), compiled(x)
        torch.testing.assert_close(found, wanted)
        assert [each.stride() for each in found] == [each.stride() for each in wanted]


PAIRS: dict[str, Callable[[], tuple[T, T]]] = {
    "turned": lambda: (torch.randn(5, 10, 1).permute(2, 1, 0), torch.randn(1, 10, 5)),
    "far apart": lambda: (torch.randn(8, 6)[::4][:1], torch.randn(1, 6)),
    "ends": lambda: (torch.randn(8, 1, 9).transpose(0, 2), torch.randn(9, 1, 8)),
    "none": lambda: (torch.randn(1, 0, 3).expand(4, 0, 3), torch.randn(3, 0, 4).permute(2, 1, 0)),
    "every other": lambda: (torch.randn(0)[::2], torch.randn(0)),
}


@pytest.mark.parametrize("layout", PAIRS)
def test_of_two_that_lie_otherwise(layout: str) -> None:
    def function(x: T, y: T) -> list[T]:
        found = []
        for a, b in ((x, y), (y, x)):
            found += [
                F.mse_loss(a, b, reduction="none"),
                F.smooth_l1_loss(a, b, reduction="none"),
                F.binary_cross_entropy_with_logits(a, b, reduction="none"),
                torch.ldexp(a, b),
                a.copysign(b),
                a.roll(1, 0),
                a.roll(2),
            ]
        return found

    compare(function, *PAIRS[layout]())


def test_reductions_of_none() -> None:
    def function(x: T) -> tuple[T, ...]:
        wide = x.unsqueeze(-2).expand(6, 3, 0)
        kept = wide.amax(-2, keepdim=True)
        return kept, kept[:, 0:], wide.sum(1, keepdim=True), wide.any(1, keepdim=True)

    compare(function, torch.randn(0, 6).t())


@pytest.mark.parametrize("dynamic", [None, True])
def test_group_norm_of_one_image(dynamic: bool | None) -> None:
    def function(x: T, y: T) -> tuple[T, T]:
        return F.group_norm(torch.where(x > 0, x, 3.0), 1), F.group_norm(y, 1)

    x = torch.randn(1, 4, 17, 8).contiguous(memory_format=torch.channels_last)
    y = torch.randn(5, 1, 33).unfold(1, 1, 3)
    wanted, found = function(x, y), fusec.compile(function, dynamic=dynamic)(x, y)
    torch.testing.assert_close(found, wanted)
    assert [each.stride() for each in found] == [each.stride() for each in wanted]


def test_rows_of_what_has_no_elements() -> None:
    def function(x: T) -> tuple[T, ...]:
        return tuple(x.msort())

    compare(function, torch.randn(2, 2, 2, 0).contiguous(memory_format=torch.channels_last))
