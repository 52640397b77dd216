"""Which package machine code was made for: it says so itself, so that it runs with no other parts.

Hashes in the manifest tell that a file is as somebody wrote it. Whoever edits a table by hand and
writes the hashes anew has a package whose parts are sound, each by itself: guards that let calls
in that the kernels were not made for, layouts that reach beyond the memory, other weights.
Therefore all machine code holds a mark: a hash over everything else in the package, and over what
is said of that code. A library has it among its data, code for a GPU behind its end.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from .archive import Archive
from .errors import DamagedPackage
from .json_text import Reader, canonical

_MARK = "fuse-package sha256="
_LENGTH = len(_MARK) + 64
_CUBINS = "cubins/"
_NOT_BOUND = ("binaries", "format", "members")  # each binary is bound to what is said of it alone
SYMBOL = "fuse_package"


def rest_of(facts: Mapping[str, object], hashes: Mapping[str, str]) -> bytes:
    """Return what stands for all of a package but its machine code.

    Args:
        facts: What the manifest says.
        hashes: Of its other members, by name.
    """
    said = {name: value for name, value in facts.items() if name not in _NOT_BOUND}
    return hashlib.sha256(canonical({"facts": said, "members": dict(hashes)})).digest()


def mark(rest: bytes, code: Mapping[str, object]) -> bytes:
    """Return what machine code holds.

    Args:
        rest: From ``rest_of``.
        code: What is said of it.
    """
    found = hashlib.sha256(rest + canonical(dict(code))).hexdigest()
    return f"{_MARK}{found}".encode("ascii")


def marked(rest: bytes, name: str, code: bytes) -> bytes:
    """Return a member with code for a GPU: the code and its mark."""
    return code + mark(rest, {"member": name})


def unmarked(data: memoryview) -> memoryview:
    """Return the code of a member with code for a GPU."""
    return data[:-_LENGTH]


def require_bound(archive: Archive, binaries: Sequence[Reader]) -> None:
    """Refuse machine code that was made for another package than it is in.

    Raises:
        DamagedPackage: One was.
    """
    names = {each.text("member") for each in binaries}
    cubins = [name for name in archive.members if name.startswith(_CUBINS)]
    others = {
        name: member.sha256
        for name, member in archive.members.items()
        if name not in names and not name.startswith(_CUBINS)
    }
    rest = rest_of(archive.manifest.whole(), others)
    for each in binaries:
        wanted = mark(rest, each.whole())
        if re.search(re.escape(wanted), archive.data(each.text("member"))) is None:
            raise _made_for_another(each.text("member"))
    for name in cubins:
        if archive.data(name)[-_LENGTH:] != mark(rest, {"member": name}):
            raise _made_for_another(name)


def _made_for_another(name: str) -> DamagedPackage:
    return DamagedPackage(
        f"{name} was made for another package: something in this one was changed after it"
    )


__all__ = ["SYMBOL", "mark", "marked", "require_bound", "rest_of", "unmarked"]
