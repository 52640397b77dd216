"""What Triton compiled of the store's kernels: it goes along where the store goes.

Triton keeps it in folders of its own, each named by a hash over the kernel's text, its constants,
the architecture and Triton itself; nothing in that depends on which GPU of a machine it was, or on
where the text lies.  Which folder belongs to which text is written in the intermediate code, that
names the file of each line.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_FOLDER = re.compile(r"[A-Z2-7]{32,128}")
_GROUP = "__grp__"
_PLACES = (".ttir", ".source")  # what names the files of lines
_LEFT_OUT = ("lock",)


def compiled_for(texts: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the folders of what was compiled, each with its files.

    Args:
        texts: The folder of the store that has the kernels' texts.
    """
    wanted = os.fsencode(str(texts) + os.sep)
    for root in dict.fromkeys(_roots()):
        if root.is_dir():
            for folder in sorted(root.iterdir()):
                if _FOLDER.fullmatch(folder.name) and _is_of(folder, wanted):
                    yield folder.name, _files(folder)


def _roots() -> Iterator[Path]:
    from triton import knobs

    if knobs.cache.dir:
        yield Path(knobs.cache.dir)
    if "FUSEC_CACHE_DIR" in os.environ and "TRITON_CACHE_DIR" not in os.environ:
        yield Path(os.environ["FUSEC_CACHE_DIR"], "triton-cache")


def _is_of(folder: Path, wanted: bytes) -> bool:
    try:
        named = [each for each in folder.iterdir() if each.suffix in _PLACES]
        return any(wanted in each.read_bytes() for each in named)
    except OSError:
        return False  # Triton writes it at this moment, or somebody cleared it


def _files(folder: Path) -> dict[str, bytes]:
    return {
        each.name: b"" if each.name.startswith(_GROUP) else each.read_bytes()
        for each in sorted(folder.iterdir())
        if each.is_file() and each.name not in _LEFT_OUT
    }


def architecture(files: Mapping[str, bytes]) -> str:
    """Return what a folder's kernel is compiled for: ``sm_90``, ``gfx942``; empty if unsaid."""
    for name, data in files.items():
        if name.endswith(".json") and not name.startswith(_GROUP):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found = json.loads(data)["target"]["arch"]
                return f"sm_{found}" if isinstance(found, int) else str(found)
    return ""


def take_in(name: str, files: Mapping[str, bytes]) -> bool:
    """Put what was compiled elsewhere where Triton looks for it.

    Args:
        name: The folder's.
        files: What was in it; what lists the others is written anew, as it names their places.

    Returns:
        Whether it was not there yet.

    Raises:
        ValueError: Triton would not call a folder so, or a file.
    """
    from triton.runtime.cache import FileCacheManager

    if not _FOLDER.fullmatch(name) or any(os.path.basename(each) != each for each in files):
        raise ValueError(f"not what Triton compiled: {name[:80]!r}")
    groups = [each.removeprefix(_GROUP) for each in files if each.startswith(_GROUP)]
    place = FileCacheManager(name)
    if groups and all(place.get_group(each) for each in groups):
        return False
    paths = {
        each: place.put(data, each) for each, data in files.items() if not each.startswith(_GROUP)
    }
    for each in groups:
        stem = each.removesuffix(".json")
        place.put_group(each, {n: p for n, p in paths.items() if n.startswith(f"{stem}.")})
    return True


__all__ = ["architecture", "compiled_for", "take_in"]
