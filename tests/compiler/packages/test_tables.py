"""What somebody edited, with every hash made right again: refused before anything runs.

Each part is sound by itself then. What tells is that the machine code was made for other ones, and,
if it does not, that two places of the package say different things.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fusec
from fusec.packages.binaries import default_names
from fusec.packages.runtime import DamagedPackage, PackageError, package
from fusec.packages.runtime import load as load_alone
from fusec.packages.runtime.archive import read_archive, write_archive
from fusec.packages.runtime.json_text import canonical

_GONE = object()
_LOADERS = {"torch": fusec.load, "numpy": load_alone}


class Tables:
    """A package's tables, to be written again with one of them changed."""

    def __init__(self, path: Path) -> None:
        archive = read_archive(path)
        facts = archive.manifest.whole()
        self.facts = {key: facts[key] for key in facts if key not in ("format", "members")}
        self.members = {name: bytes(archive.data(name)) for name in archive.members}
        self.values = {
            name: json.loads(data)
            for name, data in self.members.items()
            if name in ("guards.json", "weights.json") or name.startswith("programs/")
        }

    def write(self, path: Path, name: str, value: Any) -> Path:
        """Write a package that has another table, or manifest, of right hashes."""
        if name == "manifest":
            write_archive(path, value, self.members)
        else:
            write_archive(path, self.facts, {**self.members, name: canonical(value)})
        return path


def changes(value: Any) -> Iterator[Any]:
    """Yield a table with one thing changed, in every place and many ways."""
    for place, inner in _places(value):
        for other in (_GONE, *_others(inner)):
            if place and (other is _GONE or json.dumps(other) != json.dumps(inner)):
                yield _with(value, place, other)


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    yield place, value
    if isinstance(value, (dict, list)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            yield from _places(inner, (*place, key))


def _others(value: Any) -> list[Any]:
    found: list[Any] = [None, [], {}, "", "x", True, -1, 0, 1, 1 << 40, 2.5]
    if type(value) is int:
        found += [value + 1, value - 1, value * 2, -value, 1 << 62]
    if isinstance(value, str):
        found += [f"{value}x", value[:-1], "int64", "s0", "weight", "programs/1.json", "../x", "é"]
    if isinstance(value, list):
        found += [value[:-1], value + value[-1:], value[::-1], ["+", *value]]
    return found


def _with(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    changed = copy.deepcopy(value)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    if other is _GONE:
        del inner[place[-1]]
    else:
        inner[place[-1]] = other
    return changed


def require_refused(tables: Tables, ways: list[tuple[str, Any]], path: Path) -> None:
    for name, value in ways:
        for who, load in _LOADERS.items():
            try:
                load(tables.write(path, name, value))
            except PackageError:
                continue
            pytest.fail(f"{name} was loaded by {who}: {json.dumps(value)[:2000]}")


def all_ways(tables: Tables) -> list[tuple[str, Any]]:
    return [(name, each) for name, value in tables.values.items() for each in changes(value)]


def test_a_sample_of_edited_tables(sound, tmp_path):
    tables = Tables(sound)
    ways = random.Random(43).sample(all_ways(tables), 150)
    require_refused(tables, ways, tmp_path / "bad.fuse")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_edit_of_the_tables(sound, tmp_path):
    tables = Tables(sound)
    ways = all_ways(tables)
    assert len(ways) > 3000
    require_refused(tables, ways, tmp_path / "bad.fuse")


def test_programs_of_two_specializations_are_not_taken_for_each_other(sound, tmp_path):
    """Guards fit either program, which differ in a number that Python code saw."""
    tables = Tables(sound)
    guards = copy.deepcopy(tables.values["guards.json"])
    first, second = guards["specializations"]
    first["program"], second["program"] = second["program"], first["program"]
    require_refused(tables, [("guards.json", guards)], tmp_path / "bad.fuse")


def test_a_binary_is_not_said_to_be_for_another_processor(tmp_path):
    names = default_names()
    if len(names) < 2:
        pytest.skip("this processor's family has one kind of binary")
    path = tmp_path / "two.fuse"
    fusec.package(lambda x: x + 1, [(torch.randn(5),)], path, binaries=(names[0], names[-1]))
    tables = Tables(path)
    best, plain = tables.facts["binaries"]
    for changed in ({**best, "features": []}, {**plain, "member": best["member"]}):
        value = {**tables.facts, "binaries": [changed]}
        require_refused(tables, [("manifest", value)], tmp_path / "bad.fuse")


def _other_bytes(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_every_other_member_is_bound(sound, tmp_path):
    """Weights and texts, members that are new or gone, and what the manifest says."""
    tables = Tables(sound)
    names = [name for name in tables.members if not name.startswith("binaries/")]
    assert {"weights.safetensors", "programs.cpp", "kernels.json", "fuse.h"} <= {*names}
    ways = [{**tables.members, name: _other_bytes(tables.members[name])} for name in names]
    ways += [{**tables.members, "more.txt": b"x"}, {**tables.members, "binaries/x.so": b"x"}]
    texts = [name for name in names if name.startswith("kernels/") or name == "fuse.h"]
    ways += [{n: d for n, d in tables.members.items() if n != gone} for gone in texts]
    facts = [{**tables.facts, "name": "other"}, {**tables.facts, "gpus": ["sm_90"]}]
    path = tmp_path / "bad.fuse"
    for load in _LOADERS.values():
        for members in ways:
            write_archive(path, tables.facts, members)
            with pytest.raises(DamagedPackage):
                load(path)
        for other in facts:
            write_archive(path, other, tables.members)
            with pytest.raises(DamagedPackage):
                load(path)


def test_edits_of_a_package_for_gpus(tmp_path):
    """Its code says what it was made for behind its end, which no driver sees."""
    path = tmp_path / "gpu.fuse"
    compiled = fusec.compile(lambda x: x.softmax(-1), target="triton", gpu="sm_80", dynamic=False)
    fusec.package(compiled, [(torch.randn(4, 16),)], path, gpus=("sm_80", "sm_90"))
    tables = Tables(path)
    tables.values["gpu.json"] = json.loads(tables.members["gpu.json"])
    ways = all_ways(tables)
    assert len(ways) > 1000
    bad = tmp_path / "bad.fuse"
    require_refused(tables, random.Random(44).sample(ways, 100), bad)
    first, second = sorted(name for name in tables.members if name.startswith("cubins/"))
    codes = tables.members[first], tables.members[second]
    for one, other in ((codes[1], codes[0]), (_other_bytes(codes[0]), codes[1]), (b"", codes[1])):
        write_archive(bad, tables.facts, {**tables.members, first: one, second: other})
        with pytest.raises(DamagedPackage, match="made for another package"):
            load_alone(bad)


def test_a_manifest_that_describes_nothing(sound, tmp_path):
    tables = Tables(sound)
    for bad in (None, 7, [], {"torch": 2}, "x"):
        value = {**tables.facts, "versions": bad}
        require_refused(tables, [("manifest", value)], tmp_path / "bad.fuse")


# -- without the machine code's word ------------------------------------


@pytest.fixture
def unbound(monkeypatch):
    monkeypatch.setattr(package, "require_bound", lambda archive, binaries: None)


def _edit(value: Any, place: str, other: Any) -> Any:
    keys = tuple(int(key) if key.isdecimal() else key for key in place.split())
    return _with(value, keys, other)


@pytest.mark.parametrize("loader", list(_LOADERS))
@pytest.mark.parametrize(
    ("name", "place", "other", "words"),
    [
        pytest.param(
            "guards.json",
            "specializations 0 leaves 0 shape 1",
            1,
            "its guard lets in",
            id="a guard lets in fewer columns than a program reads",
        ),
        pytest.param(
            "guards.json",
            "specializations 0 leaves 0 dtype",
            "int32",
            "its guard lets in",
            id="a guard lets in another type",
        ),
        pytest.param(
            "programs/0.json",
            "buffers 0 strides 0",
            99,
            "its guard lets in",
            id="a program takes an argument for one of other strides",
        ),
        pytest.param(
            "programs/0.json",
            "buffers 0 source",
            1,
            "its guard lets in",
            id="a program takes a number for a tensor",
        ),
        pytest.param(
            "programs/0.json",
            "buffers 1 shape 0",
            90,
            "another tensor than it is",
            id="a program takes a weight for a larger one",
        ),
        pytest.param(
            "programs/0.json",
            "buffers 1 strides 0",
            2,
            "another tensor than it is",
            id="a program takes a weight for one of other strides",
        ),
        pytest.param(
            "programs/0.json",
            "buffers 2 device",
            "../x",
            "is not a device",
            id="a buffer lies on no device",
        ),
    ],
)
def test_places_that_disagree(sound, tmp_path, unbound, loader, name, place, other, words):
    tables = Tables(sound)
    roles = [each["role"] for each in tables.values["programs/0.json"]["buffers"]]
    assert roles == ["input", "weight", "made"]
    changed = _edit(tables.values[name], place, other)
    path = tables.write(tmp_path / "bad.fuse", name, changed)
    x = np.zeros((4, 9), np.float32)[:, : 1 if place.endswith("leaves 0 shape 1") else 9]
    given = x.astype(np.int32) if other == "int32" else x
    with pytest.raises(DamagedPackage, match=words):
        _LOADERS[loader](path)(torch.from_numpy(given) if loader == "torch" else given)


@pytest.mark.parametrize("kind", ["alone", "with_torch"])
def test_steps_that_read_what_is_not_made(sound, tmp_path, unbound, kind):
    tables = Tables(sound)
    name = "programs/0.json"
    value = tables.values[name]
    load = load_alone if kind == "alone" else fusec.load
    x = np.zeros((4, 9), np.float32)
    for changed in (
        _edit(value, f"{kind} 0 made", []),
        _edit(value, f"{kind} 0 made 0", 0),
        _edit(value, kind, []),
    ):
        loaded = load(tables.write(tmp_path / "bad.fuse", name, changed))
        with pytest.raises(DamagedPackage, match=r"not made yet|nothing made"):
            loaded(x if kind == "alone" else torch.from_numpy(x))
