"""Memory for large tensors on the CPU: in huge pages, and used again when they are gone.

The C library gives the memory of a large tensor back to the system as soon as nobody holds it, and
gets the next one's anew: the system then clears every page before the kernel overwrites it, which
takes as long as a kernel that only moves the data.  So the largest tensors' memory is kept, as it
is on a GPU, and is the next equally large tensor's once nobody holds a tensor, a view or an array
over it.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fusec.codegen.host import LARGE_BYTES

empty_cpu: Callable[..., torch.Tensor] = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]

_PAGE = 4096
_HUGE_PAGES = 14  # MADV_HUGEPAGE
# The C library gives what is as large as this back always, whatever came before.
KEPT_BYTES = 32 << 20
# What is kept at most, in use or not, and for how many seconds nobody may have asked for it.
MOST_BYTES = 256 << 20
MOST_SECONDS = 10.0


def empty_large(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Return an uninitialized tensor on the CPU; for programs with large ones.

    The memory of one of ``codegen.host.LARGE_BYTES`` or more is asked for in huge pages, where the
    system gives them on request: one fault in place of five hundred. Where it does not, nothing
    changes. That of one of ``KEPT_BYTES`` or more is kept for the next.
    """
    size = _extent(shape, strides) * dtype.itemsize
    if size < KEPT_BYTES or _is_watched():
        return _asked_for(shape, strides, dtype)
    return _kept.take(shape, strides, dtype, size)


def _is_watched() -> bool:
    """Whether somebody would see, or forbid, that a tensor is put together from kept memory.

    That is one operation of torch, where making a tensor is none.
    """
    transforms = torch._C._functorch.peek_interpreter_stack()
    return bool(torch._C._len_torch_dispatch_stack()) or transforms is not None


def release_large() -> None:
    """Give back all memory that is kept; tensors in use keep theirs."""
    _kept.release()


@dataclass
class _Block:
    """Memory that was given out: its storage, its size in bytes, when it was asked for last."""

    storage: torch.UntypedStorage
    size: int
    asked: float

    @property
    def is_free(self) -> bool:
        """Whether nobody else holds it, neither a tensor nor the storage's own object."""
        tensors: int = torch._C._storage_Use_Count(self.storage._cdata) - 1
        return tensors == 0 and sys.getrefcount(self.storage) <= 2

    @property
    def is_whole(self) -> bool:
        """Whether it is what it was: neither resized nor shared with another process."""
        return self.storage.nbytes() == self.size and not self.storage.is_shared()


class _Kept:
    """The memory that is kept, the longest unused first."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self.lock = threading.Lock()

    def take(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, size: int
    ) -> torch.Tensor:
        """Return a tensor over kept memory of exactly its size, or over new memory."""
        now = time.monotonic()
        with self.lock:
            self.blocks = [
                block
                for block in self.blocks
                if block.is_whole and not (block.is_free and now - block.asked > MOST_SECONDS)
            ]
            for block in self.blocks:
                if block.size == size and block.is_free:
                    self._asked(block, now)
                    made = empty_cpu((0,), (1,), dtype)
                    return made.set_(block.storage, 0, shape, strides)
            made = _asked_for(shape, strides, dtype)
            storage = made.untyped_storage()
            if storage.nbytes() == size <= MOST_BYTES:
                self.blocks.append(_Block(storage, size, now))
                while sum(block.size for block in self.blocks) > MOST_BYTES:
                    del self.blocks[0]
            return made

    def _asked(self, block: _Block, now: float) -> None:
        self.blocks.remove(block)
        self.blocks.append(block)
        block.asked = now

    def release(self) -> None:
        """Keep nothing any longer."""
        with self.lock:
            self.blocks = []


_kept = _Kept()


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how many elements from the first to the last of a tensor there is room for."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _asked_for(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    made = empty_cpu(shape, strides, dtype)
    size, advise = made.untyped_storage().nbytes(), _advise()
    if size >= LARGE_BYTES and advise is not None:
        begin = -(-made.data_ptr() // _PAGE) * _PAGE
        advise(begin, size - _PAGE, _HUGE_PAGES)
    return made


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    advise: Any = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise  # type: ignore[no-any-return]


__all__ = ["empty_cpu", "empty_large", "release_large"]
