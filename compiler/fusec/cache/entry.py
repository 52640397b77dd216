"""One entry of the store: a folder with a manifest, read as a whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusec.systems import this_system

SCHEMA = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class FileRecord:
    """Size and hash of one file, as the manifest states them."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Entry:
    """One entry that was read and checked.

    Attributes:
        kind: The namespace that it lives in, such as ``cpp`` or ``tuning``.
        digest: Its name: the hash of kind and key.
        folder: Where its files are.
        key: The key that it was stored under.
        files: What it holds.
        created: Seconds since the epoch.
    """

    kind: str
    digest: str
    folder: Path
    key: Mapping[str, Any]
    files: Mapping[str, FileRecord]
    created: float

    def path(self, name: str) -> Path:
        """Return the path of one of its files. Raises KeyError for a name that it has not."""
        self.files[name]
        return self.folder / name

    def read_bytes(self, name: str) -> bytes:
        """Return a file's contents."""
        return self.path(name).read_bytes()

    def read_text(self, name: str) -> str:
        """Return a file's contents as text."""
        return self.read_bytes(name).decode()


class DamagedEntryError(Exception):
    """An entry that is not as its manifest says; never leaves this module."""


def canonical_json(value: object) -> str:
    """Return JSON that is equal for equal values: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(kind: str, key: Mapping[str, Any]) -> str:
    """Return the name of the entry that holds ``key``."""
    text = canonical_json({"schema": SCHEMA, "kind": kind, "key": dict(key)})
    return hashlib.sha256(text.encode()).hexdigest()


def check_name(name: str) -> None:
    """Refuse a name that is not one plain path component, or that the store uses itself."""
    if not name or name.startswith(".") or "/" in name or "\0" in name or name == MANIFEST:
        raise ValueError(f"not a plain name: {name!r}")


def read_entry(folder: Path, kind: str, digest: str) -> Entry:
    """Read an entry and check everything that its manifest states."""
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise DamagedEntryError("not a folder")
    manifest = json.loads(read_own_file(folder / MANIFEST))
    if manifest["schema"] != SCHEMA or digest_of(manifest["kind"], manifest["key"]) != digest:
        raise DamagedEntryError("the manifest is of another entry")
    if manifest["kind"] != kind:
        raise DamagedEntryError("the entry is of another kind")
    files = {}
    for name, record in manifest["files"].items():
        check_name(name)
        data = read_own_file(folder / name)
        found = FileRecord(len(data), hashlib.sha256(data).hexdigest())
        if found != FileRecord(record["size"], record["sha256"]):
            raise DamagedEntryError(f"{name} is not what was written")
        files[name] = found
    return Entry(kind, digest, folder, manifest["key"], files, float(manifest["created"]))


def read_own_file(path: Path) -> bytes:
    """Read a regular file that belongs to this user; anything else is damage."""
    system = this_system()
    descriptor = os.open(path, system.read_flags | system.no_links)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not system.is_own(status):
            raise DamagedEntryError(f"{path.name} is not a regular file of this user")
        return file.read()


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and have it on the disk before the entry gets its name."""
    descriptor = os.open(path, this_system().create_flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
