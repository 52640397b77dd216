"""Content-addressed store on disk: built kernels, tuning records, edited texts.

An entry is a folder named by the SHA-256 of its kind and key.  It holds ``manifest.json``
(schema, key, each file's size and SHA-256, time of creation) and the files themselves; there is
no pickle anywhere.  It is written as a whole: built in a hidden folder beside the entries, then
renamed.  Reading never raises: whatever is wrong with an entry makes it a miss, and the entry
is moved aside (quarantined) so that the next build replaces it.

The folder is the user's cache folder for ``fusec``, or ``FUSEC_CACHE_DIR``.  It has to be a real
folder that belongs to this user and that nobody else can write to; where it is not, or cannot
be written, one warning says so and a private temporary folder is used until the process ends.
The hashes protect against damage, not against an attacker who can write to the folder: that is
what the check of owner and mode is for.
"""

from __future__ import annotations

from fusec.cache.entry import (
    MANIFEST,
    SCHEMA,
    DamagedEntryError,
    Entry,
    check_name,
    digest_of,
    read_entry,
)
from fusec.cache.folders import default_folder, prepare_folder, scratch, temporary_folder
from fusec.cache.store import (
    LOCKS,
    QUARANTINE,
    BadSize,
    CacheStore,
    Stored,
    StoreInfo,
    default_store,
    watch_uses,
)


def info() -> StoreInfo:
    """Count what this process's store holds."""
    return default_store().info()


def entries() -> tuple[Stored, ...]:
    """Return what this process's store holds, the entry used last first."""
    return default_store().stored()


def verify() -> tuple[str, ...]:
    """Check every entry; move damaged ones aside and say what was wrong with each."""
    return default_store().verify()


def prune(size: int) -> int:
    """Remove the least recently used entries beyond so many bytes; return how many.

    Raises:
        BadSize: It is not a number of bytes.
    """
    return default_store().prune(size)


def clear(kind: str | None = None) -> int:
    """Remove every entry, or those of one kind; return how many."""
    return default_store().clear(kind)


__all__ = [
    "LOCKS",
    "MANIFEST",
    "QUARANTINE",
    "SCHEMA",
    "BadSize",
    "CacheStore",
    "DamagedEntryError",
    "Entry",
    "StoreInfo",
    "Stored",
    "check_name",
    "clear",
    "default_folder",
    "default_store",
    "digest_of",
    "entries",
    "info",
    "prepare_folder",
    "prune",
    "read_entry",
    "scratch",
    "temporary_folder",
    "verify",
    "watch_uses",
]
