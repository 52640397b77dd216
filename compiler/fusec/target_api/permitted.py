"""What a kernel that is a file of Python may ask of packages, as its target says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Permitted:
    """What a file may name.

    Attributes:
        modules: By their paths, the names that may be asked of each; of one without names, any but
            what it has imported itself.
        pure: How the paths of functions begin of which nothing can be kept.
        language: The package whose functions may decorate others.
    """

    modules: Mapping[str, frozenset[str]]
    pure: tuple[str, ...] = ()
    language: str = ""

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the packages that may be imported, by name."""
        return tuple(sorted({path.partition(".")[0] for path in self.modules}))


__all__ = ["Permitted"]
