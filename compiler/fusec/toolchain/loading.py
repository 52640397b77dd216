"""Load what was built: a shared object is mapped once a process, if it is what the store wrote."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusec.cache import MANIFEST
from fusec.errors import LoadError
from fusec.systems import this_system

# Every loaded library by device and inode: a mapping keeps its inode from being used again.
_loaded: dict[tuple[int, int], ctypes.CDLL] = {}
_load_lock = threading.Lock()


def load(
    path: Path,
    symbol: str,
    *,
    argtypes: Sequence[Any] | None = None,
    restype: Any = ctypes.c_int,
) -> Any:
    """Load a shared object, once a process, and return one of its functions.

    Args:
        path: A path that ``build`` returned.
        symbol: The function's name.
        argtypes: ctypes of its parameters, as ctypes wants them; unchecked if None.
        restype: ctype of its result; None for void.

    Raises:
        LoadError: The file is not what was stored, cannot be mapped, or lacks the function.
    """
    # torch first: a kernel takes the OpenMP runtime that is already there.
    import torch  # noqa: F401

    library = load_library(path)
    try:
        # Indexing gives a new function object: its types are this caller's own.
        function = library[symbol]
    except AttributeError:
        raise LoadError(
            f"the kernel has no function {symbol!r}",
            f'declare it as: extern "C" int {symbol}(...)',
        ) from None
    function.restype = restype
    if argtypes is not None:
        function.argtypes = list(argtypes)
    return function


def load_library(path: Path) -> ctypes.CDLL:
    """Map a shared object whose file is this user's and is what the store wrote."""
    try:
        descriptor = os.open(path, this_system().read_flags)
    except OSError as error:
        raise LoadError(f"cannot open {path.name}: {error.strerror}", "build it again") from None
    with os.fdopen(descriptor, "rb") as file, _load_lock:
        status = os.fstat(file.fileno())
        identity = (status.st_dev, status.st_ino)
        if identity in _loaded:
            return _loaded[identity]
        if not stat.S_ISREG(status.st_mode) or not this_system().is_own(status):
            raise LoadError(f"{path.name} is not a regular file of this user")
        recorded = recorded_hash(path)
        if recorded and hashlib.file_digest(file, "sha256").hexdigest() != recorded:
            raise LoadError(f"{path.name} is not what was stored", "build it again")
        try:
            library = this_system().load_library(path, file.fileno())
        except OSError as error:
            raise LoadError(f"cannot load {path.name}: {error}") from None
        _loaded[identity] = library
        return library


def recorded_hash(path: Path) -> str:
    """Return what the manifest beside a stored file says its hash is; empty if there is none."""
    try:
        manifest = json.loads((path.parent / MANIFEST).read_bytes())
        return str(manifest["files"][path.name]["sha256"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"cannot check {path.name}: {error}", "build it again") from None


__all__ = ["load", "load_library"]
