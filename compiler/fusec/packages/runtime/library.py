"""Loading a package's binary from memory: no file lies where somebody else could change it."""

from __future__ import annotations

import ctypes
import itertools
import os
import tempfile
from collections.abc import Sequence
from typing import Any

from .errors import CannotRun

_POINTERS = ctypes.POINTER(ctypes.c_void_p)
_SIZES = ctypes.POINTER(ctypes.c_int64)


class Library:
    """A binary that was mapped.

    Args:
        data: The shared object, which has been compared with its hash.
        name: For messages.

    Raises:
        CannotRun: This system cannot map it.
    """

    def __init__(self, data: memoryview, name: str) -> None:
        self._name = name
        try:
            self._library = _map(data)
        except OSError as error:
            raise CannotRun(
                f"{name} cannot be loaded here: {error}", "package it on a machine like this one"
            ) from None

    def function(self, name: str) -> Any:
        """Return what runs steps: pointers, sizes, scratch memory, threads to a status."""
        found = self._symbol(name)
        found.restype = ctypes.c_int64
        found.argtypes = [_POINTERS, _SIZES, ctypes.c_void_p, ctypes.c_int64]
        return found

    def scratch(self, name: str, sizes: Sequence[int]) -> int:
        """Return the bytes of scratch memory that ``name`` needs with these sizes."""
        found = self._symbol(f"{name}_scratch")
        found.restype = ctypes.c_int64
        found.argtypes = [_SIZES]
        return int(found((ctypes.c_int64 * max(len(sizes), 1))(*sizes)))

    def _symbol(self, name: str) -> Any:
        try:
            return self._library[name]
        except AttributeError:
            raise CannotRun(f"{self._name} has no function {name}") from None


# glibc takes a library of the same path for the same library: each one has a path of its own.
_numbers = itertools.count()


def _map(data: memoryview) -> ctypes.CDLL:
    name = f"{os.getpid()}-{next(_numbers)}.so"
    with tempfile.TemporaryDirectory(prefix="fuse-") as folder:  # nobody else may enter it
        path = os.path.join(folder, name)
        if not hasattr(os, "memfd_create"):
            with open(path, "xb") as file:
                file.write(data)
            return ctypes.CDLL(path)
        # The file itself has no name, and lies in no folder from which nothing may be run.
        descriptor = os.memfd_create("fuse", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(data)
            os.symlink(f"/proc/self/fd/{descriptor}", path)
            return ctypes.CDLL(path)
        finally:
            os.close(descriptor)


__all__ = ["Library"]
