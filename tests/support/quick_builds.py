"""Kernels built with `-O1` in tests of what a program becomes, not of how it is compiled.

g++ needs a quarter to a half less, and it takes a third of a run. Only `run.py` without `--all`
asks: who chooses a test, or runs them all, has the flags that users have, and so do the tests of
targets, schedules, nets and checks in every run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from fusec.toolchain import compiler as toolchain

ASKED = "FUSELAB_QUICK_BUILDS"
FOLDERS = ("tests/compiler/capture/", "tests/compiler/graph/", "tests/compiler/lower/")
FLAG = "-O1"  # the last one wins


def quick(item: pytest.Item) -> bool:
    """Whether a test's kernels may be built so."""
    timed = any(item.get_closest_marker(name) for name in ("serial", "timing", "slow"))
    return ASKED in os.environ and item.nodeid.startswith(FOLDERS) and not timed


def finder() -> Callable[[str, str, tuple[str, ...]], toolchain.Compiler]:
    """Return what finds the same compiler, with one flag more."""
    find = toolchain._find_compiler

    def found(chosen: str, path: str, march: tuple[str, ...]) -> toolchain.Compiler:
        compiler = find(chosen, path, march)
        return replace(compiler, flags=(*compiler.flags, FLAG))

    return found


__all__ = ["ASKED", "finder", "quick"]
