"""The store: entries by kind and key in one folder, shared by threads and processes."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import os
import re
import shutil
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from fusec.cache.entry import (
    MANIFEST,
    SCHEMA,
    DamagedEntryError,
    Entry,
    canonical_json,
    check_name,
    digest_of,
    read_entry,
    write_file,
)
from fusec.cache.folders import (
    default_folder,
    folder_size,
    listing,
    modified,
    prepare_folder,
    remove_if_own,
    temporary_folder,
)
from fusec.errors import FusecError

DEFAULT_LIMIT = 2 << 30
# How often a process looks at the size of the whole store: at its first write, then each so many.
EVICT_EVERY = 64
# An unfinished write older than this is left over from a process that died.
STALE_SECONDS = 3600.0
QUARANTINE = ".quarantine"
LOCKS = ".locks"
KEPT_IN_QUARANTINE = 16
# A lock that another process holds is asked for so often.
_LOCK_SECONDS = 0.05
_DIGEST = re.compile(r"[0-9a-f]{64}")
# What reading an entry raises that is not as it was written.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, DamagedEntryError)


class BadSize(FusecError, ValueError):
    """What is no number of bytes to stay under."""

    def __init__(self, size: object) -> None:
        super().__init__(
            f"a cache cannot be pruned to {size!r}",
            "give a number of bytes, 0 or more: prune(500 << 20) leaves at most 500 MiB",
        )


@dataclass(frozen=True)
class StoreInfo:
    """What a store holds.

    Attributes:
        folder: Where it is.
        private: Whether it is the temporary folder that ends with the process.
        entries: Number of entries of each kind.
        size: Bytes in all.
        limit: Bytes beyond which the least recently used entries are removed.
    """

    folder: Path
    private: bool
    entries: Mapping[str, int]
    size: int
    limit: int


@dataclass(frozen=True)
class Stored:
    """An entry as it lies in the folder, unread.

    Attributes:
        kind: Its namespace.
        digest: Its name.
        size: Bytes.
        used: When it was used last, in seconds since the epoch.
    """

    kind: str
    digest: str
    size: int
    used: float


_watchers: list[Callable[[Entry], object]] = []


def watch_uses(tell: Callable[[Entry], object]) -> None:
    """Have somebody told of every entry that is found or stored, in any store of this process."""
    _watchers.append(tell)


class CacheStore:
    """A store in one folder. Safe to share between threads and between processes.

    Args:
        folder: Where; the user's cache folder if None.
        limit: Bytes to stay under; the least recently used entries go first.
    """

    def __init__(self, folder: Path | None = None, *, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self.private = False
        self._lock = threading.Lock()
        self._puts = itertools.count()
        self._notice = ""
        self.folder = folder if folder is not None else default_folder()
        problem = prepare_folder(self.folder)
        if problem is not None:
            self._become_private(problem)

    def get(self, kind: str, key: Mapping[str, Any]) -> Entry | None:
        """Return the entry for ``key`` with every file checked, or None. Never raises OSError."""
        self.give_notice()
        digest = digest_of(kind, key)
        folder = self.folder / kind / digest
        try:
            entry = read_entry(folder, kind, digest)
        except FileNotFoundError:
            # No folder is a plain miss; a folder that lacks a file is damage.
            if folder.is_dir():
                self._quarantine(folder)
            return None
        except _DAMAGE:
            self._quarantine(folder)
            return None
        # The time of last use, for eviction; a store that cannot be written still reads.
        with contextlib.suppress(OSError):
            os.utime(folder)
        for tell in _watchers:
            tell(entry)
        return entry

    def put(self, kind: str, key: Mapping[str, Any], files: Mapping[str, bytes | Path]) -> Entry:
        """Store files under a key and return the entry.

        Where another process stored the same key first, its entry is the one returned.

        Args:
            kind: The namespace: a plain name, not a path.
            key: What the files depend on; JSON values only.
            files: Contents, or paths of files to copy, by plain file name.
        """
        check_name(kind)
        contents = {}
        for name, data in files.items():
            check_name(name)
            contents[name] = data.read_bytes() if isinstance(data, Path) else data
        try:
            entry = self._put(kind, key, contents)
        except OSError as error:
            # A folder that somebody deleted is made again; with any other trouble it is left.
            if self.folder.exists() or prepare_folder(self.folder) is not None:
                if self.private:
                    raise
                self._become_private(f"cannot write to {self.folder}: {error.strerror or error}")
            entry = self._put(kind, key, contents)
        if next(self._puts) % EVICT_EVERY == 0:
            self._evict(keep=entry.folder)
        for tell in _watchers:
            tell(entry)
        return entry

    @contextlib.contextmanager
    def lock(
        self,
        kind: str,
        key: Mapping[str, Any],
        *,
        timeout: float = 60.0,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[None]:
        """Hold a lock on a key, so that two processes do not build the same thing at once.

        It only saves work: where it cannot be had in time, or at all, the body runs without it.

        Args:
            kind: The namespace.
            key: The key.
            timeout: Seconds to wait for it.
            stopped: Whether nobody wants it any more; asked while it is waited for.
        """
        path = self.folder / LOCKS / f"{digest_of(kind, key)}.lock"
        lock = filelock.FileLock(path, timeout=0)
        end = time.monotonic() + timeout
        held = False
        with contextlib.suppress(OSError, NotImplementedError):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            while not held:
                try:
                    lock.acquire()
                    held = True
                except filelock.Timeout:
                    if stopped() or time.monotonic() > end:
                        break
                    time.sleep(_LOCK_SECONDS)
        try:
            yield
        finally:
            if held:
                with contextlib.suppress(OSError):
                    lock.release()

    def give_notice(self) -> None:
        """Warn of a folder that cannot be used, once, and only from the main thread.

        Nothing else may print; what a background thread finds is said at the next call.
        """
        if self._notice and threading.current_thread() is threading.main_thread():
            notice, self._notice = self._notice, ""
            warnings.warn(notice, RuntimeWarning, stacklevel=3)

    def info(self) -> StoreInfo:
        """Count what the store holds."""
        counts: dict[str, int] = {}
        total = 0
        for folder in self._entry_folders():
            counts[folder.parent.name] = counts.get(folder.parent.name, 0) + 1
            total += folder_size(folder)
        return StoreInfo(self.folder, self.private, counts, total, self.limit)

    def clear(self, kind: str | None = None) -> int:
        """Remove every entry, or every entry of one kind; return how many were removed.

        Kernels that are loaded stay usable: a mapped file outlives its name.
        """
        removed = 0
        for folder in list(self._entry_folders()):
            if kind is None or folder.parent.name == kind:
                removed += self._remove(folder)
        if kind is None:
            for name in (QUARANTINE, LOCKS):
                shutil.rmtree(self.folder / name, ignore_errors=True)
        return removed

    def stored(self) -> tuple[Stored, ...]:
        """Return what the store holds, the entry used last first, without reading any."""
        found = [
            Stored(folder.parent.name, folder.name, folder_size(folder), modified(folder))
            for folder in self._entry_folders()
        ]
        return tuple(sorted(found, key=lambda each: -each.used))

    def prune(self, size: int, *, keep: Path | None = None) -> int:
        """Remove the least recently used entries beyond a size; return how many were removed.

        Args:
            size: Bytes to stay under.
            keep: The folder of an entry that stays.

        Raises:
            BadSize: It is not a number of bytes.
        """
        if isinstance(size, bool) or not isinstance(size, (int, float)) or not size >= 0:
            raise BadSize(size)
        found = self.stored()
        total, removed = sum(each.size for each in found), 0
        for each in reversed(found):
            if total <= size:
                break
            folder = self.folder / each.kind / each.digest
            if folder != keep and self._remove(folder):
                total -= each.size
                removed += 1
        return removed

    def remove(self, entry: Entry) -> bool:
        """Remove an entry; return whether it was there."""
        return self._remove(entry.folder)

    def verify(self) -> tuple[str, ...]:
        """Check every entry, move damaged ones aside, and say what was wrong with each."""
        problems = []
        for folder in list(self._entry_folders()):
            if not _DIGEST.fullmatch(folder.name):
                continue  # of another compiler, which keeps here what it made: Triton's own
            try:
                read_entry(folder, folder.parent.name, folder.name)
            except FileNotFoundError as error:
                # Removed by another process in the meantime, or incomplete.
                if folder.is_dir():
                    problems.append(f"{folder.parent.name}/{folder.name}: {error}")
                    self._quarantine(folder)
            except _DAMAGE as error:
                problems.append(f"{folder.parent.name}/{folder.name}: {error}")
                self._quarantine(folder)
        return tuple(problems)

    # --- internals ---------------------------------------------------------------------------

    def _put(self, kind: str, key: Mapping[str, Any], contents: Mapping[str, bytes]) -> Entry:
        digest = digest_of(kind, key)
        parent = self.folder / kind
        parent.mkdir(mode=0o700, exist_ok=True)
        target = parent / digest
        staging = parent / f".{uuid.uuid4().hex}.tmp"
        staging.mkdir(mode=0o700)
        try:
            manifest = {
                "schema": SCHEMA,
                "kind": kind,
                "key": dict(key),
                "created": time.time(),
                "files": {
                    name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                    for name, data in contents.items()
                },
            }
            for name, data in contents.items():
                write_file(staging / name, data)
            write_file(staging / MANIFEST, canonical_json(manifest).encode())
            for _ in range(2):
                try:
                    staging.rename(target)
                except OSError:
                    if not target.is_dir():
                        raise
                    # Someone was faster. Their entry counts if it is whole; `get` moves it
                    # out of the way if it is not.
                    entry = self.get(kind, key)
                    if entry is not None:
                        return entry
                else:
                    return read_entry(target, kind, digest)
            raise FileExistsError(f"{target} can neither be used nor replaced")
        except DamagedEntryError as error:
            raise OSError(str(error)) from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _become_private(self, problem: str) -> None:
        """Go on in a temporary folder, and say so once."""
        with self._lock:
            if self.private:
                return
            self.folder = Path(temporary_folder())
            self.private = True
            atexit.register(remove_if_own, self.folder, os.getpid())
            self._notice = (
                f"fusec cache: {problem}; using a temporary folder, so nothing is kept when this "
                "process ends. Set FUSEC_CACHE_DIR to a folder of your own to keep it."
            )
        self.give_notice()

    def _quarantine(self, folder: Path) -> None:
        """Move a damaged entry aside; if that fails, leave it: it stays a miss."""
        with contextlib.suppress(OSError):
            place = self.folder / QUARANTINE
            place.mkdir(mode=0o700, exist_ok=True)
            folder.rename(place / f"{folder.name}.{uuid.uuid4().hex}")
            kept = sorted(place.iterdir(), key=modified)
            for old in kept[:-KEPT_IN_QUARANTINE]:
                shutil.rmtree(old, ignore_errors=True)

    def _remove(self, folder: Path) -> bool:
        # Renamed first, so that no reader ever sees half an entry.
        try:
            doomed = folder.parent / f".{uuid.uuid4().hex}.tmp"
            folder.rename(doomed)
        except OSError:
            return False
        shutil.rmtree(doomed, ignore_errors=True)
        return True

    def _entry_folders(self) -> Iterator[Path]:
        for kind in listing(self.folder):
            if not kind.name.startswith(".") and kind.is_dir():
                for folder in listing(kind):
                    if not folder.name.startswith("."):
                        yield folder

    def _evict(self, keep: Path) -> None:
        """Remove what dead processes left, then the least recently used beyond the limit."""
        for kind in listing(self.folder):
            for folder in listing(kind) if kind.is_dir() else []:
                stale = time.time() - modified(folder) > STALE_SECONDS
                if folder.name.startswith(".") and folder.name.endswith(".tmp") and stale:
                    shutil.rmtree(folder, ignore_errors=True)
        for lock in listing(self.folder / LOCKS):
            if time.time() - modified(lock) > STALE_SECONDS:
                with contextlib.suppress(OSError):
                    lock.unlink()
        if sum(map(folder_size, self._entry_folders())) > self.limit:
            # Some way below the limit, so that the next write does not have to do it again.
            self.prune(self.limit * 4 // 5, keep=keep)


_stores: dict[Path, CacheStore] = {}
_stores_lock = threading.Lock()


def default_store() -> CacheStore:
    """Return this process's store for the folder that the environment names now."""
    folder = default_folder()
    with _stores_lock:
        if folder not in _stores:
            _stores[folder] = CacheStore(folder)
        return _stores[folder]
