"""Disks and folders that fail while they are in use."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from faults.user import Seen, activation, fuse, inputs, keep_edit, normal

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@contextlib.contextmanager
def failing(code: int, *folders: Path) -> Iterator[None]:
    """Let whatever writes below some folders fail, in this process."""

    def below(path: Any) -> bool:
        if not isinstance(path, str | os.PathLike):
            return False
        there = Path(os.path.abspath(os.fspath(path)))
        return any(there == folder or folder in there.parents for folder in folders)

    def wrap(original: Callable[..., Any], writes: Callable[..., bool]) -> Callable[..., Any]:
        def checked(path: Any, *args: Any, **kwargs: Any) -> Any:
            if below(path) and writes(*args, **kwargs):
                raise OSError(code, os.strerror(code), os.fspath(path))
            return original(path, *args, **kwargs)

        return checked

    def opens(flags: int = 0, *_: Any, **__: Any) -> bool:
        return bool(flags & _WRITES)

    def mode(mode: str = "r", *_: Any, **__: Any) -> bool:
        return any(letter in mode for letter in "wax+")

    def always(*_: Any, **__: Any) -> bool:
        return True

    with contextlib.ExitStack() as stack:
        for owner, name, writes in (
            (os, "open", opens),
            (io, "open", mode),
            (os, "mkdir", always),
            (os, "rename", always),
            (os, "replace", always),
            (os, "symlink", always),
        ):
            made = wrap(getattr(owner, name), writes)
            stack.enter_context(mock.patch.object(owner, name, made))
        stack.enter_context(mock.patch("builtins.open", io.open))
        yield


def _cache() -> Path:
    return Path(os.environ["FUSEC_CACHE_DIR"])


def full_disk(seen: Seen) -> None:
    """Nothing can be added to the cache any more."""
    compiled = seen.fuse(activation, *inputs())
    with failing(errno.ENOSPC, _cache()):
        seen.fuse(normal, *inputs())
        keep_edit(seen, compiled)


def read_only_disk(seen: Seen) -> None:
    """The cache can be read, and not written."""
    with failing(errno.EROFS, _cache()):
        fuse(seen)


def full_everywhere(seen: Seen) -> None:
    """Neither the cache nor temporary files can be written."""
    kept = seen.fuse(activation, *inputs())
    with failing(errno.ENOSPC, _cache(), Path(tempfile.gettempdir())):
        seen.fuse(normal, *inputs())
        seen.same(kept(*inputs()), activation(*inputs()))


def deleted_cache(seen: Seen) -> None:
    """The cache is deleted between two cells."""
    compiled = seen.fuse(activation, *inputs())
    shutil.rmtree(_cache())
    seen.same(compiled(*inputs()), activation(*inputs()))
    seen.fuse(normal, *inputs())
    shutil.rmtree(_cache(), ignore_errors=True)
    keep_edit(seen, compiled)


def deleted_tmp(seen: Seen) -> None:
    """The folder for temporary files is deleted between two cells, as cleaners do."""
    compiled = seen.fuse(activation, *inputs())
    shutil.rmtree(tempfile.gettempdir())
    seen.fuse(normal, *inputs())
    keep_edit(seen, compiled)


def deleted_folder(seen: Seen) -> None:
    """The working folder is deleted between two cells."""
    seen.fuse(normal, *inputs())
    os.rmdir(os.getcwd())
    compiled = seen.fuse(activation, *inputs())
    keep_edit(seen, compiled)


def compiler_goes(seen: Seen) -> None:
    """The compiler is uninstalled between two cells."""
    seen.fuse(activation, *inputs())
    os.unlink(os.environ["CXX"])
    seen.fuse(normal, *inputs())


__all__ = [
    "compiler_goes",
    "deleted_cache",
    "deleted_folder",
    "deleted_tmp",
    "full_disk",
    "full_everywhere",
    "read_only_disk",
]
