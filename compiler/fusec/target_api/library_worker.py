"""A function of a shared library in the process that is thrown away: see ``verify.child``."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusec.errors import LoadError
from fusec.systems import this_system
from fusec.target_api.worker import Placed


class LibraryCandidate:
    """The entry point of a built library."""

    def __init__(self, library: str, entry: str) -> None:
        try:
            self._function: Any = ctypes.CDLL(library)[entry]
        except (OSError, AttributeError) as error:
            raise LoadError(str(error)) from error
        self._function.restype = ctypes.c_int

    def bound(
        self, arguments: Sequence[Placed], sizes: Sequence[int], threads: int
    ) -> Callable[[], int]:
        """Return a call with these arguments that costs no more than it has to."""
        pointers = [ctypes.c_void_p(argument.address) for argument in arguments]
        numbers = [ctypes.c_int64(size) for size in (*sizes, threads)]
        return functools.partial(self._function, *pointers, *numbers)

    def __call__(self, arguments: Sequence[Placed], sizes: Sequence[int], threads: int) -> int:
        """Run once; return its status."""
        pointers = [ctypes.c_void_p(argument.address) for argument in arguments]
        numbers = [ctypes.c_int64(size) for size in (*sizes, threads)]
        return int(self._function(*pointers, *numbers))

    def writes_above(self, arguments: Sequence[Placed], sizes: Sequence[int], threads: int) -> bool:
        """Run once on a stack of its own; return whether it wrote into its caller's part."""
        address = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        numbers = [*(argument.address for argument in arguments), *sizes, threads]
        return bool(this_system().writes_above(address, numbers))

    def refused(self, error: Exception) -> Mapping[str, Any]:
        """Return nothing: it has been compiled before."""
        return {}


def prepare(request: Mapping[str, Any]) -> LibraryCandidate:
    """Load the library that a request names."""
    return LibraryCandidate(request["library"], request["entry"])


__all__ = ["LibraryCandidate", "prepare"]
