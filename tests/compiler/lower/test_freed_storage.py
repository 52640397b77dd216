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


def filled_for_a_while(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.untyped_storage().resize_(40)
    x.copy_(y * 2)
    z = x + 1
    x.untyped_storage().resize_(0)
    return z


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


def test_what_had_memory_for_a_while_has_none_afterwards() -> None:
    """Copied back from memory that is freed, it would end the process."""
    call = fusec.compile(filled_for_a_while)
    for _ in range(3):
        x, y = torch.zeros(10), torch.randn(10)
        x.untyped_storage().resize_(0)
        torch.testing.assert_close(call(x, y), y * 2 + 1)
        assert x.untyped_storage().nbytes() == 0
