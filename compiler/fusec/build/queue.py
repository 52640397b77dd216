"""Kernels that are built while others are still being written.

A graph's kernels are handed over one by one, as their texts are finished, and the compilers run
beside the rest of the compilation.  Equal texts are built once; what is in the store is not built
at all.  Triton's have processes of their own, for all compilations (``triton_pool``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from fusec.cache import Store, default_store
from fusec.errors import FusecError
from fusec.kernel import KernelSource
from fusec.targets.cpp.toolchain import build as cpp_build
from fusec.targets.cpp.toolchain.compiler import find_compiler
from fusec.targets.triton.toolchain import pool as triton_pool


class BuildQueue:
    """The C++ kernels of one compilation. To be closed, also after a failure.

    Args:
        store: Where to look and to keep; the process's default store if None.
    """

    def __init__(self, store: Store | None = None) -> None:
        self._store = store or default_store()
        self._children = cpp_build.Children()
        self._pool: ThreadPoolExecutor | None = None
        self._builds: dict[str, Future[Path]] = {}

    def begin(self, kernel: KernelSource) -> None:
        """Begin to build a kernel; returns at once."""
        if kernel.target == "cpp":
            self.add(kernel.text)
        else:
            triton_pool.prepare(kernel.text, kernel.signature, kernel.entry)

    def add(self, text: str) -> None:
        """Begin to build a text, unless it has been added before; returns at once."""
        if text in self._builds:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(os.cpu_count() or 1, "fusec-build")
        self._builds[text] = self._pool.submit(self._build, text)

    def finish(self, texts: Iterable[str]) -> list[Path]:
        """Wait for the texts' libraries, in order; what was not added is built now.

        All are built before the first failure is raised, so that the good ones are in the store.

        Raises:
            CompileError: A text does not compile.
            BuildTimeout: The compiler takes too long.
            CompilerNotFound: There is none.
        """
        wanted = list(texts)
        for text in wanted:
            self.add(text)
        failures = [self._builds[text].exception() for text in wanted]
        self._store.give_notice()
        for failure in failures:
            if failure is not None:
                raise failure
        return [self._builds[text].result() for text in wanted]

    def close(self) -> None:
        """End every compiler that still runs; nothing is built any more."""
        self._children.stop()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _build(self, text: str) -> Path:
        compiler = find_compiler()
        key = cpp_build.build_key(compiler, text)
        entry = self._store.get("cpp", key)
        if entry is not None:
            return entry.path(cpp_build.LIBRARY)
        built = cpp_build.build_missing(
            compiler, text, key, store=self._store, children=self._children
        )
        if isinstance(built, FusecError):
            raise built
        return built


__all__ = ["BuildQueue"]
