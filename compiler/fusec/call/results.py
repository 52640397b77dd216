"""Whether an operator's result is what the kernels after it were told."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from fusec.call import native
from fusec.call.dlpack import TYPES
from fusec.errors import BrokenPromise


def expect(
    tensor: torch.Tensor,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype | None,
    what: str = "an operator",
) -> torch.Tensor:
    """Return an extern call's result laid out as the kernels after it were told.

    torch's fake tensors predict what it is; where a real operator lays it out otherwise, it is
    copied.

    Args:
        tensor: The result.
        shape: What its sizes must be: what was predicted, or promised by ``torch._check``.
        strides: What its strides are to be, in elements.
        dtype: What its type must be; None where no kernel reads it.
        what: The operator and its line, for the message.

    Raises:
        BrokenPromise: It has other sizes, or another type. No kernel may start on it.
    """
    dtype = dtype or tensor.dtype
    if tensor.shape != shape or tensor.dtype != dtype:
        returned = f"{list(tensor.shape)}" if tensor.dtype == dtype else f"{tensor.dtype}"
        wanted = f"{list(shape)}" if tensor.dtype == dtype else f"{dtype}"
        raise BrokenPromise(
            f"{what} returned {returned}, where {wanted} was promised",
            "by a torch._check that does not hold, or by a custom operator's fake kernel, which "
            "torch.library.opcheck tests",
        )
    actual = tensor.stride()
    if actual == strides:
        return tensor
    if all(size == 1 or a == b for size, a, b in zip(shape, actual, strides, strict=True)):
        return tensor
    laid = torch.empty_strided(shape, strides, dtype=dtype, device=tensor.device)
    return laid.copy_(tensor)


@functools.cache
def _native() -> Callable[..., torch.Tensor]:
    found = native.types()
    assert found is not None
    made: Callable[..., torch.Tensor] = found.ResultCheck(expect, TYPES, native.exchange())
    return made


def expecting() -> Callable[..., torch.Tensor]:
    """Return ``expect``, in its native form where that is there."""
    return _native() if native.types() is not None else expect


__all__ = ["expect", "expecting"]
