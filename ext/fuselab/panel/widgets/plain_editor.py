"""A field of text in place of the editor, for pages that have ipywidgets' own widgets alone.

Everything but the editor and the figures is made of these. The styles that hide this field's button
come with the editor's script: where the page runs it, nobody sees the button.
"""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from fuselab.panel.widgets import plain
from fuselab.panel.widgets.editor import Editor

ROWS = 24


class PlainEditor:
    """A button, and the field that it opens: what is typed there is what the editor would send."""

    def __init__(self, editor: Editor) -> None:
        """Make the button.

        Args:
            editor: Has the text; gets what is typed.
        """
        self.editor = editor
        self.area: Any = None
        self._filling = False
        self.button = plain.button(
            "Edit as plain text",
            "For a page that shows no editor above: no colors, no lines",
            "edit",
        )
        self.button.on_click(lambda _: self.open())
        self.widget = plain.column([self.button])
        self.widget.add_class("fuselab-without-scripts")

    def open(self) -> None:
        """Show the field."""
        if self.area is None:
            look = {"width": "100%", "height": "auto"}
            self.area = plain.make(widgets.Textarea, look=look, rows=ROWS)
            self.area.observe(self._typed, "value")
            self.editor.observe(lambda _: self._fill(), "content")
            self._fill()
            self.widget.children = (self.area,)

    def _fill(self) -> None:
        self._filling = True
        try:
            self.area.value = self.editor.text
        finally:
            self._filling = False

    def _typed(self, change: dict[str, Any]) -> None:
        if not self._filling:
            self.editor.take(change["new"])


__all__ = ["PlainEditor"]
