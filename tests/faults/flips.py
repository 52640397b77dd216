"""Bits of a cache's files, flipped one at a time: what is read is what was written, or nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from faults.makeready import flip
from fusec.cache import MANIFEST, QUARANTINE, CacheStore, read_entry


@dataclass
class Flipped:
    """What became of flipped bits.

    Attributes:
        files: How many files there are.
        bytes: Their size.
        missed: How often an entry was a miss.
        harmless: How often what was read was what had been written.
        wrong: What else happened, in words.
    """

    files: int = 0
    bytes: int = 0
    missed: int = 0
    harmless: int = 0
    wrong: list[str] = field(default_factory=list)


def flip_store(folder: Path, count: int, seed: int) -> Flipped:
    """Flip bits of a store, one at a time, each in a file of an entry; put them right again.

    Every file gets its turn before one gets a second; which bit, is drawn.

    Args:
        folder: The store's.
        count: How many bits.
        seed: Of what is drawn.
    """
    store, draw, found = CacheStore(folder), random.Random(seed), Flipped()
    entries = {
        manifest.parent: read_entry(
            manifest.parent, manifest.parent.parent.name, manifest.parent.name
        )
        for manifest in sorted(folder.glob("[!.]*/*/" + MANIFEST))
    }
    contents = {
        (entry, file.name): file.read_bytes() for entry in entries for file in entry.iterdir()
    }
    found.files, found.bytes = len(contents), sum(map(len, contents.values()))
    turns: list[tuple[Path, str]] = []
    for _ in range(count):
        if not turns:
            turns = sorted(contents)
            draw.shuffle(turns)
        entry, name = turns.pop()
        known = entries[entry]
        if store.get(known.kind, known.key) is None:  # or every miss that follows says nothing
            raise RuntimeError(f"{entry} is a miss as it was written")
        flip(entry / name, draw)
        where = f"{entry.parent.name}/{entry.name[:8]}/{name}"
        try:
            read = store.get(known.kind, known.key)
        except Exception as error:
            found.wrong.append(f"{where}: {type(error).__name__}: {error}")
        else:
            if read is None:
                found.missed += 1
            elif all(read.read_bytes(n) == contents[entry, n] for n in known.files) and (
                read.files == known.files
            ):
                found.harmless += 1
            else:
                found.wrong.append(f"{where}: other contents were taken for right")
        _put_back(folder, entry, contents)
    return found


def _put_back(folder: Path, entry: Path, contents: dict[tuple[Path, str], bytes]) -> None:
    aside = folder / QUARANTINE
    moved = list(aside.glob(f"{entry.name}.*")) if aside.is_dir() else []
    for each in moved:
        if not entry.exists():
            each.rename(entry)
    for (owner, name), content in contents.items():
        if owner == entry:
            (entry / name).write_bytes(content)


__all__ = ["Flipped", "flip_store"]
