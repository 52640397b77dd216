"""Native parts of a call that everything can do without: built in the background, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import torch

from fusec.errors import BuildTimeout, CannotBuild, CompileError
from fusec.freezing import FrozenMiss
from fusec.toolchain.build import build
from fusec.toolchain.children import Children

_Found = TypeVar("_Found")
# Seconds for the compiler: nobody waits for it, and it gives way to all else on a busy machine.
TIME_LIMIT = 600.0


def passes(error: BaseException) -> bool:
    """Whether a build may succeed another time, as nothing is wrong with its text.

    So it is where the disk was full, where the machine was too busy, and where the compiler was
    ended, which then says nothing of a line.
    """
    if isinstance(error, CompileError):
        return not error.diagnostics
    return isinstance(error, (FrozenMiss, BuildTimeout, CannotBuild, OSError))


class NativePart(Generic[_Found]):
    """What a library gives, once it is built; until then, and where it cannot be, nothing.

    Attributes:
        found: What was loaded; None where there is nothing, or not yet.
        problem: Why there is nothing; empty where there is, or not yet.
        passing: Whether another time may bring it even so.
    """

    def __init__(self, load: Callable[[Children], _Found]) -> None:
        """Remember how to build and load it.

        Args:
            load: Does so, with a compiler that the children have while it runs.
        """
        self.found: _Found | None = None
        self.problem = ""
        self.passing = False
        self._load = load
        self._preparing = threading.Lock()

    def prepare(self, children: Children) -> None:
        """Build it, once a machine, or find it built; wait for another thread that does so.

        Args:
            children: Has the compiler while it runs.

        Raises:
            FrozenMiss: Nothing may be compiled now, and it is not in the store: for another time.
        """
        with self._preparing:
            if self.found is not None or (self.problem and not self.passing):
                return
            try:
                self.found = self._load(children)
                self.problem, self.passing = "", False
            except KeyboardInterrupt:
                self.problem = "the process ends"
            except FrozenMiss:
                raise
            except Exception as error:
                # Calls cost more without it, and nothing else changes.
                self.problem = f"{type(error).__name__}: {error}"
                self.passing = passes(error)


def build_with_torch(
    source: Path, flags: Sequence[str], children: Children, *, also: str = ""
) -> Path:
    """Build a C++ file that calls torch's libraries; another torch has a build of its own.

    Args:
        source: The file.
        flags: For the compiler.
        children: Has the compiler while it runs.
        also: What else the build is for.
    """
    # The first line makes another torch another text.
    text = f"// torch {torch.__version__}{also}\n{source.read_text()}"
    return build(text, extra_flags=flags, kind="native", time_limit=TIME_LIMIT, children=children)


__all__ = ["TIME_LIMIT", "NativePart", "build_with_torch", "passes"]
