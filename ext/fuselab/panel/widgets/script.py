"""The scripts and looks of the panel's own widgets, held once by a notebook.

A saved notebook keeps every trait of every widget. With its script in each editor and drawing, ten
panels would hold as many copies, a quarter of a megabyte; so each has a few lines that fetch the
script from the one widget which has it, in a live notebook and in a restored one alike.
"""

from __future__ import annotations

import base64
import gzip
import threading
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets as t

from fuselab.panel.widgets import plain

STATIC = Path(__file__).resolve().parents[1] / "static"

# Scripts are loaded once a page, whichever widgets hold their text. This part is in every widget,
# so it only fetches what does the work: ``loader.js``.
_LOADER = """\
export default { async render(at) {
  const name = at.model.get("script").replace("IPY_MODEL_", "");
  const shared = await at.model.widget_manager.get_model(name);
  const url = URL.createObjectURL(new Blob([shared.get("loader")], {type: "text/javascript"}));
  return (await (globalThis.fuselabLoader ??= import(url))).default(shared, at);
} };"""


# Run when the shared scripts reach the page, before there is anything to show with them.
_WARM = """\
export default { async initialize({ model }) {
  const url = URL.createObjectURL(new Blob([model.get("loader")], {type: "text/javascript"}));
  (await (globalThis.fuselabLoader ??= import(url))).warm?.(model);
} };"""


class Script(anywidget.AnyWidget):
    """What the drawings and editors of all panels share; it is never shown itself.

    The page loads and reads the scripts as soon as it has them.

    Attributes, packed but for the loader, which unpacks them:
        editor: The editor's script.
        picture: The drawing's script.
        copy: The copy button's script.
        loader: What loads these.
        css: The looks of both, and of the plain widgets round them.
    """

    _esm = _WARM

    editor = t.Unicode("").tag(sync=True)
    picture = t.Unicode("").tag(sync=True)
    copy = t.Unicode("").tag(sync=True)
    loader = t.Unicode("").tag(sync=True)
    css = t.Unicode("").tag(sync=True)


_shared: Script | None = None
_lock = threading.Lock()


def shared_script() -> Script:
    """Return the one of this process, made at the first time."""
    global _shared
    with _lock:
        if _shared is None or _shared.comm is None:
            _shared = Script(
                editor=_packed("editor.js"),
                picture=_packed("picture.js"),
                copy=_packed("copy.js"),
                loader=(STATIC / "loader.js").read_text(encoding="utf-8"),
                css=_packed("editor.css", "picture.css"),
                layout=plain.layout(),
            )
        return _shared


def _packed(*names: str) -> str:
    """Return files as one text, compressed: a notebook that holds it is a third smaller."""
    text = b"".join((STATIC / name).read_bytes() for name in names)
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


class Scripted(anywidget.AnyWidget):
    """Base of the widgets with a script of their own.

    Attributes:
        script: Where the script is.
        part: Which of its scripts is this widget's.
    """

    _esm = _LOADER

    script = t.Instance(Script).tag(sync=True, **widgets.widget_serialization)
    part = t.Unicode("").tag(sync=True)

    def __init__(self, part: str, **traits: Any) -> None:
        """Make a widget.

        Args:
            part: ``editor``, ``picture`` or ``copy``.
            traits: The widget's own.
        """
        super().__init__(script=shared_script(), part=part, layout=plain.layout(), **traits)
