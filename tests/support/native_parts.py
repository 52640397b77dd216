"""The native parts of a call, which take a compiler ten seconds: built once for many stores."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import filelock

# Names the folder in which `run.py` has them built for all of its processes.
FOLDER = "FUSELAB_NATIVE_PARTS"
KIND = "native"
_LOCK = "lock"
_SECONDS = 300.0  # the longest that somebody waits for them, who can build them as well


def build(folder: Path) -> None:
    """Build them into a store in a folder, which is locked meanwhile."""
    with filelock.FileLock(folder / _LOCK):
        os.environ["FUSEC_CACHE_DIR"] = str(folder)
        from fusec.call import native

        native.types(wait=True)
        native.device_types(build=True)


def take_shared(cache: Path) -> bool:
    """Copy what was built for all processes of this run into a store, once it is there.

    Returns:
        Whether there is anything.
    """
    folder = os.environ.get(FOLDER)
    if not folder:
        return False
    try:
        with filelock.FileLock(Path(folder, _LOCK), timeout=_SECONDS):
            return copy(Path(folder), cache)
    except filelock.Timeout:
        return False


def copy(store: Path, cache: Path) -> bool:
    """Copy them from one store to another that has none, so that no process builds them for it.

    Returns:
        Whether there is anything.
    """
    if not (store / KIND).is_dir() or (cache / KIND).exists():
        return False
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copytree(store / KIND, cache / KIND)
    return True


if __name__ == "__main__":
    build(Path(sys.argv[1]))
