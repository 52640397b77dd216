"""The store on disk: what goes in comes out, and nothing that goes wrong gets out."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fusec import cache
from fusec.cache import MANIFEST, QUARANTINE, CacheStore
from support.processes import run_python

KEY = {"text": "abc", "flags": ["-O3"], "n": 1}
FILES = {"kernel.cpp": b"int x;\n", "kernel.so": bytes(range(256)) * 20}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> CacheStore:
    return CacheStore(folder)


def test_round_trip(store: CacheStore, folder: Path) -> None:
    assert store.get("cpp", KEY) is None
    put = store.put("cpp", KEY, FILES)
    got = store.get("cpp", dict(reversed(KEY.items())))
    assert got == put
    assert got.read_bytes("kernel.so") == FILES["kernel.so"]
    assert got.read_text("kernel.cpp") == "int x;\n"
    assert got.key == KEY
    assert folder.stat().st_mode & 0o777 == 0o700
    assert got.folder.stat().st_mode & 0o077 == 0
    with pytest.raises(KeyError):
        got.path("other")


def test_another_process_reads_it(store: CacheStore, folder: Path) -> None:
    store.put("cpp", KEY, FILES)
    assert CacheStore(folder).get("cpp", KEY) is not None


def test_kinds_are_apart(store: CacheStore) -> None:
    store.put("cpp", KEY, {"a": b"generated"})
    assert store.get("edits", KEY) is None
    store.put("edits", KEY, {"a": b"edited"})
    generated = store.get("cpp", KEY)
    assert generated is not None
    assert generated.read_bytes("a") == b"generated"


def test_files_are_taken_from_paths(store: CacheStore, tmp_path: Path) -> None:
    source = tmp_path / "made"
    source.write_bytes(b"12345")
    assert store.put("cpp", KEY, {"kernel.so": source}).read_bytes("kernel.so") == b"12345"
    assert source.exists()


def test_the_first_to_write_wins(store: CacheStore) -> None:
    store.put("cpp", KEY, {"a": b"first"})
    assert store.put("cpp", KEY, {"a": b"second"}).read_bytes("a") == b"first"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", MANIFEST, "a\0b"])
def test_names_are_plain(store: CacheStore, name: str) -> None:
    with pytest.raises(ValueError, match="plain"):
        store.put("cpp", KEY, {name: b""})
    with pytest.raises(ValueError, match="plain"):
        store.put(name, KEY, {})


def truncate(entry: Path) -> None:
    (entry / "kernel.so").write_bytes(FILES["kernel.so"][:100])


def flip_a_bit(entry: Path) -> None:
    data = bytearray(FILES["kernel.so"])
    data[77] ^= 1
    (entry / "kernel.so").write_bytes(data)


def lose_a_file(entry: Path) -> None:
    (entry / "kernel.so").unlink()


def lose_the_manifest(entry: Path) -> None:
    (entry / MANIFEST).unlink()


def spoil_the_manifest(entry: Path) -> None:
    (entry / MANIFEST).write_text("{")


def empty_the_manifest(entry: Path) -> None:
    (entry / MANIFEST).write_text("[1, 2]")


def binary_manifest(entry: Path) -> None:
    (entry / MANIFEST).write_bytes(b"\xff\xfe\x00")


def escape_the_entry(entry: Path) -> None:
    manifest = json.loads((entry / MANIFEST).read_text())
    manifest["files"]["../../outside"] = {"size": 0, "sha256": ""}
    (entry / MANIFEST).write_text(json.dumps(manifest))


def other_key(entry: Path) -> None:
    manifest = json.loads((entry / MANIFEST).read_text())
    manifest["key"]["n"] = 2
    (entry / MANIFEST).write_text(json.dumps(manifest))


def link_for_a_file(entry: Path) -> None:
    other = entry.parent.parent / "elsewhere"
    (entry / "kernel.so").rename(other)
    (entry / "kernel.so").symlink_to(other)


def pipe_for_a_file(entry: Path) -> None:
    (entry / "kernel.so").unlink()
    (entry / "kernel.so").mkdir()


DAMAGE = [
    truncate,
    flip_a_bit,
    lose_a_file,
    lose_the_manifest,
    spoil_the_manifest,
    empty_the_manifest,
    binary_manifest,
    escape_the_entry,
    other_key,
    link_for_a_file,
    pipe_for_a_file,
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_a_miss(store: CacheStore, folder: Path, damage: Callable[[Path], None]) -> None:
    entry = store.put("cpp", KEY, FILES)
    damage(entry.folder)
    assert store.get("cpp", KEY) is None
    assert not entry.folder.exists()
    assert len(list((folder / QUARANTINE).iterdir())) == 1
    # ... and the place is free for a new one.
    assert store.put("cpp", KEY, FILES).read_bytes("kernel.so") == FILES["kernel.so"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_verify_finds_damage(store: CacheStore, damage: Callable[[Path], None]) -> None:
    sound = store.put("cpp", {"other": 1}, FILES)
    damage(store.put("cpp", KEY, FILES).folder)
    problems = store.verify()
    assert len(problems) == 1
    assert problems[0].startswith("cpp/")
    assert store.verify() == ()
    assert store.get("cpp", {"other": 1}) == sound


def test_damaged_entry_is_replaced_by_put(store: CacheStore) -> None:
    truncate(store.put("cpp", KEY, FILES).folder)
    assert store.put("cpp", KEY, FILES).read_bytes("kernel.so") == FILES["kernel.so"]


def test_info_and_clear(store: CacheStore, folder: Path) -> None:
    store.put("cpp", KEY, FILES)
    store.put("cpp", {"other": 1}, FILES)
    store.put("tuning", KEY, {"record.json": b"{}"})
    info = store.info()
    assert info.entries == {"cpp": 2, "tuning": 1}
    assert info.folder == folder
    assert info.size > 2 * len(FILES["kernel.so"])
    assert not info.private
    assert store.clear("cpp") == 2
    assert store.info().entries == {"tuning": 1}
    assert store.clear() == 1
    assert store.info().entries == {}


def test_least_recently_used_goes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.store, "EVICT_EVERY", 1)
    store = CacheStore(folder, limit=60_000)
    for n in range(5):
        entry = store.put("cpp", {"n": n}, {"data": bytes(10_000)})
        os.utime(entry.folder, (1000 + n, 1000 + n))
    assert store.get("cpp", {"n": 0}) is not None  # used: now the most recent one
    store.put("cpp", {"n": 5}, {"data": bytes(10_000)})
    assert store.get("cpp", {"n": 5}) is not None
    assert store.get("cpp", {"n": 0}) is not None
    assert store.get("cpp", {"n": 1}) is None
    assert store.info().size <= 60_000


def test_leftovers_of_the_dead_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.store, "EVICT_EVERY", 1)
    store = CacheStore(folder)
    (folder / "cpp").mkdir()
    old, new = folder / "cpp" / ".old.tmp", folder / "cpp" / ".new.tmp"
    for leftover in (old, new):
        leftover.mkdir()
        (leftover / "kernel.so").write_bytes(b"half")
    os.utime(old, (1000, 1000))
    with store.lock("cpp", KEY):
        pass
    (lock,) = (folder / cache.LOCKS).iterdir()
    os.utime(lock, (1000, 1000))
    store.put("cpp", KEY, FILES)
    assert not old.exists()
    assert not lock.exists()
    assert new.exists()
    assert store.info().entries == {"cpp": 1}


def test_a_clock_that_is_wrong_harms_nothing(store: CacheStore) -> None:
    entry = store.put("cpp", KEY, FILES)
    os.utime(entry.folder, (time.time() + 1e9, time.time() + 1e9))
    assert store.get("cpp", KEY) == entry


# --- folders that are not to be used ---------------------------------------------------------


def assert_private(folder: Path, words: str) -> CacheStore:
    with pytest.warns(RuntimeWarning, match=words) as warned:
        store = CacheStore(folder)
    assert len(warned) == 1
    assert store.private
    assert store.folder != folder
    assert store.put("cpp", KEY, FILES).read_bytes("kernel.so") == FILES["kernel.so"]
    assert store.info().private
    return store


@pytest.mark.posix("who owns a file")
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_others_may_write(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    assert_private(folder, "written by other users")


def test_a_link_is_not_a_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "real")
    assert_private(folder, "not a real folder")


def test_a_file_is_not_a_folder(folder: Path) -> None:
    folder.write_text("")
    assert_private(folder, "cannot use|not a real folder")


def test_folder_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.warns(RuntimeWarning, match="another user"):
        store = CacheStore(folder)
    assert store.private


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_private(tmp_path / "file" / "below", "cannot use")


def test_read_only_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    assert_private(folder, "cannot be written")


def test_full_disk(store: CacheStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("cpp", {"before": 1}, FILES)
    write = cache.store.write_file

    def full(path: Path, data: bytes) -> None:
        if folder in path.parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    monkeypatch.setattr(cache.store, "write_file", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        entry = store.put("cpp", KEY, FILES)
    assert entry.read_bytes("kernel.so") == FILES["kernel.so"]
    assert store.private
    assert list((folder / "cpp").iterdir()) != []
    assert not [p for p in (folder / "cpp").iterdir() if p.name.startswith(".")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        store.put("cpp", {"after": 1}, FILES)


def test_a_folder_that_was_deleted_is_made_again(store: CacheStore, folder: Path) -> None:
    store.put("cpp", KEY, FILES)
    shutil.rmtree(folder)
    assert store.get("cpp", KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.put("cpp", KEY, FILES).read_bytes("kernel.so") == FILES["kernel.so"]
    assert not store.private
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_deleted_folder_for_temporary_files_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with cache.scratch() as made:
        assert Path(made).parent == tmp_path / "temporary"
        Path(made, "file").write_text("")
    assert not Path(made).exists()
    assert (tmp_path / "temporary").stat().st_mode & 0o777 == 0o700


def test_only_the_main_thread_warns(store: CacheStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        if not store.private:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    write = cache.store.write_file
    monkeypatch.setattr(cache.store, "write_file", full)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(store.put, "cpp", KEY, FILES).result().files
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert store.get("cpp", KEY) is not None


def test_private_folder_goes_with_the_process(tmp_path: Path) -> None:
    script = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from pathlib import Path; from fusec.cache import CacheStore\n"
        f"print(CacheStore(Path({str(tmp_path)!r}, 'file', 'x')).folder)"
    )
    (tmp_path / "file").write_text("")
    assert not Path(run_python(script).strip()).exists()


def test_default_store_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "one"))
    one = cache.default_store()
    assert one.folder == tmp_path / "one"
    assert cache.default_store() is one
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "two"))
    assert cache.default_store().folder == tmp_path / "two"
    monkeypatch.delenv("FUSEC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    if sys.platform == "linux":
        assert cache.default_folder() == tmp_path / "home" / "fusec"


# --- several processes -----------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from fusec.cache import CacheStore
store = CacheStore(Path(sys.argv[1]))
for n in range(100):
    data = bytes([n]) * 5000
    entry = store.put("cpp", {"n": n}, {"kernel.so": data})
    assert entry.read_bytes("kernel.so") == data
    found = store.get("cpp", {"n": n})
    assert found is not None and found.read_bytes("kernel.so") == data
"""


def test_two_processes_write_the_same_keys(folder: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", WRITER, str(folder)]
    writers = [subprocess.Popen(command) for _ in range(2)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    store = CacheStore(folder)
    assert store.info().entries == {"cpp": 100}
    assert store.verify() == ()
    assert not [p for p in (folder / "cpp").iterdir() if p.name.startswith(".")]


def test_killed_while_writing(folder: Path) -> None:
    endless = WRITER.replace("range(100)", "range(10**9)").replace("bytes([n])", "bytes([n % 256])")
    writer = subprocess.Popen([sys.executable, "-c", endless, str(folder)])
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if folder.exists() and CacheStore(folder).info().entries.get("cpp", 0) > 5:
            break
    writer.kill()
    writer.wait()
    store = CacheStore(folder)
    assert store.info().entries["cpp"] > 5
    assert store.verify() == ()
    n = 10**6
    assert store.put("cpp", {"n": n}, FILES).read_bytes("kernel.so") == FILES["kernel.so"]


def test_lock_is_never_in_the_way(store: CacheStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.lock("cpp", KEY), CacheStore(store.folder).lock("cpp", KEY, timeout=0.05):
        pass  # held by the other: goes on without it

    # An interrupt does not wait for what another process builds.
    began = time.monotonic()
    with (
        store.lock("cpp", KEY),
        CacheStore(store.folder).lock(
            "cpp", KEY, timeout=60.0, stopped=lambda: time.monotonic() > began + 0.1
        ),
    ):
        assert 0.1 <= time.monotonic() - began < 30

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("filelock.FileLock.acquire", broken)
    with store.lock("cpp", KEY):
        pass
