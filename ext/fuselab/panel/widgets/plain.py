"""The plain widgets that the tabs are made of, with looks that all panels share.

ipywidgets gives every widget a layout and a style of its own: two more objects to send to the page
and to save with the notebook, hundreds for ten panels. Here one that looks the same is the same
object. It must therefore never be changed: another look is another layout, ``widget.layout = ...``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import ipywidgets as widgets

_known: dict[tuple[Any, ...], Any] = {}
_lock = threading.Lock()


def _one(kind: type, traits: dict[str, str]) -> Any:
    """Return the object of a kind with these traits that all panels share."""
    key = (kind, *sorted(traits.items()))
    with _lock:
        known = _known.get(key)
        # ``Widget.close_all`` closes those that are shared, too.
        if known is None or known.comm is None:
            known = _known[key] = kind(**traits)
        return known


def layout(**traits: str) -> Any:
    """Return the layout with these CSS properties; never to be changed."""
    return _one(widgets.Layout, traits)


def make(kind: type, *, label: str = "", look: dict[str, str] | None = None, **traits: Any) -> Any:
    """Return a widget with a shared layout and style.

    Args:
        kind: A class of ipywidgets.
        label: Its description, as wide as it needs to be.
        look: CSS properties of its layout.
        traits: Its own.
    """
    style = kind.class_traits().get("style")  # type: ignore[attr-defined]
    if style is not None:
        wide = label and kind is not widgets.Button
        traits["style"] = _one(style.klass, {"description_width": "initial"} if wide else {})
    if label:
        traits["description"] = label
    return kind(layout=layout(**(look or {})), **traits)


def html(**look: str) -> Any:
    """Return an empty text, as wide as the panel where nothing else is said."""
    return make(widgets.HTML, look=look or {"width": "100%"})


def beside() -> Any:
    """Return an empty text that takes the room beside controls."""
    return html(flex="1 1 auto", margin="2px 0 2px 8px")


def row(children: Sequence[Any] = (), **look: str) -> Any:
    """Return widgets side by side, in further lines where they do not fit."""
    look = {"flex_flow": "wrap", "align_items": "center"} | look
    return make(widgets.HBox, look=look, children=tuple(children))


def column(children: Sequence[Any] = ()) -> Any:
    """Return widgets one below the other."""
    return make(widgets.VBox, look={"width": "100%"}, children=tuple(children))


def below(widget: Any) -> Iterator[Any]:
    """Yield every widget in one, the innermost first, and then itself."""
    for child in getattr(widget, "children", ()):
        yield from below(child)
    yield widget


def box(*, shown: bool = True) -> Any:
    """Return a place for something that is made later."""
    place = make(widgets.Box, look={"width": "100%"})
    show(place, shown)
    return place


def show(widget: Any, shown: bool = True) -> None:
    """Show a widget, or let nothing stand in its place; its layout is one of ``layout``."""
    with _lock:
        key = next(key for key, known in _known.items() if known is widget.layout)
    look = dict(key[1:])
    if shown != ("display" not in look):
        look.pop("display", None)
        widget.layout = layout(**(look if shown else look | {"display": "none"}))


def choice(label: str, width: str = "16em", **traits: Any) -> Any:
    """Return a list to choose from.

    Args:
        label: Its description.
        width: Its least.
        traits: Its own.
    """
    look = {"width": "auto", "min_width": width, "max_width": "100%"}
    return make(widgets.Dropdown, label=label, look=look, **traits)


def line(label: str, text: str) -> Any:
    """Return a line of text that can be changed."""
    look = {"width": "24em", "max_width": "100%"}
    return make(widgets.Text, label=label, look=look, value=text)


def switch(label: str) -> Any:
    """Return a box to check."""
    look = {"width": "auto", "margin": "2px 2px 2px 8px"}
    return make(widgets.Checkbox, label=label, look=look, value=False, indent=False)


def button(text: str, tooltip: str, icon: str = "") -> Any:
    """Return a button as wide as its text."""
    look = {"width": "auto", "flex": "0 0 auto"}
    return make(widgets.Button, label=text, look=look, tooltip=tooltip, icon=icon)
