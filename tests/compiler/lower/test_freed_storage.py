"""What a function reads before it frees a tensor's memory is read before that."""

from __future__ import annotations

import torch

import fusec


def freed(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x + 1)
    x.untyped_storage().resize_(0)
    return torch.cos(y)


def filled_again(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x + 1)
    x.untyped_storage().resize_(0)
    z = torch.cos(y)
    x.untyped_storage().resize_(40)
    x.copy_(z)
    return z * 2


def test_what_is_freed_was_read_before() -> None:
    x = torch.linspace(0, 1, 10)
    wanted = torch.cos(torch.sin(x + 1))
    torch.testing.assert_close(fusec.compile(freed)(x), wanted)
    assert x.untyped_storage().size() == 0


def test_what_is_filled_again_has_its_values() -> None:
    x = torch.linspace(0, 1, 10)
    wanted = torch.cos(torch.sin(x + 1))
    torch.testing.assert_close(fusec.compile(filled_again)(x), wanted * 2)
    torch.testing.assert_close(x, wanted)
