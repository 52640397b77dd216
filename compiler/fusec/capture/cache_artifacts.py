"""``torch.compiler.save_cache_artifacts`` and ``load_cache_artifacts``: our kernels among them.

torch collects what was compiled, or found in a cache, as bytes by kind. Ours are the entries of the
store that libraries were taken from: JSON with the files' bytes, checked on the way in like any
other entry. ``fusec.api`` has to be imported where they are loaded: torch knows the kinds that
somebody registered.
"""

from __future__ import annotations

import base64
import functools
import json
import threading
from typing import Any

from fusec.cache import Entry, check_name, default_store, digest_of, watch_uses
from fusec.target_api.base import LibraryTarget
from fusec.target_api.registry import all_targets

KIND = "fusec"
_lock = threading.Lock()  # kernels are built by several threads


@functools.cache
def _kinds() -> frozenset[str]:
    """Return the kinds of entries that go along: libraries of kernels, and ``ahead``."""
    libraries = (each.name for each in all_targets() if isinstance(each, LibraryTarget))
    return frozenset({"ahead", *libraries})


@functools.cache
def install() -> None:
    """Register our kind with torch, once; a torch that collects nothing is left alone."""
    try:
        from torch.compiler._cache import (
            CacheArtifact,
            CacheArtifactFactory,
            CacheArtifactManager,
        )
    except ImportError:
        return

    @CacheArtifactFactory.register
    class FusecArtifact(CacheArtifact):
        """An entry of the store."""

        @staticmethod
        def type() -> str:
            """Return the kind's name."""
            return KIND

        def populate_cache(self) -> None:
            """Put the entry into the store."""
            take_in(self.content)

    def used(entry: Entry) -> None:
        if entry.kind in _kinds():
            try:
                content = written(entry)
            except OSError:
                return  # gone meanwhile
            with _lock:
                CacheArtifactManager.record_artifact(KIND, entry.digest, content)

    watch_uses(used)


def written(entry: Entry) -> bytes:
    """Return an entry as bytes."""
    files = {name: base64.b64encode(entry.read_bytes(name)).decode() for name in entry.files}
    data = {"kind": entry.kind, "key": dict(entry.key), "digest": entry.digest, "files": files}
    return json.dumps(data).encode()


def take_in(content: bytes) -> bool:
    """Put an entry into the store; returns whether it was whole."""
    try:
        data: Any = json.loads(content)
        kind, key = data["kind"], data["key"]
        check_name(kind)
        files = {name: base64.b64decode(text) for name, text in data["files"].items()}
        if kind not in _kinds() or digest_of(kind, key) != data["digest"]:
            return False
        store = default_store()
        if store.get(kind, key) is None:
            store.put(kind, key, files)
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return False
    return True


__all__ = ["install", "take_in", "written"]
