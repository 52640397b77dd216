"""What lies beside the memory that a kernel allocates: what it writes past its own is seen.

``malloc`` hands out what was freed last.  So for each size a block is freed that has one of ours
behind it, and a kernel that asks for this size gets it: what it writes past the end changes our
block, or the size that the C library keeps before it.  What it writes after it has freed its
block is what the C library keeps there of the next one, which ends the process when that is asked
for: here, and not in a notebook an hour later.
"""

from __future__ import annotations

import ctypes
import random

# All sizes that the C library rounds others up to while they are small, and what is asked for of
# larger ones.
_SMALL = range(24, 1048, 16)
_LARGE = tuple((1 << power) + 8 for power in range(11, 17))
# It keeps so many freed blocks of a size for a thread, and so much before each block.
_CACHED = 7
_HEADER = 8
# How many blocks are asked for until two pairs lie side by side.
_TRIES = 12


class Neighbours:
    """Blocks of the C library's memory, and what has to be in them."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._libc.malloc.restype = ctypes.c_void_p
        self._libc.free.argtypes = [ctypes.c_void_p]
        self._size = getattr(self._libc, "malloc_usable_size", None)  # not every system has it
        if self._size is not None:
            self._size.argtypes, self._size.restype = [ctypes.c_void_p], ctypes.c_size_t
        self._byte = random.SystemRandom().randrange(1, 256)
        self._blocks: list[tuple[int, int, int]] = []
        self._ours: set[int] = set()
        self._taken: list[int] = []

    def lay(self) -> None:
        """Lay them out, each behind one that is free."""
        for size in (*_SMALL, *_LARGE):
            # What is free already would be handed out first.
            self._taken += [self._malloc(size) for _ in range(_CACHED)]
            free: list[int] = []
            before = self._malloc(size)
            for _ in range(_TRIES):
                block = self._malloc(size)
                if len(free) < 2 and block == before + size + _HEADER and before not in self._ours:
                    free.append(before)
                    ctypes.memset(block, self._byte, size)
                    self._blocks.append((block, size, self._usable(block)))
                    self._ours.add(block)
                elif before not in self._ours:
                    self._taken.append(before)  # something else lies behind it
                before = block
            if before not in self._ours:
                self._taken.append(before)
            for each in free:
                self._libc.free(each)

    def _malloc(self, size: int) -> int:
        block = self._libc.malloc(size)
        if not block:
            raise MemoryError
        return int(block)

    def problem(self) -> str:
        """Return what a call has done to them, in words; empty where it has done nothing.

        Where what the C library keeps in free blocks was written over, it ends this process.
        """
        for block, size, usable in self._blocks:
            if self._usable(block) != usable or (
                ctypes.string_at(block, size) != bytes((self._byte,)) * size
            ):
                return "writes past the end of memory that it allocated"
        for size in _SMALL:
            self._taken += [self._malloc(size) for _ in range(3)]
        for each in (*(block for block, *_ in self._blocks), *self._taken):
            self._libc.free(each)
        self._blocks, self._taken, self._ours = [], [], set()
        return ""

    def _usable(self, block: int) -> int:
        return int(self._size(block)) if self._size is not None else 0


__all__ = ["Neighbours"]
