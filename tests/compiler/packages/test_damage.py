"""Packages that somebody or something has changed: refused, whatever was changed.

Nothing of a damaged package may run, so nothing can crash or come out wrong. All ways are tried by
the slow test; the quick one tries a sample of them.
"""

from __future__ import annotations

import io
import os
import random
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusec.packages.runtime import PackageError, load
from fusec.packages.runtime.archive import FORMAT, is_name, read_archive, unpack, write_archive
from fusec.packages.runtime.json_text import canonical, parse
from fusec.packages.runtime.weights import read_safetensors

Damage = tuple[str, bytes]


def flipped(data: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    return bytes(changed)


def small_places(path: Path) -> list[int]:
    """Return the place of every byte but those of binaries and weights."""
    archive = read_archive(path)
    size = path.stat().st_size
    with zipfile.ZipFile(path) as known:
        large = set()
        for info in known.infolist():
            if info.filename.startswith("binaries/") or info.filename.endswith(".safetensors"):
                begin = path.read_bytes().find(bytes(archive.data(info.filename)))
                large |= set(range(begin, begin + info.file_size))
    return [place for place in range(size) if place not in large]


def damages(path: Path) -> Iterator[Damage]:
    """Yield ways of damage that are no single bit."""
    data = path.read_bytes()
    size = len(data)
    for cut in (0, 1, 21, 22, 40, 100, size // 3, size // 2, size - 100, size - 2, size - 1):
        yield f"cut at {cut}", data[:cut]
    for more in (b"\0", b"x" * 70, data):
        yield f"{len(more)} bytes behind it", data + more
        yield f"{len(more)} bytes before it", more + data
    yield "another comment", data[:-3] + b"000"
    yield "zeros", bytes(size)
    yield from rezipped(path)
    with zipfile.ZipFile(path) as known:
        infos = known.infolist()
    for info in infos:  # a size or a place in a header
        at = data.find(b"PK\3\4", info.header_offset)
        for field, value in ((18, 1), (22, (1 << 32) - 1), (26, 65535), (28, 60000), (8, 8)):
            changed = bytearray(data)
            changed[at + field : at + field + 2] = struct.pack("<H", value & 0xFFFF)
            if bytes(changed) != data:
                yield f"{info.filename}: field {field}", bytes(changed)


def rezipped(path: Path) -> Iterator[Damage]:
    """Yield what an ordinary zip program makes of the members, changed or not."""
    with zipfile.ZipFile(path) as known:
        members = {info.filename: known.read(info) for info in known.infolist()}
        comment = known.comment
    names = list(members)

    def zipped(pairs, how: int = zipfile.ZIP_STORED, note: bytes = comment) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", how) as new:
            for name, content in pairs:
                info = zipfile.ZipInfo(name)
                info.compress_type = how
                new.writestr(info, content)
            new.comment = note
        return file.getvalue()

    pairs = list(members.items())
    yield "the same, zipped again", zipped(pairs)
    yield "compressed", zipped(pairs, zipfile.ZIP_DEFLATED)
    yield "in another order", zipped(pairs[:1] + pairs[:0:-1])
    yield "without its comment", zipped(pairs, note=b"")
    yield "an empty archive", zipped([])
    yield "a bomb", zipped([*pairs, ("bomb", bytes(1 << 22))], zipfile.ZIP_DEFLATED)
    for odd in ("../evil", "/etc/evil", "a/../../evil", "C:\\evil", "a\\b", "nul\0l", "é"):
        yield f"a member {odd!r}", zipped([*pairs, (odd, b"x")])
    for i in range(1, len(names)):
        other = names[i % (len(names) - 1) + 1]
        swapped = dict(pairs)
        swapped[names[i]], swapped[other] = swapped[other], swapped[names[i]]
        if swapped != members:
            yield f"{names[i]} and {other} swapped", zipped(swapped.items())
        yield f"without {names[i]}", zipped([p for p in pairs if p[0] != names[i]])
        yield f"{names[i]} empty", zipped([(n, b"" if n == names[i] else c) for n, c in pairs])


def require_refused(path: Path, ways: Iterator[Damage]) -> int:
    count = 0
    for said, data in ways:
        path.write_bytes(data)
        try:
            load(path)
        except PackageError:
            count += 1
        else:
            pytest.fail(f"{said}: it was loaded")
    return count


def test_a_sample_of_damages(sound, tmp_path):
    data = sound.read_bytes()
    chosen = random.Random(37).sample(range(len(data)), 150)
    ways = [(f"bit of {at}", flipped(data, at, at % 8)) for at in chosen]
    assert require_refused(tmp_path / "bad.fuse", iter([*ways, *damages(sound)])) > 200


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_byte_of_the_small_members(sound, tmp_path):
    data = sound.read_bytes()
    places = small_places(sound)
    assert len(places) > 10_000
    ways = ((f"byte {at}", flipped(data, at, at % 8)) for at in places)
    assert require_refused(tmp_path / "bad.fuse", ways) == len(places)
    cuts = ((f"cut at {at}", data[:at]) for at in range(0, len(data), 997))
    assert require_refused(tmp_path / "bad.fuse", cuts) > 50


def test_every_byte_of_a_tiny_archive(tmp_path):
    path, bad = tmp_path / "tiny.fuse", tmp_path / "bad.fuse"
    write_archive(path, {"name": "tiny"}, {"a.json": b"{}\n", "b/c": b"x" * 70, "empty": b""})
    data = path.read_bytes()
    assert list(read_archive(path).members) == ["a.json", "b/c", "empty"]
    for at in range(len(data)):
        for change in (1, 0x80, 0xFF):
            changed = bytearray(data)
            changed[at] ^= change
            bad.write_bytes(changed)
            with pytest.raises(PackageError):
                read_archive(bad)


def test_a_manifest_with_a_right_hash_must_still_mean_something(tmp_path):
    """Whoever writes hashes anew writes another package: it is read as strictly."""
    from hashlib import sha256

    path = tmp_path / "evil.fuse"
    write_archive(path, {"name": "tiny"}, {"a.json": b"{}\n"})
    good = path.read_bytes()
    for before, after in (
        (b'"a.json"', b'"../a.j"'),
        (b'"size": 3', b'"size": 4'),
        (b'"size": 3', b'"size":-3'),
        (f'"format": {FORMAT}'.encode(), b'"format": 9'),
        (b'"name": "tiny"', b'"name": "tinz"'),
    ):
        begin = good.find(b"{")
        end = good.find(b"\n}\n") + 3
        text = good[begin:end].replace(before, after, 1)
        changed = good[:begin] + text + good[end:]
        mark = sha256(good[begin:end]).hexdigest().encode()
        path.write_bytes(changed.replace(mark, sha256(text).hexdigest().encode()))
        with pytest.raises(PackageError):
            read_archive(path)


def test_names_stay_within_their_folder():
    for name in ("a", "a/b.json", "kernels/soft-max_1.cpp", "0"):
        assert is_name(name)
    for name in (
        "",
        "/a",
        "a/",
        "..",
        "a/../b",
        "a//b",
        "A",
        "a\\b",
        "c:a",
        "a/.b",
        ".a",
        "a" * 300,
    ):
        assert not is_name(name), name


def test_unpacking_goes_into_a_new_folder_alone(sound, tmp_path):
    archive = read_archive(sound)
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "guards.json").read_bytes() == bytes(archive.data("guards.json"))
    with pytest.raises(PackageError, match="is there already"):
        unpack(archive, tmp_path / "out")


def test_the_same_contents_are_the_same_file(tmp_path):
    members = {"a": b"1", "b": b"2" * 100}
    for name in ("one", "two"):
        write_archive(tmp_path / name, {"name": "x"}, members)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with zipfile.ZipFile(tmp_path / "one") as known:  # an ordinary archive, too
        assert known.testzip() is None
        assert known.namelist() == ["manifest.json", "a", "b"]


def test_json_has_one_form():
    value = {"b": [1, 2.5, None, "é"], "a": {"x": True}}
    assert parse(canonical(value), "it") == value
    for text in (
        b'{"a": 1, "a": 1}\n',
        b"[NaN]\n",
        b"[1e999]\n",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        canonical(1 << 80),
        canonical({"a": 1}).replace(b"\n", b"\r\n"),
    ):
        with pytest.raises(PackageError):
            parse(text, "it")


def test_weights_are_read_as_the_library_reads_them():
    import torch
    from safetensors.torch import load as library_load
    from safetensors.torch import save

    given = {
        "a": torch.randn(3, 4),
        "b": torch.randn(2).bfloat16(),
        "empty": torch.empty(0, 3),
        "one": torch.tensor(7),
    }
    data = save(given)
    found, expected = read_safetensors(memoryview(data)), library_load(data)
    assert found.keys() == expected.keys()
    for name, (dtype, memory) in found.items():
        assert dtype == str(expected[name].dtype).removeprefix("torch.")
        again = torch.frombuffer(bytearray(memory) or bytearray(8), dtype=expected[name].dtype)
        assert torch.equal(
            again[: expected[name].numel()].view(expected[name].shape), expected[name]
        )
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x10
        try:
            read_safetensors(memoryview(bytes(changed)))
        except PackageError:
            continue  # the hash finds the rest: these are names, and the numbers themselves


def with_header(header: bytes, body: bytes = bytes(36)) -> memoryview:
    return memoryview(struct.pack("<Q", len(header)) + header + body)


@pytest.mark.parametrize(
    "offsets",
    ["[]", "[0]", "[36]", "[0, 36, 36]", "[36, 0]", "[-1, 35]", "[0, 1e2]", '"0"', "[0, 37]"],
)
def test_a_header_of_weights_that_lies(offsets):
    """It has a hash of its own that is right: whoever wrote it wrote that, too."""
    text = '{"w": {"dtype": "F32", "shape": [9], "data_offsets": %s}}'
    assert len(read_safetensors(with_header((text % "[0, 36]").encode()))["w"][1]) == 36
    with pytest.raises(PackageError):
        read_safetensors(with_header((text % offsets).encode()))


def test_headers_of_weights_that_are_none():
    for header in (b"", b"[]", b"null", b"{" * 50_000, b'{"w":' * 40_000, b"9" * 6_000, b"\xff"):
        with pytest.raises(PackageError):
            read_safetensors(with_header(header))
    for length in (1, 35, 1 << 32, 1 << 63, (1 << 64) - 1):
        with pytest.raises(PackageError):
            read_safetensors(memoryview(struct.pack("<Q", length) + bytes(36)))


def test_nothing_is_mapped_before_a_call(sound):
    def mapped() -> int:
        return sum(
            b"memfd:fuse" in line for line in Path("/proc/self/maps").read_bytes().split(b"\n")
        )

    if not os.path.exists("/proc/self/maps"):
        pytest.skip("there is no /proc here")
    import numpy as np

    before = mapped()
    loaded = load(sound)
    assert mapped() == before
    loaded(np.zeros((3, 9), np.float32))
    assert mapped() > before
