"""Native parts of a call that everything can do without: built in the background, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import torch

from fusec.freezing import FrozenMiss
from fusec.toolchain.build import build
from fusec.toolchain.children import Children

_Found = TypeVar("_Found")


class NativePart(Generic[_Found]):
    """What a library gives, once it is built; until then, and where it cannot be, nothing.

    Attributes:
        found: What was loaded; None where there is nothing, or not yet.
        problem: Why there is nothing; empty where there is, or not yet.
    """

    def __init__(self, load: Callable[[Children], _Found]) -> None:
        """Remember how to build and load it.

        Args:
            load: Does so, with a compiler that the children have while it runs.
        """
        self.found: _Found | None = None
        self.problem = ""
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
            if self.found is not None or self.problem:
                return
            try:
                self.found = self._load(children)
            except KeyboardInterrupt:
                self.problem = "the process ends"
            except FrozenMiss:
                raise
            except Exception as error:
                # Calls cost more without it, and nothing else changes.
                self.problem = f"{type(error).__name__}: {error}"


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
    return build(text, extra_flags=flags, kind="native", children=children)


__all__ = ["NativePart", "build_with_torch"]
