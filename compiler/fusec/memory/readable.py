"""Which tensors kernels can read: plain ones, whose memory is there.

A kernel is given an address. A fake tensor has none; a functional one, a subclass with rules of its
own, one of a transform or with a tangent of forward-mode AD stands for more than its memory; a
lazily negated or conjugated view holds other numbers than it stands for; a storage may have been
freed or cut. ATen's operators know all of this, so a graph that is given such a tensor runs by
them; where there is no memory, they would end the process, and an error says so. The native form
(``call/native/capsule.py``) costs nanoseconds.
"""

from __future__ import annotations

import functools

import torch
from torch._C import _dispatch_keys
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fusec.errors import FusecError

# What torch asks about operators on plain tensors, and does not ask of any other.
_PLAIN = ("CPU", "CUDA", "HIP", "ADInplaceOrView", "AutogradCPU", "AutogradCUDA", "AutogradHIP")
_PLAIN_CASTS = ("AutocastCPU", "AutocastCUDA")


class Unreadable(FusecError, RuntimeError):
    """An input is no plain tensor: only operators know what it stands for."""


class NoMemory(FusecError, RuntimeError):
    """The memory of a tensor is not there, or less of it than the tensor's elements need."""


def require(value: object, what: str = "a tensor") -> None:
    """Raise if kernels cannot read a value from memory.

    Args:
        value: Expected to be a tensor.
        what: What it is called in the message.

    Raises:
        Unreadable: It is no plain tensor, or operators go to somebody else first.
        NoMemory: Its memory is not there.
    """
    require_plain(value, what)
    assert isinstance(value, torch.Tensor)
    needed, there = _bytes_needed(value), value.untyped_storage().nbytes()
    if needed > there:
        raise NoMemory(
            f"{what} needs {needed} bytes of memory, of which {there} are there",
            "its storage was freed or made smaller, by untyped_storage().resize_(), say",
        )


def require_plain(value: object, what: str = "a tensor") -> None:
    """Do as ``require``, but for the memory.

    Raises:
        Unreadable: As there.
    """
    if isinstance(value, torch.SymInt) and not value.node.is_constant():
        raise Unreadable(f"{what} is {value}, which is not a number")
    if not isinstance(value, torch.Tensor):
        return
    if _dispatch_keys(value).raw_repr() & ~_plain_keys():
        kind = type(value).__name__
        raise Unreadable(f"{what} is not a plain tensor ({kind}), which kernels could read")
    if has_tangent(value):
        raise Unreadable(f"{what} has a tangent of forward-mode AD, of which kernels know nothing")
    for mode in _get_current_dispatch_mode_stack():
        # AOTAutograd's own, on in the first call of a graph, only looks at custom operators.
        ignores = getattr(mode, "ignore_compile_internals", None)
        if ignores is None or not ignores():
            name = type(mode).__name__
            raise Unreadable(f"{what} is given under {name}, which takes operators before kernels")


def has_tangent(value: object) -> bool:
    """Whether forward-mode AD carries a derivative along with a tensor."""
    if forward_ad._current_level < 0 or not isinstance(value, torch.Tensor):
        return False  # there is one level, and none is open
    return forward_ad.unpack_dual(value).tangent is not None


def address(tensor: torch.Tensor) -> int:
    """Return where a tensor's elements are.

    Raises:
        Unreadable: As ``require``.
        NoMemory: Likewise.
    """
    require(tensor)
    return tensor.data_ptr()


@functools.cache
def _plain_keys() -> int:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
    for name in (*_PLAIN, *_PLAIN_CASTS):
        keys = keys | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
    return int(keys.raw_repr())


def _bytes_needed(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in pairs)
    return int((tensor.storage_offset() + last + 1) * tensor.itemsize)


__all__ = [
    "NoMemory",
    "Unreadable",
    "address",
    "has_tangent",
    "require",
    "require_plain",
]
