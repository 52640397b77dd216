"""A drawing in the panel whose parts can be picked by mouse and by keyboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import traitlets as t

from fuselab.panel.widgets.script import Scripted

Spot = tuple[float, float, str, str]


class Picture(Scripted):
    """Escaped HTML or SVG, and a PNG with places to pick below it.

    Attributes:
        html: Shown first. An element with ``data-pick`` can be picked; those with the same
            ``data-link`` light up together.
        image: A PNG, or nothing.
        spots: Places on the image to pick: x and y from 0 to 1, a key, and what it is in words.
        label: What the image shows, for screen readers.
        kept: Whether the html is saved with the notebook; otherwise it is sent when asked for.
    """

    html = t.Unicode("").tag(sync=True)
    image = t.Bytes(b"").tag(sync=True)
    spots: t.List[list[object]] = t.List(default_value=[]).tag(sync=True)
    label = t.Unicode("").tag(sync=True)
    kept = t.Bool(True).tag(sync=True)

    def __init__(self, on_pick: Callable[[str], None] | None = None, *, kept: bool = True) -> None:
        """Make an empty drawing.

        Args:
            on_pick: Called with the key of what a person picked.
            kept: Whether the html is saved with the notebook. A long text is not worth that.
        """
        super().__init__("picture", kept=kept)
        self._on_pick = on_pick
        self._text = ""
        self.on_msg(self._receive)

    @property
    def text(self) -> str:
        """The html that is shown, saved or not."""
        return str(self.html) if self.kept else self._text

    def write(self, html: str) -> None:
        """Show other html."""
        if self.kept:
            self.html = html
        else:
            self._text = html
            self.send({"kind": "html", "html": html})

    def show(self, png: bytes, label: str, spots: Sequence[Spot] = ()) -> None:
        """Show another image; the places on it come with it."""
        with self.hold_sync():
            self.label = label
            self.spots = [list(spot) for spot in spots]
            self.image = png

    def _receive(self, _widget: object, message: dict[str, Any], _buffers: object) -> None:
        if message.get("kind") == "ready":
            self.send({"kind": "html", "html": self._text})
        key = message.get("key")
        if message.get("kind") == "pick" and isinstance(key, str) and self._on_pick:
            self._on_pick(key)
