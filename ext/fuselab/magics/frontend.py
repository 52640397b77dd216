"""What a cell needs to know of the shell that runs it."""

from __future__ import annotations

import contextlib
from typing import Any

from fuselab.session.cell_options import Frontend


def frontend_of(shell: Any) -> Frontend:
    """Return the shell's own ways with a cell.

    Args:
        shell: IPython's.
    """
    cell_id = None
    with contextlib.suppress(Exception):  # a terminal has no parent message
        cell_id = shell.get_parent()["metadata"].get("cellId")
    return Frontend(
        # newer IPython counts on before the cell runs; the prompt knows both ways
        number=max(shell.displayhook.prompt_count, 1),
        cell_id=cell_id,
        transform=shell.transform_cell,
        transform_ast=shell.transform_ast,
        interactivity=shell.ast_node_interactivity,
    )


__all__ = ["frontend_of"]
