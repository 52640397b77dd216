"""The source editor: the one part of the panel with JavaScript of its own.

It is built from ``js/`` into ``static/``, which the wheel carries: nothing is loaded from the
network.  Its text is saved with the notebook, so a panel has a single editor and makes it late.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import traitlets as t

from fusec.target_api.base import Target
from fuselab.display.kernel_text import extent_of
from fuselab.panel.widgets.script import Scripted

OnEdit = Callable[[str, str], None]


class Editor(Scripted):
    """A code editor for one text at a time, with colors and line numbers.

    Attributes:
        content: ``document`` (a name), ``text`` and ``seen``, the number of the latest edit
            that the text takes in: a view ignores a text that is older than what was typed;
            ``before`` and ``after``, the lines round the kernel itself, which are folded.
        language: ``cpp`` or ``python``.
        label: The accessible name.
        mark: The line at fault, from 1; 0 for none.
        status: A sentence that screen readers speak when it changes.
        cell: The cell's lines beside the kernel: number and text each.
        links: Kernel lines and the cell lines that they compute: see ``linking.packed``.
        costs: Kernel lines and their shares of the time: see ``line_counts.packed_shares``.
    """

    content = t.Dict(default_value={"document": "", "text": "", "seen": 0}).tag(sync=True)
    language = t.Unicode("cpp").tag(sync=True)
    label = t.Unicode("").tag(sync=True)
    mark = t.Int(0).tag(sync=True)
    status = t.Unicode("").tag(sync=True)
    cell: t.List[list[object]] = t.List(default_value=[]).tag(sync=True)
    links = t.Unicode("").tag(sync=True)
    costs = t.Unicode("").tag(sync=True)

    def __init__(
        self, state: AbstractContextManager[Any], on_edit: OnEdit, on_check: OnEdit, on_keep: OnEdit
    ) -> None:
        """Make an editor.

        Args:
            state: A re-entrant lock, held from the moment a text arrives until ``on_edit`` has
                taken it: whoever shows what is known in between would show the text before it,
                and the page would take that for newer than what was typed.
            on_edit: Called with the document and its new text after typing.
            on_check: The same, when the user asks for a check by keyboard.
            on_keep: The same, for keeping.
        """
        super().__init__("editor")
        self.on_shown: Callable[[], None] = lambda: None
        self.on_near: Callable[[], None] = lambda: None
        self._handlers = {"check": on_check, "keep": on_keep}
        self._state = state
        self._on_edit = on_edit
        self._target = ""
        self._asked = 0
        self._answered = threading.Event()
        self._latest: dict[str, int] = {}  # document to its latest edit's number
        self._shown = False  # whether a view has ever said so
        self.on_msg(self._receive)

    @property
    def document(self) -> str:
        """The name of the text that is shown."""
        return str(self.content["document"])

    @property
    def text(self) -> str:
        """The text that is shown, as far as it has arrived here."""
        return str(self.content["text"])

    def load(self, document: str, text: str, target: Target, label: str) -> None:
        """Show another text; undo starts afresh."""
        self.mark = 0
        self.label = label
        self.language = target.language
        self._target = target.name
        self.content = {**self.content, "document": document, **self._folded(text)}

    def replace(self, text: str) -> None:
        """Change the shown text in place; the user can undo it."""
        self.content = {**self.content, **self._folded(text)}

    def _folded(self, text: str) -> dict[str, object]:
        """Return a text, and how many of its lines stand before the kernel and after it."""
        if not self._target:  # nothing was loaded yet
            return {"text": text, "before": 0, "after": 0}
        extent = extent_of(text, self._target)
        before, after = extent.first - 1, extent.count - extent.last
        return {"text": text, "before": before, "after": after}

    def sync(self, timeout: float = 0.5) -> bool:
        """Wait until the text that the page shows right now has arrived here.

        A click and the edit before it may be delivered on different threads, in any order. Where
        nobody answers (the page is closed, a cell keeps the kernel busy) the known text counts.
        Must not be called with ``state`` held, which the answer needs.

        Args:
            timeout: Seconds.

        Returns:
            Whether it has: False where nobody answered in time.
        """
        if not self._shown:
            return True
        self._asked += 1
        self._answered.clear()
        self.send({"kind": "sync", "id": self._asked})
        return self._answered.wait(timeout)

    def take(self, text: str) -> None:
        """Take a text that was typed elsewhere, as if the page had sent it."""
        seen = int(str(self.content["seen"])) + 1
        message = {"kind": "edit", "document": self.document, "text": text, "seen": seen}
        self._receive(self, message, None)

    def _receive(self, _widget: object, message: dict[str, Any], _buffers: object) -> None:
        kind, document, text = message.get("kind"), message.get("document"), message.get("text")
        if kind == "ready":
            self._shown = True
            self.on_shown()
        elif kind == "near":
            self.on_near()
        if not isinstance(document, str) or not isinstance(text, str):
            return
        seen = int(message.get("seen", 0))
        with self._state:
            known = self._latest.get(document, 0)
            # What was typed after it may have overtaken it on another thread.
            stale = seen < known
            # The same number is a text that arrived before; Python may have replaced it since,
            # and an answer to ``sync`` that comes too late must not bring it back.
            if seen > known:
                self._latest[document] = seen
                # The number counts for every document: a view that has sent a later one would
                # take whatever Python shows next for older than that.
                echo: dict[str, object] = {"seen": max(seen, int(str(self.content["seen"])))}
                if document == self.document:
                    echo |= self._folded(text)  # views that typed on since then ignore it
                self.content = {**self.content, **echo}
                self._on_edit(document, text)
        if kind == "sync" and message.get("id") == self._asked:
            self._answered.set()
        if kind in self._handlers and not stale:
            self._handlers[kind](document, text)
