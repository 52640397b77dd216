"""A place for one trouble: its cache, temporary files and compiler, made ready as it has to be."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


@dataclass
class Place:
    """Folders of one trouble, and the environment of the user's process in it.

    Attributes:
        root: All of it lies here.
        seed: Of what is random.
        environment: What the user's process has beside this one's.
        folder: Where the user's process begins.
    """

    root: Path
    seed: int = 0
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in (self.cache, self.tmp, self.folder):
            each.mkdir(mode=0o700, parents=True)
        self.environment.update(FUSEC_CACHE_DIR=str(self.cache), TMPDIR=str(self.tmp))

    @property
    def cache(self) -> Path:
        """The user's cache."""
        return self.root / "cache"

    @property
    def tmp(self) -> Path:
        """The folder for temporary files."""
        return self.root / "tmp"

    @property
    def folder(self) -> Path:
        """The user's working folder."""
        return self.root / "work"

    def start(self, act: str) -> subprocess.Popen[str]:
        """Start a user's process that does something."""
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": path, **self.environment}
        # As a user has it: nothing that makes the compiler stricter than it is for them.
        for name in ("FUSEC_STRICT", "FUSEC_VERIFY", "FUSEC_TUNED", "CXX"):
            if name not in self.environment:
                environment.pop(name, None)
        return subprocess.Popen(
            [sys.executable, "-m", "faults.user", act, str(self.seed)],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def fill(self) -> None:
        """Let an earlier process of the user's fill the cache."""
        process = self.start("fuse")
        output, errors = process.communicate(timeout=300)
        if process.returncode:
            raise RuntimeError(f"the cache could not be filled: {output}{errors}")

    def entries(self) -> list[Path]:
        """Return the entries of the cache."""
        return sorted(
            manifest.parent
            for manifest in self.cache.glob("*/*/manifest.json")
            if not manifest.parent.parent.name.startswith(".")
        )

    def files(self) -> Iterator[Path]:
        """Yield every file of the cache, those in hidden folders too."""
        for folder, _, names in os.walk(self.cache):
            for name in sorted(names):
                yield Path(folder, name)


def nothing(place: Place) -> None:
    """All is as it should be."""


# -- the cache ----------------------------------------------------------------------------------


def a_file_in_the_way(place: Place) -> None:
    """The cache is to be below a file."""
    place.environment["FUSEC_CACHE_DIR"] = str(place.root / "file" / "cache")
    (place.root / "file").write_text("")


def linked_cache(place: Place) -> None:
    """The cache's folder is a link to one that is filled."""
    place.fill()
    place.cache.rename(place.root / "elsewhere")
    place.cache.symlink_to(place.root / "elsewhere")


def owned_by_another(place: Place) -> None:
    """The cache belongs to nobody."""
    place.fill()
    os.chown(place.cache, 65534, 65534)


def open_to_all(place: Place) -> None:
    """Everybody may write to the cache."""
    place.fill()
    place.cache.chmod(0o777)


def linked_entries(place: Place) -> None:
    """Each entry is a link to where it was moved."""
    place.fill()
    for entry in place.entries():
        moved = place.root / f"moved-{entry.name}"
        entry.rename(moved)
        entry.symlink_to(moved)


def linked_files(place: Place) -> None:
    """Each file is a link to where it was moved."""
    place.fill()
    for entry in place.entries():
        for file in list(entry.iterdir()):
            moved = place.root / f"moved-{entry.name}-{file.name}"
            file.rename(moved)
            file.symlink_to(moved)


def _pairs(place: Place) -> Iterator[tuple[Path, Path]]:
    kernels = [entry for entry in place.entries() if entry.parent.name == "cpp"]
    if len(kernels) < 2:
        raise RuntimeError(f"{len(kernels)} kernels in the cache")
    yield from zip(kernels, [*kernels[1:], kernels[0]], strict=True)


def swapped_libraries(place: Place) -> None:
    """Each kernel's library stands in the place of another's."""
    place.fill()
    libraries = [
        (one / "kernel.so", (other / "kernel.so").read_bytes()) for one, other in _pairs(place)
    ]
    for path, content in libraries:
        path.write_bytes(content)


def swapped_entries(place: Place) -> None:
    """Each kernel's whole entry, manifest and all, has the name of another's."""
    place.fill()
    pairs = list(_pairs(place))
    for one, _ in pairs:
        one.rename(one.with_name(f"{one.name}.away"))
    for one, other in pairs:
        shutil.copytree(one.with_name(f"{one.name}.away"), other)


def flipped_everywhere(place: Place) -> None:
    """One bit of each file is another."""
    place.fill()
    draw = random.Random(place.seed)
    for file in place.files():
        flip(file, draw)


def flip(file: Path, draw: random.Random) -> bytes:
    """Flip a random bit of a file, in place; return what it was."""
    content = file.read_bytes()
    if content:
        changed = bytearray(content)
        changed[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(changed)
    return content


def cut_in_half(place: Place) -> None:
    """Each file ends in its middle."""
    place.fill()
    for file in place.files():
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])


# -- the compiler -------------------------------------------------------------------------------


def compiler(script: str) -> Callable[[Place], None]:
    """Return what makes a script the compiler that ``CXX`` names; ``$REAL`` is the true one."""

    def prepare(place: Place) -> None:
        fake_compiler(place.root, script)
        place.environment["CXX"] = str(place.root / "bin" / "g++")

    return prepare


def fake_compiler(root: Path, script: str) -> Path:
    """Write a script that takes a compiler's place, and return its path."""
    real = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if real is None:
        raise RuntimeError("there is no compiler to pretend to be")
    path = root / "bin" / "g++"
    path.parent.mkdir(exist_ok=True)
    head = "" if script.startswith("\0") else f"#!/bin/sh\nREAL={real}\n"
    path.write_text(head + script)
    path.chmod(0o755)
    return path


# -- folders ------------------------------------------------------------------------------------


def no_tmpdir(place: Place) -> None:
    """``TMPDIR`` names what is not there."""
    place.environment["TMPDIR"] = str(place.root / "not there")


def no_home(place: Place) -> None:
    """The home is not there, and nothing says where else the cache may be."""
    place.environment |= {"FUSEC_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": "/proc/nobody"}


def umlauts(place: Place) -> None:
    """All paths have spaces and umlauts."""
    _named(place, "Fäden und Knöpfe — 核 Ω")


def quotes(place: Place) -> None:
    """All paths have what a shell or a printf would stumble over."""
    _named(place, 'it\'s a "$HOME" %s \\ `x`; # \n &')


def _named(place: Place, name: str) -> None:
    place.root = place.root / name
    place.__post_init__()


__all__ = ["Place", "fake_compiler", "flip"]
