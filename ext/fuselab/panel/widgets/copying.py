"""A button that copies the editor's text; the page does it, for only the page has a clipboard."""

from __future__ import annotations

import traitlets as t

from fuselab.panel.widgets.script import Scripted


class CopyButton(Scripted):
    """Copies what the panel's editor shows at the moment of the click.

    Where the page has no clipboard the text is copied by way of a selection; where that is
    refused as well, the editor's text is selected, and the button says what to press.

    Attributes:
        description: The button's text.
        tooltip: What it does.
    """

    description = t.Unicode("").tag(sync=True)
    tooltip = t.Unicode("").tag(sync=True)

    def __init__(self, description: str, tooltip: str) -> None:
        super().__init__("copy", description=description, tooltip=tooltip)
