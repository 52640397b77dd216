"""The kernels of a notebook by name, as a mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from fuselab.errors import UnknownName

if TYPE_CHECKING:
    from fusec.kernel import Kernel


class NamedSession(Protocol):
    """What is asked of a session (``fuselab.session.session.Session``)."""

    @property
    def cells(self) -> Mapping[str, Any]:
        """Its cells, by name."""

    def find(self, name: str) -> tuple[Any, Kernel]:
        """Return the cell and the kernel that a name means."""


class KernelBook(Mapping[str, "Kernel"]):
    """A session's kernels by name, as they are when looked up."""

    def __init__(self, session: NamedSession) -> None:
        self._session = session

    def __getitem__(self, name: str) -> Kernel:
        return self._session.find(name)[1]

    def __iter__(self) -> Iterator[str]:
        names: dict[str, None] = {}
        for cell in self._session.cells.values():
            names.update(dict.fromkeys(cell.kernels))
        return iter(names)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        try:
            self._session.find(str(name))
        except UnknownName:
            return False
        return True

    def __repr__(self) -> str:
        return f"<kernels: {', '.join(self) or 'none'}>"
