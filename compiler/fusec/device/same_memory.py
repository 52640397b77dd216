"""Which names of steps are of the same memory: those of views, and what they are views of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusec.device.steps import PythonCall, Step, touched


class SameMemory:
    """The names that the steps of a program have for the same memory."""

    def __init__(self, steps: Sequence[Step]) -> None:
        """Look at the calls whose results may be views."""
        self.root: dict[str, str] = {}
        for step in steps:
            if isinstance(step, PythonCall) and step.views:
                found = [self._find(name) for name in touched(step)]
                self.root.update({name: found[0] for name in found if name != found[0]})

    def _find(self, name: str) -> str:
        while name in self.root:
            name = self.root[name]
        return name

    def of(self, names: Iterable[str]) -> set[str]:
        """Return one name for the memory of each of ``names``."""
        return {self._find(name) for name in names}


__all__ = ["SameMemory"]
