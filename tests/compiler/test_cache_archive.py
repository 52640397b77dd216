"""The store in a file: it goes over whole, and nothing of a bad file gets in."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import fusec
from fusec import cache_archive
from fusec.cache import CacheStore
from fusec.cache_archive import HEADER, BadArchive, OtherMachine

FILES = {"kernel.cpp": b"int x;\n", "kernel.so": bytes(range(256)) * 3}


@pytest.fixture
def store(tmp_path: Path) -> CacheStore:
    made = CacheStore(tmp_path / "store")
    made.put("cpp", {"n": 1}, FILES)
    made.put("tuning", {"n": 2}, {"record": b"{}"})
    return made


@pytest.fixture
def archive(store: CacheStore, tmp_path: Path) -> Path:
    path = tmp_path / "cache.zip"
    moved = fusec.export_cache(path, store=store)
    assert moved.entries == {"cpp": 1, "tuning": 1}
    return path


@pytest.fixture
def other(tmp_path: Path) -> CacheStore:
    return CacheStore(tmp_path / "other")


def test_it_goes_over_whole(archive, other):
    assert fusec.import_cache(archive, store=other).entries == {"cpp": 1, "tuning": 1}
    entry = other.get("cpp", {"n": 1})
    assert {name: entry.read_bytes(name) for name in entry.files} == FILES
    again = fusec.import_cache(archive, store=other)
    assert (again.entries, again.known) == ({}, 2)


def test_one_kind_and_no_damaged_entry(store, tmp_path):
    entry = store.get("cpp", {"n": 1})
    entry.path("kernel.so").write_bytes(b"")
    assert fusec.export_cache(tmp_path / "a", store=store).entries == {"tuning": 1}
    assert fusec.export_cache(tmp_path / "b", ["cpp"], store=store).entries == {}
    assert fusec.export_cache(tmp_path / "c", "tuning", store=store).entries == {"tuning": 1}


@pytest.mark.parametrize(
    ("fact", "value", "said"),
    [
        ("features", ["avx2", "no_such_thing"], "lacks .*no_such_thing"),
        ("system", "Plan 9", "made for Plan 9"),
        ("processor", "m68k", "made for m68k"),
    ],
)
def test_another_machine_is_refused_with_the_reason(
    store, other, tmp_path, monkeypatch, fact, value, said
):
    here = cache_archive.machine_facts()
    with monkeypatch.context() as patch:
        patch.setattr(cache_archive, "machine_facts", lambda: {**here, fact: value})
        fusec.export_cache(tmp_path / "a.zip", store=store)
    with pytest.raises(OtherMachine, match=said):
        fusec.import_cache(tmp_path / "a.zip", store=other)
    assert other.stored() == ()


@pytest.mark.parametrize(
    ("fact", "value", "said"),
    [
        ("model", "Z80", "made for Z80, and this machine has "),
        ("cores", 4096, "made for 4096 processors, and this machine has "),
        ("last cache", 7, "made for 7 bytes of last cache, and"),
    ],
)
def test_what_is_precompiled_is_for_one_model_of_processor(
    store, other, tmp_path, monkeypatch, fact, value, said
):
    """It would never be found there: its kernels were chosen for another one."""
    here = cache_archive.machine_facts()
    store.put("ahead", {"n": 3}, {"artefact.json": b"{}"})
    with monkeypatch.context() as patch:
        patch.setattr(cache_archive, "machine_facts", lambda: {**here, fact: value})
        fusec.export_cache(tmp_path / "a.zip", store=store)
        fusec.export_cache(tmp_path / "b.zip", ("cpp", "tuning"), store=store)
    with pytest.raises(OtherMachine, match=said):
        fusec.import_cache(tmp_path / "a.zip", store=other)
    assert other.stored() == ()
    assert sum(fusec.import_cache(tmp_path / "b.zip", store=other).entries.values()) == 2


def test_a_cache_of_another_gpu_is_refused(archive, other, monkeypatch):
    def for_a_gpu(header, members):
        header["gpus"] = ["sm_80"]

    _changed(archive, for_a_gpu)
    monkeypatch.setattr(cache_archive, "gpus_here", lambda: ("sm_90",))
    with pytest.raises(OtherMachine, match="compiled for sm_80, and this machine has sm_90"):
        fusec.import_cache(archive, store=other)
    monkeypatch.setattr(cache_archive, "gpus_here", lambda: ("sm_80", "sm_90"))
    assert fusec.import_cache(archive, store=other).entries


def test_places_that_are_wrong_are_named(store, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file '.*none' \(fusec.export_cache"):
        fusec.import_cache(tmp_path / "none")
    with pytest.raises(OSError, match=f"^{re.escape(str(tmp_path))} is a folder"):
        fusec.export_cache(tmp_path, store=store)
    with pytest.raises(OSError, match=f"^{re.escape(str(tmp_path))}/none/a cannot be written: No"):
        fusec.export_cache(tmp_path / "none" / "a", store=store)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["store"]


@pytest.mark.parametrize("size", [-1, float("nan"), "1GB", None, True])
def test_what_is_no_size_prunes_nothing(store, size):
    with pytest.raises(ValueError, match=r"cannot be pruned to .*give a number of bytes, 0 or"):
        store.prune(size)
    assert len(store.stored()) == 2


def test_what_another_compiler_keeps_there_is_not_damaged(store):
    """Triton's own cache lies in the folder that ``FUSEC_CACHE_DIR`` names."""
    own = store.folder / "triton-cache" / "AMZQNLGL2CKQV2TXVCJBUTTKKCP4RWXZLQUXFV3IZ3ZVB2GQUVYQ"
    own.mkdir(parents=True)
    (own / "kernel.cubin").write_bytes(b"code")
    assert store.verify() == ()
    assert (own / "kernel.cubin").exists()
    assert store.info().entries["triton-cache"] == 1  # it counts, and goes when it is not used
    assert store.prune(0) == 3


def test_the_cache_is_there_at_once():
    code = "import fusec; print(fusec.cache.info().entries)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def _write(path: Path, members: list[tuple[str, bytes]], kind: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, data in members:
            file.writestr(name, data)


def _changed(archive: Path, change) -> None:
    members = _members(archive)
    header = json.loads(members[HEADER])
    change(header, members)
    members[HEADER] = json.dumps(header).encode()
    _write(archive, list(members.items()))


def _outside(header, members):
    name = next(n for n in header["entries"] if n.startswith("cpp"))
    entry = header["entries"][name]
    entry["files"]["../../escaped"] = entry["files"].pop("kernel.cpp")
    members[f"{name}/../../escaped"] = members.pop(f"{name}/kernel.cpp")


def _kind_outside(header, members):
    name = next(n for n in header["entries"] if n.startswith("cpp"))
    entry = header["entries"].pop(name)
    entry["kind"] = "../cpp"
    header["entries"][f"../{name}"] = entry
    for each in [n for n in members if n.startswith(name)]:
        members[f"../{each}"] = members.pop(each)


def _other_key(header, members):
    next(iter(header["entries"].values()))["key"] = {"n": 77}


def _more(header, members):
    members["more"] = b"x"


def _changed_file(header, members):
    name = next(n for n in members if n.endswith("kernel.so"))
    members[name] = bytes(len(members[name]))


def _other_format(header, members):
    header["format"] = "zip"


def _manifest(header, members):
    name = next(n for n in header["entries"] if n.startswith("cpp"))
    entry = header["entries"][name]
    entry["files"]["manifest.json"] = entry["files"].pop("kernel.cpp")
    members[f"{name}/manifest.json"] = members.pop(f"{name}/kernel.cpp")


@pytest.mark.parametrize(
    "change",
    [_outside, _kind_outside, _other_key, _more, _changed_file, _other_format, _manifest],
)
def test_a_bad_archive_is_refused_and_nothing_leaves_the_folder(archive, other, tmp_path, change):
    _changed(archive, change)
    before = {p for p in tmp_path.rglob("*") if other.folder not in p.parents}
    with pytest.raises(BadArchive):
        fusec.import_cache(archive, store=other)
    assert {p for p in tmp_path.rglob("*") if other.folder not in p.parents} == before
    assert all(each.kind in ("cpp", "tuning") for each in other.stored())
    assert other.verify() == ()


def test_compressed_and_doubled_members_are_refused(archive, other):
    members = list(_members(archive).items())
    _write(archive, members, zipfile.ZIP_DEFLATED)
    with pytest.raises(BadArchive, match="compressed"):
        fusec.import_cache(archive, store=other)
    with pytest.warns(UserWarning, match="Duplicate"):
        _write(archive, [*members, members[-1]])
    with pytest.raises(BadArchive, match="twice"):
        fusec.import_cache(archive, store=other)


def test_any_changed_byte_is_refused_or_changes_nothing(archive, tmp_path):
    data = archive.read_bytes()
    chosen = random.Random(7)
    whole = CacheStore(tmp_path / "whole")
    fusec.import_cache(archive, store=whole)
    expected = {each.digest for each in whole.stored()}
    store = CacheStore(tmp_path / "target")
    for _ in range(300):
        changed = bytearray(data)
        if chosen.random() < 0.2:
            del changed[chosen.randrange(len(changed)) :]
        else:
            changed[chosen.randrange(len(changed))] ^= 1 << chosen.randrange(8)
        archive.write_bytes(changed)
        with contextlib.suppress(BadArchive, OtherMachine):
            fusec.import_cache(archive, store=store)
        assert {each.digest for each in store.stored()} <= expected
    assert store.verify() == ()


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    store = CacheStore(tmp_path / "store")
    for number in range(5):
        entry = store.put("cpp", {"n": number}, {"file": bytes(1000)})
        os.utime(entry.folder, (number + 1, number + 1))
    sizes = [each.size for each in store.stored()]
    assert store.prune(sum(sizes)) == 0
    assert store.prune(sum(sizes) - 1) == 1
    assert store.get("cpp", {"n": 0}) is None
    assert store.get("cpp", {"n": 4}) is not None
    assert store.prune(0) == 4
    assert store.stored() == ()


def test_a_place_before_the_file_is_damage(archive, tmp_path, monkeypatch):
    """Python 3.12 looks there for a file whose place in the archive was changed."""

    def read(self, name):
        raise OSError(problem, "")

    monkeypatch.setattr("zipfile.ZipFile.read", read)
    store = CacheStore(tmp_path / "target")
    problem = errno.EINVAL
    with pytest.raises(BadArchive, match="is damaged"):
        fusec.import_cache(archive, store=store)
    problem = errno.EIO
    with pytest.raises(OSError, match="Errno 5"):
        fusec.import_cache(archive, store=store)
