"""A drawing in the panel whose parts can be picked by mouse and by keyboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anywidget
import traitlets as t

from .editor import STATIC

Spot = tuple[float, float, str, str]


class Picture(anywidget.AnyWidget):
    """Escaped HTML or SVG, and a PNG with places to pick below it.

    Attributes:
        html: Shown first. An element with ``data-pick`` can be picked; those with the same
            ``data-link`` light up together.
        image: A PNG, or nothing.
        spots: Places on the image to pick: x and y from 0 to 1, a key, and what it is in words.
        label: What the image shows, for screen readers.
    """

    _esm = STATIC / "picture.js"
    _css = STATIC / "picture.css"

    html = t.Unicode("").tag(sync=True)
    image = t.Bytes(b"").tag(sync=True)
    spots: t.List[list[object]] = t.List(default_value=[]).tag(sync=True)
    label = t.Unicode("").tag(sync=True)

    def __init__(self, on_pick: Callable[[str], None] | None = None) -> None:
        """Make an empty drawing.

        Args:
            on_pick: Called with the key of what a person picked.
        """
        super().__init__()
        self._on_pick = on_pick
        self.on_msg(self._receive)

    def show(self, png: bytes, label: str, spots: Sequence[Spot] = ()) -> None:
        """Show another image; the places on it come with it."""
        with self.hold_sync():
            self.label = label
            self.spots = [list(spot) for spot in spots]
            self.image = png

    def _receive(self, _widget: object, message: dict[str, Any], _buffers: object) -> None:
        key = message.get("key")
        if message.get("kind") == "pick" and isinstance(key, str) and self._on_pick:
            self._on_pick(key)
