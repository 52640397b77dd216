"""A panel in use without a browser: shown, typed into, waited for."""

from __future__ import annotations

from fuselab.panel import Workbench, workbench
from support.panel_fake import FakeCell


def type_text(panel: Workbench, text: str, kind: str = "edit") -> None:
    """Do what the browser does after typing."""
    editor = panel.kernels.editor
    assert editor is not None
    seen = editor.content["seen"] + 1
    message = {"kind": kind, "document": editor.document, "text": text, "seen": seen}
    editor._handle_custom_msg(message, [])


def opened(cell: FakeCell) -> Workbench:
    """Return a panel whose tabs with figures have been opened before."""
    panel = workbench(cell)
    panel.tuning.open()
    panel.tab("Timings").open()
    return panel


def settle(panel: Workbench) -> None:
    assert panel.wait(30), "the worker did not come to rest"
