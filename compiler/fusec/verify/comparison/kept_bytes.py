"""How much is kept between checks, of all graphs together: a notebook has many."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol


class Holder(Protocol):
    """What keeps tensors for the next check of one graph."""

    @property
    def nbytes(self) -> int:
        """The size of what it keeps now; more than at first where figures were made since."""

    def forget(self) -> None:
        """Keep nothing."""


class KeptBytes:
    """A limit for many holders: those used longest ago let go of what they keep."""

    def __init__(self) -> None:
        self._holders: list[weakref.ref[Holder]] = []  # used last of all is the last
        self._lock = threading.Lock()

    def used(self, holder: Holder, most: int) -> None:
        """Note that a holder keeps something, and keep to the limit.

        Args:
            holder: It was used just now.
            most: Bytes of all holders together.
        """
        with self._lock:
            others = [each for each in self._holders if each() not in (None, holder)]
            self._holders = [*others, weakref.ref(holder)]
            left = most
            for each in reversed(self._holders):
                found = each()
                if found is None:
                    continue
                left -= found.nbytes
                if left < 0:
                    found.forget()  # and all that were used before it
            self._holders = [each for each in self._holders if _keeps(each())]

    @property
    def total(self) -> int:
        """Bytes that are kept now."""
        with self._lock:
            return sum(found.nbytes for each in self._holders if (found := each()) is not None)


def _keeps(holder: Holder | None) -> bool:
    return holder is not None and holder.nbytes > 0


__all__ = ["Holder", "KeptBytes"]
