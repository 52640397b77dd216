"""A function of a shared library in the process that is thrown away: see ``verify.child``."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusec.errors import LoadError
from fusec.systems import this_system
from fusec.target_api.worker import Placed


class LibraryCandidate:
    """The entry point of a built library."""

    def __init__(
        self, library: str, entry: str, load: Callable[[str], ctypes.CDLL] = ctypes.CDLL
    ) -> None:
        self._library, self._entry = library, entry
        try:
            self._function: Any = load(library)[entry]
        except (OSError, AttributeError) as error:
            raise LoadError(str(error)) from error
        self._function.restype = ctypes.c_int

    def again(self) -> LibraryCandidate:
        """Load a copy of the library, which lies elsewhere, if the system can do that.

        Raises:
            LoadError: It cannot be loaded.
            OSError: It cannot be copied.
        """
        copy = this_system().memory_file("fusec-again")
        try:
            content = Path(self._library).read_bytes()
            while content:
                content = content[os.write(copy, content) :]
            return LibraryCandidate(
                self._library,
                self._entry,
                lambda library: this_system().load_library(Path(library), copy),
            )
        finally:
            os.close(copy)

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
        numbers = [*(argument.address for argument in arguments), *sizes, threads]
        return bool(this_system().writes_above(self._address, numbers))

    def call_on(
        self,
        arguments: Sequence[Placed],
        sizes: Sequence[int],
        threads: int,
        stack: tuple[int, int],
    ) -> bool:
        """Run once on a stack that is given by address and size; false if that cannot be done."""
        numbers = [*(argument.address for argument in arguments), *sizes, threads]
        return this_system().call_on(self._address, numbers, stack)

    @property
    def _address(self) -> int:
        return ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def refused(self, error: Exception) -> Mapping[str, Any]:
        """Return nothing: it has been compiled before."""
        return {}


def prepare(request: Mapping[str, Any]) -> LibraryCandidate:
    """Load the library that a request names."""
    return LibraryCandidate(request["library"], request["entry"])


__all__ = ["LibraryCandidate", "prepare"]
