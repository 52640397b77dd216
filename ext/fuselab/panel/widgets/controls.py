"""The tunables of a kernel text as controls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from fusec.tunables import Tunable, read_tunables
from fuselab.panel.widgets import plain


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
