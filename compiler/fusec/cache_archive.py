"""The store in one file, for another machine of the same kind.

A ZIP archive: ``fusec-cache.json`` names the machine and every file with its size and hash; the
files follow, uncompressed.  Nothing of the archive says where a file goes: an entry is stored anew
under its own key.  Its kernels are machine code, which runs when a program asks for it: import
archives of people whose programs you would run.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusec.cache import (
    MANIFEST,
    SCHEMA,
    CacheStore,
    DamagedEntryError,
    check_name,
    default_store,
    digest_of,
    read_entry,
)
from fusec.errors import FusecError
from fusec.machine import features, gpus_here, this_machine
from fusec.target_api.base import PythonTarget
from fusec.target_api.registry import all_targets
from fusec.version import __version__

HEADER = "fusec-cache.json"
MOST_HEADER_BYTES = 64 << 20
MOST_FILES = 1 << 20
_PRECOMPILED = "ahead"  # calls that need no capture: kept for one model of processor alone
_CHOSEN_FOR = {
    "model": "{}",
    "cores": "{} processors",
    "last cache": "{} bytes of last cache",
}
_CODE = "-code"  # of a target's kernels, which its own compiler keeps outside of the store


class BadArchive(FusecError, ValueError):
    """An archive that is damaged, or was made by something else."""


class OtherMachine(FusecError):
    """An archive of a machine whose kernels this one cannot run, or would not ask for."""


class NoArchive(FusecError, FileNotFoundError):
    """There is no such file."""


class NotWritten(FusecError, OSError):
    """An archive that cannot be written where it was asked for."""


@dataclass(frozen=True)
class Moved:
    """What was written or taken in.

    Attributes:
        entries: How many entries of each kind.
        size: Bytes of their files.
        known: How many entries were there already.
    """

    entries: Mapping[str, int]
    size: int
    known: int = 0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} of {kind}" for kind, count in sorted(self.entries.items()))
        there = f"; {self.known} were there already" if self.known else ""
        return f"{kinds or 'nothing'}, {self.size} bytes{there}"


def machine_facts() -> dict[str, Any]:
    """Return what a machine must have in common with another one to run its kernels.

    Of what is precompiled that is more: its kernels were chosen for a processor's model.
    """
    here = this_machine()
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "features": sorted(features()),
        "model": here.processor,
        "cores": here.cores,
        "last cache": here.last_cache,
    }


def export_cache(
    path: str | os.PathLike[str],
    kinds: str | Iterable[str] | None = None,
    store: CacheStore | None = None,
) -> Moved:
    """Write the store's entries to a file; damaged ones are left out.

    Args:
        path: The file; it is written as a whole or not at all.
        kinds: Namespaces to write, or the one; None for all.
        store: Which store; the process's own by default.

    Raises:
        NotWritten: The file cannot be written.
    """
    if Path(path).is_dir():
        raise NotWritten(f"{path} is a folder", "name the file that the cache is written to")
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    store, wanted = store or default_store(), None if kinds is None else frozenset(kinds)
    entries: dict[str, Any] = {}
    counts: dict[str, int] = {}
    files: list[tuple[str, bytes]] = []
    gpus: set[str] = set()
    for each in store.stored():
        if wanted is not None and each.kind not in wanted:
            continue
        try:
            entry = read_entry(store.folder / each.kind / each.digest, each.kind, each.digest)
            contents = {name: entry.read_bytes(name) for name in entry.files}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, DamagedEntryError):
            continue  # gone, or damaged
        records = {n: {"size": len(d), "sha256": _hash(d)} for n, d in contents.items()}
        name = f"{each.kind}/{each.digest}"
        entries[name] = {"kind": each.kind, "key": dict(entry.key), "files": records}
        counts[each.kind] = counts.get(each.kind, 0) + 1
        files += [(f"{name}/{file}", data) for file, data in contents.items()]
    for carrier in _carriers():
        kind = carrier.name + _CODE
        if wanted is not None and kind not in wanted:
            continue
        for own, code in carrier.compiled_for(store.folder / carrier.name):
            key = {"name": own}
            name = f"{kind}/{digest_of(kind, key)}"
            records = {n: {"size": len(d), "sha256": _hash(d)} for n, d in code.items()}
            entries[name] = {"kind": kind, "key": key, "files": records}
            counts[kind] = counts.get(kind, 0) + 1
            files += [(f"{name}/{file}", data) for file, data in code.items()]
            gpus.add(carrier.architecture(code))
    header = {
        "format": "fusec cache",
        "schema": SCHEMA,
        "fusec": __version__,
        "machine": machine_facts(),
        "gpus": sorted(gpus - {""}),
        "entries": entries,
    }
    target = Path(path)
    try:
        descriptor, staged = tempfile.mkstemp(dir=target.parent or ".", suffix=".tmp")
    except OSError as error:  # it names the user's file, not ours
        raise NotWritten(f"{target} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            archive.writestr(HEADER, json.dumps(header))
            for name, data in files:
                archive.writestr(name, data)
        os.replace(staged, target)
    except OSError as error:
        os.unlink(staged)
        raise NotWritten(f"{target} cannot be written: {error.strerror or error}") from None
    except BaseException:
        os.unlink(staged)
        raise
    return Moved(counts, sum(len(data) for _, data in files))


def import_cache(path: str | os.PathLike[str], store: CacheStore | None = None) -> Moved:
    """Take in what another machine of the same kind exported.

    Args:
        path: The file.
        store: Where to; the process's own store by default.

    Raises:
        NoArchive: There is no such file.
        OtherMachine: It was made where kernels are other ones; the message says what differs.
        BadArchive: It is damaged, or no such archive. What came before the damage is taken in.
    """
    store = store or default_store()
    counts: dict[str, int] = {}
    size = known = 0
    try:
        with zipfile.ZipFile(path) as archive:
            header = _header(archive)
            _refuse_other_machines(header)
            for name, entry in header["entries"].items():
                kind, key = entry["kind"], entry["key"]
                contents = _contents(archive, name, entry)
                if name != f"{kind}/{digest_of(kind, key)}":
                    raise BadArchive(f"{name} is not the entry that its key says")
                if not _taken_in(store, kind, key, contents):
                    known += 1
                    continue
                counts[kind] = counts.get(kind, 0) + 1
                size += sum(map(len, contents.values()))
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise BadArchive(f"{path} is damaged: {error}") from None
    except FileNotFoundError:
        raise NoArchive(
            f"there is no file {os.fspath(path)!r}", "fusec.export_cache(path) writes such a file"
        ) from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # which a damaged list of files leads to: a place below 0
            raise
        raise BadArchive(f"{path} is damaged: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, FusecError):
            raise
        raise BadArchive(f"{path} is not a cache that fusec exported: {error}") from None
    return Moved(counts, size, known)


def _taken_in(
    store: CacheStore, kind: str, key: Mapping[str, Any], contents: Mapping[str, bytes]
) -> bool:
    """Put an entry where it belongs; whether it was not there yet."""
    for carrier in _carriers():
        if kind == carrier.name + _CODE:
            return carrier.take_in(key["name"], contents)
    if store.get(kind, key) is not None:
        return False
    store.put(kind, key, contents)
    return True


def _carriers() -> list[PythonTarget]:
    """Return the targets whose own compilers keep what they compiled."""
    return [target for target in all_targets() if isinstance(target, PythonTarget)]


def _header(archive: zipfile.ZipFile) -> Any:
    members = archive.infolist()
    if len(members) > MOST_FILES or len({m.filename for m in members}) != len(members):
        raise BadArchive("the archive names a file twice, or too many files")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise BadArchive(f"{member.filename} is compressed, which fusec never does")
    first = archive.getinfo(HEADER)
    if first.file_size > MOST_HEADER_BYTES:
        raise BadArchive("the list of files is too long")
    header = json.loads(archive.read(first))
    if header["format"] != "fusec cache" or header["schema"] != SCHEMA:
        raise BadArchive("another release of fusec wrote the archive", "export it again there")
    listed = {f"{name}/{f}" for name, e in header["entries"].items() for f in e["files"]}
    if listed | {HEADER} != {member.filename for member in members}:
        raise BadArchive("the archive holds other files than its list says")
    return header


def _refuse_other_machines(header: Any) -> None:
    made_on, here = header["machine"], machine_facts()
    for name in ("system", "processor"):
        if made_on[name] != here[name]:
            raise OtherMachine(f"it was made for {made_on[name]}, and this is {here[name]}")
    there, own = set(made_on["features"]), set(here["features"])
    if there != own:
        lacks, more = sorted(there - own), sorted(own - there)
        parts = [f"this one lacks {', '.join(lacks[:8])}"] if lacks else []
        parts += [f"this one has {', '.join(more[:8])} as well"] if more else []
        raise OtherMachine(
            f"it was made for another processor: {'; '.join(parts)}",
            "kernels are compiled for one processor: precompile here",
        )
    kinds = {entry["kind"] for entry in header["entries"].values()}
    if _PRECOMPILED in kinds:
        for name, what in _CHOSEN_FOR.items():
            if made_on[name] != here[name]:
                raise OtherMachine(
                    f"what is precompiled in it was made for {what.format(made_on[name])}, and this"
                    f" machine has {what.format(here[name])}",
                    "precompile here, or leave that out where the archive is written:"
                    " fusec.export_cache(path, kinds=('cpp', 'tuning'))",
                )
    # Without a GPU they are of no use, and in nobody's way.
    made_for, gpus = sorted(map(str, header["gpus"])), gpus_here() if header["gpus"] else ()
    if gpus and not set(made_for) & set(gpus):
        raise OtherMachine(
            f"it holds kernels compiled for {', '.join(made_for)}, and this machine has"
            f" {', '.join(gpus)}",
            "precompile here, or leave them out where the archive is written:"
            " fusec.export_cache(path, kinds=('cpp', 'tuning', 'ahead'))",
        )


def _contents(archive: zipfile.ZipFile, name: str, entry: Any) -> dict[str, bytes]:
    contents = {}
    check_name(entry["kind"])
    for each, record in entry["files"].items():
        check_name(each)
        member = archive.getinfo(f"{name}/{each}")
        if member.file_size != record["size"] or member.compress_size != record["size"]:
            raise BadArchive(f"{name}/{each} has another size than the list says")
        data = archive.read(member)
        if _hash(data) != record["sha256"]:
            raise BadArchive(f"{name}/{each} is not what was written")
        contents[each] = data
    if MANIFEST in contents:
        raise BadArchive(f"{name} has a file that the store writes itself")
    return contents


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


__all__ = ["BadArchive", "Moved", "OtherMachine", "export_cache", "import_cache", "machine_facts"]
