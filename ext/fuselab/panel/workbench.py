"""The workbench: a head line and the tabs of one fused cell."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import ipywidgets as widgets

from fuselab import words
from fuselab.result import kernel_state

from . import markup, plain
from .bench import Bench, Facts, PanelCell
from .fusion import FusionTab
from .guards import GuardsTab
from .kernels import KernelsTab
from .late import LateTab
from .numerics import NumericsTab
from .stages import StagesTab
from .timings import TimingsTab
from .tuning import TuningTab

LIMIT = "A plain copy of as many bytes as it has inputs and outputs; products at the machine's best"
STATIC_FORMS = ("text/plain", "text/html")


class Workbench(widgets.VBox):
    """The live panel of a fused cell.

    Showing it, or restoring it from a saved notebook, never compiles or runs anything: only a
    click or a key does, and what those start runs on the panel's own worker.
    """

    def __init__(self, cell: PanelCell) -> None:
        self.bench = Bench(cell)
        self.head = plain.html()
        self.tuning = TuningTab(self.bench)
        self.kernels = KernelsTab(self.bench, self.tuning)
        self.timings = TimingsTab(self.bench)
        self.fusion = FusionTab(self.bench)
        # A further tab is a LateTab in a file of its own, and an entry here.
        self.stages = StagesTab(self.bench)
        self.guards = GuardsTab(self.bench)
        self.numerics = NumericsTab(self.bench)
        self.parts: tuple[Any, ...] = (
            self.kernels,
            self.timings,
            self.tuning,
            self.fusion,
            self.stages,
            self.guards,
            self.numerics,
        )
        self.tabs = plain.make(
            widgets.Tab,
            children=[part.widget for part in self.parts],
            titles=[part.title for part in self.parts],
            selected_index=0,
        )
        self.tabs.observe(lambda _: self._opened(), "selected_index")
        self.tuning.on_start.append(lambda: self._open(self.tuning))
        self.bench.listen(self._show_head)
        self.bench.after_each = self._draw
        super().__init__([self.head, self.tabs], layout=plain.layout())
        self.add_class("fuselab-panel")
        self.bench.changed()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self.comm is None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the worker rests (for scripts and tests); False when time ran out."""
        return self.bench.worker.wait(timeout)

    def close(self) -> None:
        """Stop what runs and let go of the cell; ipywidgets keeps a widget until it is closed."""
        self.bench.worker.clear()
        self.timings.close()
        if self.tuning.running:
            self.tuning.start_or_stop()
        for widget in _below(self):
            widget.close()
        super().close()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """Return the live view with the result's static forms beside it.

        A saved notebook then shows the result where there are no widgets; without the kernels'
        texts, which would be there once for each panel.
        """
        self.bench.look()
        self.bench.changed()
        self.kernels.show()
        self._draw_later()
        bundle: dict[str, Any] = dict(super()._repr_mimebundle_(**kwargs) or {})
        cell: Any = self.bench.cell
        if hasattr(cell, "compact_html"):
            return bundle | {"text/plain": cell.text(), "text/html": cell.compact_html()}
        static = cell._repr_mimebundle_()
        data = static[0] if isinstance(static, tuple) else static
        bundle.update({form: data[form] for form in STATIC_FORMS if form in data})
        return bundle

    def _open(self, part: object) -> None:
        self.tabs.selected_index = [p is part for p in self.parts].index(True)

    def _opened(self) -> None:
        with self.bench.state:
            if self.bench.problem is not None and not self.bench.activity:
                # It was about something in the tab that is left.
                self.bench.problem = None
                self.bench.changed()
        part = self.parts[self.tabs.selected_index or 0]
        if isinstance(part, LateTab | TimingsTab):
            part.open()
        self._draw_later()

    def _draw_later(self) -> None:
        """Let the worker draw the open tab's figure, if it has one and that is out of date."""
        self.bench.worker.submit(self._draw, "draw")

    def _draw(self) -> None:
        """Draw the open tab; never beside a measurement, of another panel either."""
        part = self.parts[self.tabs.selected_index or 0]
        if isinstance(part, StagesTab):  # it may compile, for which nobody should wait
            part.draw_if_made()
        else:
            with self.bench.cell.lock:
                self._draw_part(part)

    def _draw_part(self, part: Any) -> None:
        if part is self.kernels:
            self.kernels.more.draw()
        elif isinstance(part, LateTab):
            part.draw_if_made()
        else:
            part.draw()

    def _show_head(self) -> None:
        self.head.value = (
            f"<div style='margin:0 0 4px'>{head_line(self.bench.cell.name, self.bench.facts)}</div>"
        )


def _below(box: Any) -> Iterator[Any]:
    """Yield every widget in a box, the innermost first."""
    for child in getattr(box, "children", ()):
        yield from _below(child)
        yield child


def head_line(name: str, facts: Facts) -> str:
    """Say it all in a line: kernels, times, ratio, error; escaped HTML."""
    states = [kernel_state(kernel) for kernel in facts.kernels.values()]
    changed = [f"{states.count(state)} {state}" for state in ("edited", "tuned") if state in states]
    kernels = words.count(len(states), "kernel")
    parts = [f"{kernels} ({', '.join(changed)})" if changed else kernels]
    eager, fused = facts.eager, facts.fused
    if eager:
        parts.append(f"eager {words.duration(eager.median)}")
    if fused:
        parts.append(f"fused {words.duration(fused.median)}")
    texts = [escape(part) for part in parts]
    if eager and fused:
        ratio = words.against(fused.median, eager.median)
        color = markup.BAD if "slower" in ratio else markup.GOOD
        texts.append(f"<b style='color:{color}'>{escape(ratio)}</b>")
    if facts.limit and fused:
        share = f"{words.ratio(fused.median / facts.limit)}× the limit"
        texts.append(f"<span title='{escape(LIMIT)}'>{escape(share)}</span>")
    if facts.max_error is not None:
        texts.append(escape(f"max error {words.error(facts.max_error)}"))
    return f"<b>{escape(name)}</b> &nbsp; " + " &nbsp;·&nbsp; ".join(texts)
