"""Build plain kernels: any C++ compiler will do, there is nothing to probe for."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from fusec.cache import CacheStore, default_store
from fusec.errors import FusecError
from fusec.targets.plain.flags import FLAGS
from fusec.toolchain.build import EDIT_PROCESSOR_LIMIT, LIBRARY, build_key, build_missing
from fusec.toolchain.children import Children
from fusec.toolchain.compiler import (
    Compiler,
    executables,
    first_line,
    not_found,
    system_flags,
)
from fusec.toolchain.families import family_of


def compile_plain(
    text: str, kind: str, *, edited: bool, store: CacheStore | None, children: Children | None
) -> Path:
    """Compile a text, unless that has been done before; return the library's path.

    Args:
        text: The whole file.
        kind: The namespace in the store.
        edited: Whether a user has typed it.
        store: Where to look and to keep; the process's default store if None.
        children: Has the compiler while it runs.

    Raises:
        CompileError: It does not compile.
        CompilerNotFound: There is no compiler.
    """
    store = store or default_store()
    kind = f"edits-{kind}" if edited else kind
    compiler = find_any(os.environ.get("CXX", ""), os.environ.get("PATH", os.defpath))
    flags = compiler.facts.flags_of(text)
    key = build_key(compiler, text, flags)
    entry = store.get(kind, key)
    if entry is not None:
        return entry.path(LIBRARY)
    built = build_missing(
        compiler,
        text,
        key,
        store=store,
        children=children or Children(),
        extra_flags=flags,
        kind=kind,
        processor_limit=EDIT_PROCESSOR_LIMIT if edited else 0,
    )
    if isinstance(built, FusecError):
        raise built
    return built


@functools.lru_cache(maxsize=8)
def find_any(chosen: str, path: str) -> Compiler:
    """Return the compiler that ``CXX`` names, else the first on the path.

    Raises:
        CompilerNotFound: There is none.
    """
    for executable in executables(chosen, path):
        version = first_line(executable)
        family = family_of(executable, version)
        return Compiler(executable, version, (*FLAGS, *system_flags()), family=family.name)
    raise not_found(chosen)


__all__ = ["compile_plain", "find_any"]
