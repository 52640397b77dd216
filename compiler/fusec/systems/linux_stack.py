"""A call on a stack of its own, to see whether it writes above its part of it: in its caller's."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

# ``ucontext_t`` of glibc on 64-bit machines: where it goes on, and the stack that it is to have.
_LINK, _POINTER, _SIZE = 8, 16, 32
_CONTEXT = 8192  # more than one takes
_STACK = 8 << 20
_ABOVE = 64 << 10
_PATTERN = 0xA5


def writes_above(function: int, numbers: Sequence[int]) -> bool | None:
    """Call a function once; return whether it wrote above the frame that it was given.

    What it reaches beyond that can not be touched: a far step is a fault.

    Args:
        function: Its address; its result is lost.
        numbers: Its arguments, integers or addresses of 64 bits.

    Returns:
        None where the C library has no contexts, and it was not called.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE
    area = mmap.mmap(-1, _STACK + _ABOVE + page)
    view = (ctypes.c_char * len(area)).from_buffer(area)
    base = ctypes.addressof(view)
    above = base + _STACK
    ctypes.memset(above, _PATTERN, _ABOVE)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mprotect(above + _ABOVE, page, 0)
    called = call_on(function, numbers, (base, _STACK))
    found = ctypes.string_at(above, _ABOVE)
    libc.mprotect(above + _ABOVE, page, mmap.PROT_READ | mmap.PROT_WRITE)
    return found != bytes([_PATTERN]) * _ABOVE if called else None


def call_on(function: int, numbers: Sequence[int], stack: tuple[int, int]) -> bool:
    """Call a function once on a stack of one's own; its result is lost.

    Args:
        function: Its address.
        numbers: Its arguments, integers or addresses of 64 bits.
        stack: The address and the size of memory that it may have.

    Returns:
        False where the C library has no contexts, and it was not called.
    """
    libc = ctypes.CDLL(None)
    try:
        get, make, swap = libc.getcontext, libc.makecontext, libc.swapcontext
    except AttributeError:
        return False
    here, there = (ctypes.create_string_buffer(_CONTEXT) for _ in range(2))
    get(there)
    for offset, value in (
        (_LINK, ctypes.addressof(here)),
        (_POINTER, stack[0]),
        (_SIZE, stack[1]),
    ):
        ctypes.c_uint64.from_buffer(there, offset).value = value
    given = map(ctypes.c_uint64, numbers)
    make(there, ctypes.c_void_p(function), ctypes.c_int(len(numbers)), *given)
    swap(here, there)
    return True


__all__ = ["call_on", "writes_above"]
