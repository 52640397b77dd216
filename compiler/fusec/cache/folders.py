"""Folders of the store, and temporary ones: whether they may be used, and what is in them."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from fusec.systems import this_system


def default_folder() -> Path:
    """Return where the store belongs: ``FUSEC_CACHE_DIR``, or the user's cache folder."""
    chosen = os.environ.get("FUSEC_CACHE_DIR")
    return Path(chosen).absolute() if chosen else Path(platformdirs.user_cache_dir("fusec"))


def prepare_folder(folder: Path) -> str | None:
    """Make the folder if need be; return what is wrong with it, or None if it may be used."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        return f"cannot use {folder}: {error.strerror or error}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a real folder"
    if not this_system().is_own(status):
        return f"{folder} belongs to another user"
    if this_system().others_write(status):
        return f"{folder} can be written by other users"
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return f"{folder} cannot be written"
    return None


def temporary_folder() -> str:
    """Make a folder for temporary files; who asks removes it.

    Python looks once a process where such files belong, and cleaners delete that folder, too.
    """
    try:
        return tempfile.mkdtemp(prefix="fusec-")
    except FileNotFoundError:
        os.makedirs(tempfile.gettempdir(), mode=0o700, exist_ok=True)
        return tempfile.mkdtemp(prefix="fusec-")


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """Yield a folder that is removed afterwards."""
    folder = temporary_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def listing(folder: Path) -> list[Path]:
    """Return a folder's contents, or nothing where it cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def folder_size(folder: Path) -> int:
    """Return the bytes in an entry's files."""
    total = 0
    for path in listing(folder):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def modified(path: Path) -> float:
    """Return the time of last change, or 0 for what is gone."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def remove_if_own(folder: Path, process: int) -> None:
    """Remove a temporary folder at exit, except in a forked child, whose parent still uses it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
