"""Which tables a binary was made for: it says so itself, so that neither runs with another's.

Hashes in the manifest tell that a file is as somebody wrote it. Whoever edits a table by hand and
writes the hashes anew has a package whose parts are sound, each by itself: guards that let calls
in that the kernels were not made for, layouts that reach beyond the memory. Therefore each binary
holds a mark, a hash over all tables that say what its functions take and do, and over what the
manifest says of the binary.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from .archive import Archive
from .errors import DamagedPackage
from .json_text import Reader, canonical

_MARK = "fuse-tables sha256="
SYMBOL = "fuse_tables"


def is_table(name: str) -> bool:
    """Whether a member says what binaries take and do."""
    return name in ("guards.json", "weights.json") or name.startswith("programs/")


def mark(tables: Mapping[str, bytes], binary: Mapping[str, object]) -> str:
    """Return what a binary holds.

    Args:
        tables: Contents of all tables by name.
        binary: What the manifest says of the binary.
    """
    found = hashlib.sha256(canonical(dict(binary)))
    for name in sorted(tables):
        found.update(f"{name} {len(tables[name])}\n".encode("ascii"))
        found.update(tables[name])
    return _MARK + found.hexdigest()


def require_bound(archive: Archive, binaries: Sequence[Reader]) -> None:
    """Refuse binaries that were made for other tables than the package has.

    Raises:
        DamagedPackage: One was.
    """
    if not binaries:
        return
    tables = {name: bytes(archive.data(name)) for name in archive.members if is_table(name)}
    for each in binaries:
        wanted = mark(tables, each.whole()).encode("ascii")
        if re.search(re.escape(wanted), archive.data(each.text("member"))) is None:
            raise DamagedPackage(
                f"{each.text('member')} was made for other tables: guards.json, weights.json or a "
                "program was changed after it"
            )


__all__ = ["SYMBOL", "is_table", "mark", "require_bound"]
