"""The workbench: a head line and the tabs of one fused cell."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any, cast

import ipywidgets as widgets

from fuselab.display import noise, words
from fuselab.panel import instead
from fuselab.panel.context import Bench, CellFacts, PanelCell
from fuselab.panel.tabs import TABS
from fuselab.panel.tabs.kernels import KernelsTab
from fuselab.panel.tabs.lazy import LazyTab
from fuselab.panel.tabs.prebuild import Prebuild
from fuselab.panel.tabs.tuning import TuningTab
from fuselab.panel.widgets import markup, plain

LIMIT = "A plain copy of as many bytes as it has inputs and outputs; products at the machine's best"
ERROR = "Largest difference to eager, of the output that comes nearest to what is allowed"
STATIC_FORMS = ("text/plain", "text/html")


# Of how the cell compares with eager.
COLORS = {noise.Pace.FASTER: markup.GOOD, noise.Pace.SLOWER: markup.BAD}


class Workbench(widgets.VBox):
    """The live panel of a fused cell.

    Showing it, or restoring it from a saved notebook, never compiles or runs anything: only a
    click or a key does, and what those start runs on the panel's own worker.
    """

    def __init__(self, cell: PanelCell, *, run: bool = True) -> None:
        """Make a panel.

        Args:
            cell: The fused cell.
            run: Whether it has run; nothing is filled in before.
        """
        self.bench = Bench(cell)
        self.head = plain.html()
        lazy = {kind: kind(self.bench) for kind in TABS}
        self.lazy = tuple(lazy.values())
        self.tuning = cast(TuningTab, lazy[TuningTab])
        self.kernels = KernelsTab(self.bench, self.tuning)
        self.parts: tuple[KernelsTab | LazyTab, ...] = (self.kernels, *self.lazy)
        self.tabs = plain.make(
            widgets.Tab,
            children=[part.widget for part in self.parts],
            titles=[part.title for part in self.parts],
            selected_index=0,
        )
        self.tabs.observe(lambda _: self._opened(), "selected_index")
        self.tuning.on_start.append(lambda: self._open(self.tuning))
        self._early = Prebuild(
            self._draw_below,
            [self._maker(part) for part in self.lazy],
            self.bench.worker.submit,
            self._is_busy,
            self._forget,
        )
        self.kernels.on_shown, self.kernels.on_near = self._early.seen, self._early.begin
        self.bench.listen(self._show_head)
        self.bench.after_each = self._draw
        super().__init__([self.head, self.tabs], layout=plain.layout())
        self.add_class("fuselab-panel")
        if run:
            self.bench.changed()
        else:
            self.kernels.prepare()

    def __repr__(self) -> str:
        # That of ipywidgets writes down everything inside, each time it is shown.
        return f"<Workbench of {self.bench.cell.name}>"

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self.comm is None

    def tab(self, title: str) -> Any:
        """Return the tab of a title.

        Raises:
            KeyError: There is none.
        """
        return {part.title: part for part in self.parts}[title]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the worker rests (for scripts and tests); False when time ran out."""
        return self.bench.worker.wait(timeout)

    def close(self) -> None:
        """Stop what runs and let go of the cell; ipywidgets keeps a widget until it is closed."""
        self._early.end()
        self.bench.worker.clear()
        for part in self.lazy:
            part.close()
        for child in self.children:
            for widget in plain.below(child):
                widget.close()
        super().close()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """Return the live view with the result's static forms beside it.

        A saved notebook then shows the result where there are no widgets.
        """
        bundle = self.live(**kwargs)
        static = self.bench.cell._repr_mimebundle_()
        data = static[0] if isinstance(static, tuple) else static
        return bundle | {form: data[form] for form in STATIC_FORMS if form in data}

    def _ipython_display_(self) -> None:
        instead.show(self._repr_mimebundle_())

    def live(self, **kwargs: Any) -> dict[str, Any]:
        """Return the live view alone, up to date."""
        self.bench.look()
        with self.bench.state:
            if not self.bench.activity:
                self.bench.say("")  # it was about what somebody did before this run
            self.bench.changed()
        self.kernels.show()
        # What is made of a tab that was opened before is not up to date any more. The rest waits
        # until the page has drawn this, and somebody comes near: see ``tabs/prebuild.py``.
        if self.parts[self.tabs.selected_index or 0] is not self.kernels or self.kernels.more.made:
            self._draw_later()
        return dict(super()._repr_mimebundle_(**kwargs) or {})

    def _is_busy(self) -> bool:
        if self.bench.activity or self.tuning.running:
            return True
        lock = self.bench.cell.lock
        if not lock.acquire(blocking=False):
            return True
        lock.release()
        return False

    def _forget(self) -> None:
        """Let go of what was made early for nothing; what was not drawn is short, and stays."""
        for part in self.lazy:
            if part.prebuilt:
                part.forget()

    def _maker(self, part: LazyTab) -> Callable[[], None]:
        def make() -> None:
            part.open()
            if part.prebuilt:
                part.draw_if_made()

        return make

    def _open(self, part: object) -> None:
        self.tabs.selected_index = [p is part for p in self.parts].index(True)

    def _opened(self) -> None:
        with self.bench.state:
            if self.bench.problem is not None and not self.bench.activity:
                # It was about something in the tab that is left.
                self.bench.problem = None
                self.bench.changed()
        part = self.parts[self.tabs.selected_index or 0]
        if isinstance(part, LazyTab):
            part.opened = True  # first: nothing may be let go of that is being opened
            part.open()
            self._early.begin()  # who opens one will open others
        self._draw_later()

    def _draw_later(self) -> None:
        """Let the worker draw the open tab's figure, if it has one and that is out of date."""
        self.bench.worker.submit(self._draw, "draw")

    def _draw(self) -> None:
        """Draw the open tab; never beside a measurement, of another panel either."""
        part = self.parts[self.tabs.selected_index or 0]
        if isinstance(part, LazyTab):
            part.draw_if_made()
        else:
            self._draw_below()

    def _draw_below(self) -> None:
        """Make and draw what stands below the editor, which a person looks at first."""
        with self.bench.cell.lock:
            self.kernels.more.open()
            self.kernels.more.draw()

    def _show_head(self) -> None:
        self.head.value = (
            f"<div style='margin:0 0 4px'>{head_line(self.bench.cell.name, self.bench.facts)}</div>"
        )


class BelowResult:
    """A panel as shown below its cell's result, which need not be there a second time.

    Args:
        panel: The workbench.
    """

    def __init__(self, panel: Workbench) -> None:
        self.panel = panel

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        name = self.panel.bench.cell.name
        text = f"{name}: the workbench is live in a notebook whose kernel runs; the result is above"
        html = f"<div style='background:#fff;color:#5a5a5a;padding:2px 12px'>{escape(text)}</div>"
        return self.panel.live(**kwargs) | {"text/plain": text, "text/html": html}

    def _ipython_display_(self) -> None:
        instead.show(self._repr_mimebundle_())


def head_line(name: str, facts: CellFacts) -> str:
    """Say it all in a line: kernels, times, ratio, error; escaped HTML."""
    states = [kernel.state for kernel in facts.latest.values()]
    changed = [f"{states.count(state)} {state}" for state in ("edited", "tuned") if state in states]
    kernels = words.count(len(states), "kernel")
    parts = [f"{kernels} ({', '.join(changed)})" if changed else kernels]
    if facts.idle:
        parts[0] += f", {len(facts.idle)} more of earlier inputs"
    eager, fused = facts.eager, facts.fused
    if eager:
        parts.append(f"eager {words.duration(eager.median)}")
    if fused:
        parts.append(f"fused {words.duration(fused.median)}")
    texts = [escape(part) for part in parts]
    if eager and fused and facts.early:
        texts.append(escape(words.early(facts.awaited)))
    elif eager and fused:
        ratio = noise.against(fused, eager)
        color = COLORS.get(noise.pace(fused, eager), "inherit")
        texts.append(f"<b style='color:{color}'>{escape(ratio)}</b>")
    if facts.limit and fused:
        below = fused.median > facts.limit
        share = f"limit {words.duration(facts.limit)}" if below else "at the limit"
        texts.append(f"<span title='{escape(LIMIT)}'>{escape(share)}</span>")
    if facts.error:
        texts.append(f"<span title='{escape(ERROR)}'>{escape(facts.error)}</span>")
    return f"<b>{escape(name)}</b> &nbsp; " + " &nbsp;·&nbsp; ".join(texts)
