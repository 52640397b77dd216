"""Kernels that are built while others are still being written.

A graph's kernels are handed over one by one, as their texts are finished, and the compilers run
beside the rest of the compilation.  Equal texts are built once; what is in the store is not built
at all.  Targets whose kernels are Python have processes of their own, for all compilations.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fusec.cache import CacheStore, default_store
from fusec.kernel_source import KernelSource
from fusec.target_api.base import LibraryTarget, PythonTarget
from fusec.target_api.registry import find_target
from fusec.toolchain.children import Children


@dataclass(frozen=True)
class BuildRequest:
    """A library to build.

    Attributes:
        text: The kernel's.
        target: The kernel's.
        flags: The kernel's own.
    """

    text: str
    target: LibraryTarget
    flags: tuple[str, ...] = ()


class BuildQueue:
    """The libraries of one compilation's kernels. To be closed, also after a failure.

    Args:
        store: Where to look and to keep; the process's default store if None.
    """

    def __init__(self, store: CacheStore | None = None) -> None:
        self._store = store or default_store()
        self._children = Children()
        self._pool: ThreadPoolExecutor | None = None
        self._builds: dict[BuildRequest, Future[Path]] = {}

    def begin(self, kernel: KernelSource) -> None:
        """Begin to build a kernel; returns at once."""
        target = find_target(kernel.target)
        if isinstance(target, LibraryTarget):
            self.add(BuildRequest(kernel.text, target, kernel.flags))
        elif isinstance(target, PythonTarget):
            target.begin(kernel)

    def add(self, wanted: BuildRequest) -> None:
        """Begin to build a library, unless it has been added before; returns at once."""
        if wanted in self._builds:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(os.cpu_count() or 1, "fusec-build")
        self._builds[wanted] = self._pool.submit(
            wanted.target.compile,
            wanted.text,
            flags=wanted.flags,
            store=self._store,
            children=self._children,
        )

    def finish(self, libraries: Iterable[BuildRequest]) -> list[Path]:
        """Wait for libraries, in order; what was not added is built now.

        All are built before the first failure is raised, so that the good ones are in the store.

        Raises:
            CompileError: A text does not compile.
            BuildTimeout: The compiler takes too long.
            CompilerNotFound: There is none.
        """
        wanted = list(libraries)
        for each in wanted:
            self.add(each)
        failures = [self._builds[each].exception() for each in wanted]
        self._store.give_notice()
        for failure in failures:
            if failure is not None:
                raise failure
        return [self._builds[each].result() for each in wanted]

    def close(self) -> None:
        """End every compiler that still runs; nothing is built any more."""
        self._children.stop()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


__all__ = ["BuildQueue", "BuildRequest"]
