"""The tunables of a kernel text as controls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from fusec.tunables import Tunable, read_tunables, set_tunables
from fuselab.panel.widgets import plain


class Moves:
    """The controls that were moved while the page may hold a text that has not arrived here.

    What is typed and what is moved may be delivered on different threads, in any order: a text
    that was typed before the control moved must not take the move back.
    """

    def __init__(self) -> None:
        self._moves: dict[tuple[str, str], tuple[int, int]] = {}

    def add(self, document: str, name: str, text: str, value: int) -> None:
        """Remember that a tunable of ``text`` was set to ``value``."""
        before = next((t.value for t in read_tunables(text) if t.name == name), value)
        before, _ = self._moves.get((document, name), (before, value))
        self._moves[document, name] = before, value

    def apply(self, document: str, text: str) -> str:
        """Return a text that arrived, with what was moved since: what it has as it was before."""
        there = {t.name: t.value for t in read_tunables(text)}
        moves = {n: move for (d, n), move in self._moves.items() if d == document}
        older = {n: now for n, (before, now) in moves.items() if there.get(n) == before}
        return set_tunables(text, older) if older else text

    def known(self) -> frozenset[tuple[tuple[str, str], tuple[int, int]]]:
        """Return what is remembered now, for ``drop``."""
        return frozenset(self._moves.items())

    def drop(self, known: frozenset[tuple[tuple[str, str], tuple[int, int]]]) -> None:
        """Forget moves, now that all that was typed before them has arrived; not later ones."""
        for key, move in known:
            if self._moves.get(key) == move:
                del self._moves[key]


class Tunables:
    """A slider for each tunable that a kernel text declares (a list where it has two values)."""

    def __init__(self, on_change: Callable[[str, int], None]) -> None:
        """Make an empty row.

        Args:
            on_change: Called with name and value when a control moved, by hand or by ``show``.
        """
        self._on_change = on_change
        self._shown: tuple[tuple[str, tuple[int, ...], str], ...] = ()
        self._controls: dict[str, Any] = {}
        self.widget = plain.make(widgets.HBox, look={"flex_flow": "wrap", "width": "100%"})

    @property
    def disabled(self) -> bool:
        """Whether the controls are grayed out."""
        return any(control.disabled for control in self._controls.values())

    @disabled.setter
    def disabled(self, value: bool) -> None:
        for control in self._controls.values():
            control.disabled = value

    def show(self, text: str) -> None:
        """Show the tunables of ``text`` at the values they have there."""
        tunables = read_tunables(text)
        shape = tuple((t.name, _choices(t), t.meaning) for t in tunables)
        if shape != self._shown:
            self._shown = shape
            old = self.widget.children
            self._controls = {t.name: self._control(t) for t in tunables}
            self.widget.children = list(self._controls.values())
            for control in old:
                control.close()
        for tunable in tunables:
            self._controls[tunable.name].value = tunable.value

    def _control(self, tunable: Tunable) -> Any:
        choices = _choices(tunable)
        kind = widgets.SelectionSlider if len(choices) > 2 else widgets.Dropdown
        extra = {"continuous_update": False} if len(choices) > 2 else {}
        control = plain.make(
            kind,
            label=tunable.name,
            look={"width": "auto", "min_width": "16em", "margin": "2px 16px 2px 0"},
            options=choices,
            value=tunable.value,
            tooltip=tunable.meaning,
            **extra,
        )

        def moved(change: dict[str, Any]) -> None:
            self._on_change(tunable.name, change["new"])

        control.observe(moved, "value")
        return control


def _choices(tunable: Tunable) -> tuple[int, ...]:
    """Return the values to offer: the declared ones, and the present one if it is another."""
    return tuple(sorted({*tunable.choices, tunable.value}))
