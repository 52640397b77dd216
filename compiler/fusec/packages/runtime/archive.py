"""The file: a zip archive of stored members, with one form for each contents.

Every byte is determined by the members: times are none, the order is the manifest's, and the data
of each begins at a multiple of 64. So the reader needs no zip library and has nothing to interpret:
it finds the manifest, whose hash the archive's comment holds, knows from it all names, sizes and
hashes, and then compares each header with the one that it would write. Whatever is otherwise
(a name twice, a path that leaves its folder, a member that is compressed, bytes between members or
after the end) is another file, and refused. Ordinary zip programs list and unpack it.

Nothing is unpacked: members are read into memory, each no larger than the file has bytes.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .errors import DamagedPackage, PackageError
from .json_text import Reader, canonical, parse

FORMAT = 3
MANIFEST = "manifest.json"
ALIGNMENT = 64
MOST_MEMBERS = 20_000
LARGEST_TEXT = 64 << 20  # of a member that is parsed
LARGEST_FILE = (1 << 32) - (1 << 20)  # what zip's plain form can hold
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*(/[a-z0-9_][a-z0-9_.-]*)*", re.ASCII)
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_PADDING = 0xD935  # the field by which others align members of archives, too
_COMMENT = re.compile(rb"fuse1 sha256=([0-9a-f]{64})", re.ASCII)
_COMMENT_LENGTH = len("fuse1 sha256=") + 64
_PIECE = 1 << 20


@dataclass(frozen=True)
class Member:
    """One file within the archive.

    Attributes:
        name: Its path: lower-case words, digits, ``_ . -``, with ``/`` between folders.
        size: Bytes.
        sha256: Of its contents.
    """

    name: str
    size: int
    sha256: str


def is_name(name: str) -> bool:
    """Whether a member may have a name: it stays within its folder on every system."""
    return len(name) <= 200 and _NAME.fullmatch(name) is not None and ".." not in name


# -- headers ----------------------------------------------------------------------------------


def _padding(offset: int, name: str) -> bytes:
    begin = offset + _LOCAL.size + len(name)
    length = -begin % ALIGNMENT
    if 0 < length < 4:  # a field has four bytes at least
        length += ALIGNMENT
    return struct.pack("<2H", _PADDING, length - 4) + bytes(length - 4) if length else b""


def _local(offset: int, name: str, size: int, crc: int) -> bytes:
    padding = _padding(offset, name)
    fields = (b"PK\3\4", 20, 0, 0, 0, 0x21, crc, size, size, len(name), len(padding))
    return _LOCAL.pack(*fields) + name.encode("ascii") + padding


def _central(offset: int, name: str, size: int, crc: int) -> bytes:
    fields = (b"PK\1\2", 0x0314, 20, 0, 0, 0, 0x21, crc, size, size, len(name))
    return _CENTRAL.pack(*fields, 0, 0, 0, 0, 0o100644 << 16, offset) + name.encode("ascii")


def _end(count: int, size: int, offset: int, manifest: str) -> bytes:
    comment = f"fuse1 sha256={manifest}".encode("ascii")
    return _END.pack(b"PK\5\6", 0, 0, count, count, size, offset, len(comment)) + comment


# -- writing ----------------------------------------------------------------------------------


def write_archive(path: Path, facts: Mapping[str, object], members: Mapping[str, bytes]) -> None:
    """Write an archive, whole or not at all.

    Args:
        path: Where.
        facts: What the manifest says beside the members; JSON.
        members: Contents by name, in order.

    Raises:
        PackageError: A name that no member may have, or too much for one file.
        OSError: It cannot be written.
    """
    for name in members:
        if not is_name(name) or name == MANIFEST:
            raise PackageError(f"no member of a package can be called {name!r}")
    if len(members) > MOST_MEMBERS:
        raise PackageError(f"{len(members)} members are more than a package holds")
    listed = [
        {"name": name, "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        for name, data in members.items()
    ]
    manifest = canonical({**facts, "format": FORMAT, "members": listed})
    total = sum(map(len, members.values())) + len(manifest)
    if total + (len(members) + 2) * 600 > LARGEST_FILE:
        raise PackageError(
            "all weights together are more than 4 GiB, which this file cannot hold",
            'ask for weights="reference": they become a file of their own',
        )
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("xb") as file:
            central = []
            for name, data in ((MANIFEST, manifest), *members.items()):
                offset, crc = file.tell(), zlib.crc32(data)
                file.write(_local(offset, name, len(data), crc))
                file.write(data)
                central.append(_central(offset, name, len(data), crc))
            start = file.tell()
            directory = b"".join(central)
            file.write(directory)
            digest = hashlib.sha256(manifest).hexdigest()
            file.write(_end(len(central), len(directory), start, digest))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


# -- reading ----------------------------------------------------------------------------------


class Archive:
    """An archive that was read and is sound.

    Attributes:
        manifest: What it says of itself.
        members: By name, in order; the manifest is none.
    """

    def __init__(self, manifest: Reader, members: Mapping[str, tuple[Member, memoryview]]) -> None:
        self.manifest = manifest
        self._members = members
        self.members = {name: member for name, (member, _) in members.items()}

    def data(self, name: str) -> memoryview:
        """Return a member's contents.

        Raises:
            DamagedPackage: There is no such member.
        """
        if name not in self._members:
            raise DamagedPackage(f"{name} is not in it")
        return self._members[name][1]

    def json(self, name: str) -> object:
        """Return a member's contents as JSON."""
        data = self.data(name)
        if len(data) > LARGEST_TEXT:
            raise DamagedPackage(f"{name} is too large to be read")
        return parse(bytes(data), name)


def read_archive(path: Path) -> Archive:
    """Read a file and check every byte of it.

    Raises:
        DamagedPackage: It is no package, or not as it was written.
        PackageError: It is not there, or of a later format.
    """
    try:
        with path.open("rb") as file:
            return _read(file)
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror or error}") from None


def read_bytes(data: bytes) -> Archive:
    """Read an archive that is in memory; as ``read_archive``."""
    return _read(io.BytesIO(data))


def _read(file: BinaryIO) -> Archive:
    length = file.seek(0, os.SEEK_END)
    tail = _END.size + _COMMENT_LENGTH
    if not tail + _LOCAL.size < length <= LARGEST_FILE:
        raise DamagedPackage(f"{length} bytes are not a package")
    file.seek(length - tail)
    end = file.read(tail)
    said = _COMMENT.fullmatch(end[_END.size :])
    if end[:4] != b"PK\5\6" or said is None:
        raise DamagedPackage("it does not end as packages do")
    digest = said[1].decode("ascii")
    file.seek(0)
    head = file.read(_LOCAL.size)
    size = _LOCAL.unpack(head)[8]
    if size > min(LARGEST_TEXT, length):
        raise DamagedPackage("its manifest is too large")
    padding = len(_padding(0, MANIFEST))
    rest = file.read(len(MANIFEST) + padding + size)
    text = rest[len(MANIFEST) + padding :]
    if hashlib.sha256(text).hexdigest() != digest:
        raise DamagedPackage("its manifest is not the one that was written")
    manifest = Reader(parse(text, MANIFEST), MANIFEST)
    found = manifest.number("format")
    if found != FORMAT:
        raise PackageError(
            f"the package has format {found}, this reads {FORMAT}",
            "install a later fuselab or fuselab-runtime" if found > FORMAT else "package it again",
        )
    listed = [_member(each) for each in manifest.readers("members")]
    if len({member.name for member in listed}) != len(listed) or len(listed) > MOST_MEMBERS:
        raise DamagedPackage("a name is there twice")
    if head + rest[: len(MANIFEST) + padding] != _local(0, MANIFEST, size, zlib.crc32(text)):
        raise DamagedPackage("its first header is not as it was written")
    central = [_central(0, MANIFEST, size, zlib.crc32(text))]
    members = {}
    for member in listed:
        offset = file.tell()
        if member.size > length - offset:
            raise DamagedPackage(f"{member.name} is longer than the file")
        header = file.read(len(_local(offset, member.name, member.size, 0)))
        data = _aligned(file, member.size)
        crc = _checked(member, data)
        if header != _local(offset, member.name, member.size, crc):
            raise DamagedPackage(f"the header of {member.name} is not as it was written")
        central.append(_central(offset, member.name, member.size, crc))
        members[member.name] = (member, data)
    start, directory = file.tell(), b"".join(central)
    wanted = directory + _end(len(central), len(directory), start, digest)
    if length - start != len(wanted) or file.read() != wanted:
        raise DamagedPackage("its directory is not as it was written")
    return Archive(manifest, members)


def _member(entry: Reader) -> Member:
    member = Member(entry.text("name"), entry.number("size", 0, LARGEST_FILE), entry.text("sha256"))
    if not is_name(member.name) or member.name == MANIFEST:
        raise DamagedPackage(f"{member.name[:80]!r} is not a name of a member")
    return member


def _aligned(file: BinaryIO, size: int) -> memoryview:
    """Read bytes into memory whose address is a multiple of 64, as kernels like it."""
    import ctypes

    memory = bytearray(size + ALIGNMENT)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start = -address % ALIGNMENT
    view = memoryview(memory)[start : start + size]
    done = 0
    while done < size:
        count = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise DamagedPackage("it ends too early")
        done += count
    return view.toreadonly()


def _checked(member: Member, data: memoryview) -> int:
    """Return the check sum that the zip headers hold; the hash must be the manifest's."""
    found, crc = hashlib.sha256(), 0
    for piece in _pieces(data):
        found.update(piece)
        crc = zlib.crc32(piece, crc)
    if found.hexdigest() != member.sha256:
        raise DamagedPackage(f"{member.name} is not as it was written")
    return crc


def _pieces(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]


def unpack(archive: Archive, folder: Path, names: Sequence[str] | None = None) -> None:
    """Write members as files into a new folder.

    Args:
        archive: What ``read_archive`` returned: its names stay within the folder.
        folder: It must not be there yet.
        names: Which members; None for all.

    Raises:
        PackageError: The folder is there, or cannot be made.
    """
    try:
        folder.mkdir(parents=True)
        for name in archive.members if names is None else names:
            place = folder.joinpath(*name.split("/"))
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as file:
                file.write(archive.data(name))
    except FileExistsError:
        raise PackageError(f"{folder} is there already", "name a new folder") from None
    except OSError as error:
        raise PackageError(f"{folder} cannot be written: {error.strerror or error}") from None


__all__ = [
    "MANIFEST",
    "Archive",
    "Member",
    "is_name",
    "read_archive",
    "read_bytes",
    "unpack",
    "write_archive",
]
