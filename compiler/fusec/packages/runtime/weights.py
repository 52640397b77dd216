"""Weights: a safetensors file, in the package or beside it, read without a library.

The format is eight bytes with the length of a header, the header (JSON: type, sizes and place of
each tensor), and the data. Here every place must follow the one before it, and all of the file must
be used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .archive import Archive
from .errors import DamagedPackage, PackageError
from .json_text import LARGEST, Reader
from .layout import ITEM_BYTES

MEMBER = "weights.safetensors"
_LONGEST_HEADER = 64 << 20
_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}


@dataclass(frozen=True)
class Weight:
    """A tensor that programs read and calls do not give.

    Attributes:
        name: Where the module has it.
        dtype: Its type's name.
        shape: Sizes.
        strides: In elements.
        data: Its memory, from its first element to its last one.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    data: memoryview


def read_weights(archive: Archive, described: Sequence[Reader], folder: Path) -> list[Weight]:
    """Return a package's weights, in the order in which programs name them.

    Args:
        archive: The package.
        described: What the package says of each.
        folder: Where the package is, and files that it refers to.

    Raises:
        DamagedPackage: They are not as they were written.
        PackageError: The file that is referred to is not there.
    """
    if not described:
        return []
    manifest = archive.manifest
    where = Reader(manifest.raw("weights"), "weights")
    if where.has("file"):
        data = _beside(folder, where.text("file"), where.text("sha256"), where.number("size"))
    else:
        data = archive.data(MEMBER)
    places = read_safetensors(data)
    found = []
    for each in described:
        name, dtype = each.text("name"), each.text("dtype")
        shape = each.numbers("shape")
        strides = each.numbers("strides")
        place = places.get(name)
        if place is None or place[0] != dtype or len(shape) != len(strides):
            raise DamagedPackage(f"{each.place}: {name} is not among the weights, or another one")
        last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        extent = 0 if 0 in shape else last + 1
        if extent * ITEM_BYTES[dtype] != len(place[1]):
            raise DamagedPackage(f"{each.place}: {name} has other sizes than its memory")
        found.append(Weight(name, dtype, shape, strides, place[1]))
    return found


def _beside(folder: Path, name: str, sha256: str, size: int) -> memoryview:
    if Path(name).name != name or name in ("", ".", "..") or "\\" in name or ":" in name:
        raise DamagedPackage(
            f"its weights are said to be in {name[:60]!r}, which is not a plain name"
        )
    path = folder / name
    try:
        with path.open("rb") as file:
            if path.stat().st_size != size:
                raise DamagedPackage(f"{name} beside it has another size than it was packaged with")
            from .archive import _aligned

            data = _aligned(file, size)
    except OSError as error:
        raise PackageError(
            f"its weights, {name}, cannot be read: {error.strerror or error}",
            f"put {name} beside the package",
        ) from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DamagedPackage(f"{name} beside it is not what it was packaged with")
    return data


def read_safetensors(data: memoryview) -> dict[str, tuple[str, memoryview]]:
    """Return each tensor's type and memory by name.

    Raises:
        DamagedPackage: The file is not sound.
    """
    if len(data) < 8:
        raise DamagedPackage("weights without a header")
    length = int.from_bytes(data[:8], "little")
    if length > min(_LONGEST_HEADER, len(data) - 8):
        raise DamagedPackage("weights with a header beyond their end")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError):
        raise DamagedPackage("weights with a header that is not JSON") from None
    if not isinstance(header, dict):
        raise DamagedPackage("weights with a header of another kind")
    body, found, ends = data[8 + length :], {}, []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        reader = Reader(entry, f"weight {name[:60]}")
        offsets = reader.numbers("data_offsets", LARGEST)
        begin, end = offsets if len(offsets) == 2 else (1, 0)
        dtype = _TYPES.get(reader.text("dtype"), "")
        count = 1
        for size in reader.numbers("shape"):
            count *= size
        if not begin <= end <= len(body) or not dtype or count * ITEM_BYTES[dtype] != end - begin:
            raise DamagedPackage(f"{reader.place} lies where nothing is")
        found[name] = (dtype, body[begin:end])
        ends.append((begin, end))
    at = 0
    for begin, end in sorted(ends):
        if begin != at:
            raise DamagedPackage("weights that overlap, or with gaps")
        at = end
    if at != len(body):
        raise DamagedPackage("weights with bytes that belong to none")
    return found


__all__ = ["MEMBER", "Weight", "read_safetensors", "read_weights"]
