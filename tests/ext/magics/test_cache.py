"""``%fuse_cache``: what is kept on disk, in words."""

from __future__ import annotations

import re

import pytest
from IPython.core.error import UsageError

from fusec.cache import default_store
from fuselab.magics.cache import size
from support.shell import run


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    found = default_store()
    found.put("cpp", {"n": 1}, {"kernel.so": bytes(2000)})
    return found


def test_it_is_shown_checked_pruned_and_cleared(shell, store, capsys):
    run(shell, "%fuse_cache")
    run(shell, "%fuse_cache --list")
    said = capsys.readouterr().out
    assert str(store.folder) in said
    assert re.search(r"^cpp +1$", said, re.MULTILINE)  # others may have stored theirs
    run(shell, "%fuse_cache --verify")
    assert "no entry is damaged" in capsys.readouterr().out
    run(shell, "%fuse_cache --prune 1MB")
    assert "entries removed: 0" in capsys.readouterr().out
    run(shell, "%fuse_cache --clear")
    assert "entries removed: " in capsys.readouterr().out
    assert store.get("cpp", {"n": 1}) is None


def test_it_goes_to_a_file_and_comes_back(shell, store, tmp_path, capsys):
    run(shell, f"%fuse_cache --export {tmp_path / 'cache.zip'}")
    run(shell, "%fuse_cache --clear")
    run(shell, f"%fuse_cache --import {tmp_path / 'cache.zip'}")
    assert re.search(r"^taken in: .*1 of cpp", capsys.readouterr().out, re.MULTILINE)
    assert store.get("cpp", {"n": 1}) is not None


@pytest.mark.parametrize("line", ["--prune much", "--import no_such_file", "--what"])
def test_mistakes_are_said(shell, line):
    with pytest.raises(UsageError, match="%fuse_cache"):
        run(shell, f"%fuse_cache {line}")


@pytest.mark.parametrize(
    ("text", "expected"), [("3", 3), ("2kb", 2048), ("1.5MB", 3 << 19), ("1GB", 1 << 30)]
)
def test_sizes(text, expected):
    assert size(text) == expected
