"""Memory for a kernel's arguments in which every step outside is seen.

An argument lies in an anonymous mapping right against a region that may not be touched: at its
end to catch reads and writes past the end, or at its start to catch those before it.  What is
left of the page on the other side holds a pattern that is looked at after the run.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from fusec.systems import this_system
from fusec.verify.protocol import MARGIN

PAGE = this_system().page
# Untouchable address space on each side.  It costs no memory, and a kernel that is off by a
# row or two still lands in it, so that the report can name the argument.
GUARD = 64 << 20

_LARGE = 4 << 20


def round_up(size: int) -> int:
    """Return ``size`` rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


@dataclass(frozen=True)
class Area:
    """One argument's memory between two untouchable regions.

    Attributes:
        name: The argument.
        base: Start of the lower untouchable region.
        usable: Bytes between the two regions, whole pages.
        start: Address of the argument's first byte.
        nbytes: Its size.
    """

    name: str
    base: int
    usable: int
    start: int
    nbytes: int

    @classmethod
    def make(cls, name: str, nbytes: int, *, at_end: bool) -> Area:
        """Map an area; the argument ends (or starts) exactly at an untouchable region."""
        usable = round_up(nbytes)
        system = this_system()
        try:
            base = system.reserve(usable + 2 * GUARD)
            first = base + GUARD
            system.open_pages(first, usable)
        except MemoryError as error:
            raise MemoryError(f"{error} for {name}") from None
        advise = system.huge_pages()
        if usable >= _LARGE and advise is not None:
            # Saves most of the page faults; where it cannot be had, nothing is lost.
            advise(first, usable)
        slack = usable - nbytes
        start = first + slack if at_end else first
        ctypes.memset(first if at_end else first + nbytes, MARGIN, slack)
        return cls(name, base, usable, start, nbytes)

    def release(self) -> None:
        """Give the memory back."""
        this_system().release(self.base, self.usable + 2 * GUARD)

    def lock(self) -> None:
        """Let the argument be read only, until ``unlock``."""
        this_system().lock_pages(self.base + GUARD, self.usable)

    def unlock(self) -> None:
        """Let the argument be written again."""
        this_system().open_pages(self.base + GUARD, self.usable)

    def fill(self, byte: int) -> None:
        """Set every byte of the argument."""
        ctypes.memset(self.start, byte, self.nbytes)

    def copy_from(self, address: int) -> None:
        """Copy the argument's bytes from ``address``."""
        ctypes.memmove(self.start, address, self.nbytes)

    def bytes_view(self) -> memoryview:
        """Return the argument's bytes, writable, without a copy."""
        return memoryview((ctypes.c_ubyte * self.nbytes).from_address(self.start)).cast("B")

    def equals(self, address: int) -> bool:
        """Whether the argument's bytes are those at ``address``."""
        return this_system().same_bytes(self.start, address, self.nbytes)

    def first_difference(self, address: int) -> int:
        """Return the first byte that is not as at ``address``; -1 where all are."""
        block = 1 << 20
        for start in range(0, self.nbytes, block):
            size = min(block, self.nbytes - start)
            mine = ctypes.string_at(self.start + start, size)
            other = ctypes.string_at(address + start, size)
            if mine != other:
                return start + next(i for i in range(size) if mine[i] != other[i])
        return -1

    def margin_damage(self) -> int | None:
        """Return where the pattern beside the argument was overwritten.

        The figure is a distance in bytes: positive past the end, negative before the start;
        None where it is whole.
        """
        first = self.base + GUARD
        before = self.start - first
        for address, size in (
            (first, before),
            (self.start + self.nbytes, self.usable - before - self.nbytes),
        ):
            content = ctypes.string_at(address, size)
            for offset, byte in enumerate(content):
                if byte != MARGIN:
                    end = self.start + self.nbytes
                    at = address + offset
                    return at - end if at >= end else at - self.start
        return None
