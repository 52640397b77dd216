"""What the magics of a notebook share: its session, its cells, the defaults that were set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics
from IPython.display import display

from fuselab.errors import UnknownName
from fuselab.session.fused_cell import FusedCell

if TYPE_CHECKING:
    from fuselab.session.session import Session


class SessionMagics(Magics):
    """Magics about what was fused in this notebook."""

    @property
    def defaults(self) -> Any:
        """``FuseMagics``, which has what ``%config FuseMagics`` sets, and the session."""
        shell: Any = self.shell
        return shell.magics_manager.registry["FuseMagics"]

    @property
    def session(self) -> Session:
        """The notebook's."""
        session: Session = self.defaults.session
        return session

    def cell(self, name: str | None) -> FusedCell:
        """Return a cell, the latest if none is named.

        Raises:
            UsageError: There is no such cell.
        """
        try:
            return self.session.cell(name)
        except UnknownName as error:
            raise UsageError(str(error)) from None


def show_panel(cell: FusedCell, *, below: bool) -> None:
    """Show the live workbench, perhaps below the cell's result."""
    from fuselab.panel import BelowResult  # imports ipywidgets

    panel = cell.workbench()
    display(BelowResult(panel) if below else panel)


__all__ = ["SessionMagics", "show_panel"]
