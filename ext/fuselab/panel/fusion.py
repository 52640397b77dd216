"""The Fusion tab: the graph before and after, the reason for a pair, and what would be if."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as widgets

from fusec.runtime.whatif import WhatIf, part_view, what_if
from fusec.schedule.view import FusionView, why
from fusec.schedule.wishes import Wishes, pair
from fuselab.views import fusion
from fuselab.views.graph import MOST_NODES
from fuselab.views.looks import LIVE

from . import markup
from .bench import Bench
from .controls import button
from .late import LateTab, problem_or
from .picture import Picture

PICK = "op:"


class FusionTab(LateTab):
    """One part of one graph at a time."""

    title = "Fusion"

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.picked: list[str] = []
        self.view: FusionView | None = None
        self._found: WhatIf | None = None
        self._parts: list[tuple[str, Any, Any]] = []
        self._drawn: object = None

    def make(self) -> list[Any]:
        """Return the part's choice, the drawing, the reason and the what-if buttons."""
        self.part = widgets.Dropdown(
            description="Graph",
            layout=widgets.Layout(width="auto", min_width="14em", max_width="100%"),
            style={"description_width": "initial"},
        )
        self.part.observe(self._choose, "value")
        self.head = widgets.HTML(layout=widgets.Layout(flex="1 1 auto", margin="2px 0 2px 8px"))
        self.picture = Picture(self.pick)
        self.reason = widgets.HTML(layout=widgets.Layout(width="100%", min_height="1.6em"))
        self.apart = button("What if apart", "Compile the two as two kernels and time that", "cut")
        self.together = button(
            "What if together", "Compile the two as one kernel and time that", "link"
        )
        self.apart.on_click(lambda _: self.try_it(together=False))
        self.together.on_click(lambda _: self.try_it(together=True))
        self.outcome = widgets.HTML(layout=widgets.Layout(width="100%"))
        self.list = widgets.HTML(layout=widgets.Layout(width="100%"))
        row = widgets.Layout(flex_flow="wrap", align_items="center")
        return [
            widgets.HBox([self.part, self.head], layout=row),
            self.picture,
            self.reason,
            widgets.HBox([self.apart, self.together], layout=row),
            self.outcome,
            self.list,
        ]

    # --- what the user does -----------------------------------------------------------------

    def pick(self, key: str) -> None:
        """Pick a computation, or put it back; of three, the two latest count."""
        name = key.removeprefix(PICK)
        with self._bench.state:
            if name in self.picked:
                self.picked.remove(name)
            else:
                self.picked = [*self.picked, name][-2:]
            self._found = None
            self._show()

    def try_it(self, *, together: bool) -> None:
        """Compile the part with the picked pair in one kernel, or in two."""
        with self._bench.state:
            if len(self.picked) != 2 or self.view is None:
                return
            index, wanted = self.part.value or 0, pair(*self.picked)
            _, graph, part = self._parts[index]
        wishes = Wishes(together=frozenset([wanted])) if together else Wishes(frozenset([wanted]))

        def job() -> None:
            with self._bench.cell.lock:
                found = what_if(graph, part, wishes)
            with self._bench.state:
                self._found = found

        self._bench.do("Trying another fusion", job, "what if")

    def _choose(self, change: dict[str, Any]) -> None:
        with self._bench.state:
            self.picked, self._found = [], None
        self._bench.worker.submit(self.draw, "draw")

    # --- what is shown ----------------------------------------------------------------------

    def draw(self) -> None:
        """Read the graphs and draw the chosen part."""
        with self._bench.cell.lock:
            parts = fusion.parts_of(self._bench.cell)
        with self._bench.state:
            self._parts = parts
            options = tuple((name, n) for n, (name, _, _) in enumerate(parts))
            if options != self.part.options:
                self.part.options = options
                self.part.value = 0 if options else None
                self.part.layout.display = "" if len(options) > 1 else "none"
            chosen = parts[self.part.value or 0][2] if parts else None
            if chosen is self._drawn and chosen is not None:
                return
        view = part_view(chosen) if chosen is not None else None
        with self._bench.state:
            self._drawn, self.view = chosen, view
            self.picked = []
            self._show()

    def refresh(self) -> None:
        """Show what changed."""
        self._show_outcome()

    def _show(self) -> None:
        view = self.view
        if view is None:
            self.head.value = "Nothing was compiled yet: run the cell first."
            self.apart.disabled = self.together.disabled = True
            return
        self.head.value = escape(fusion.head(view))
        svgs = fusion.pair_svgs(view, LIVE, self.picked, PICK)
        titles = ("Before fusion: pick two to read why", "After: what runs")
        boxes = [
            f"<figure style='margin:0'><figcaption style='opacity:0.75'>{title}</figcaption>{svg}"
            "</figure>"
            for title, svg in zip(titles, svgs, strict=True)
            if svg
        ]
        if not svgs[0]:
            boxes.insert(0, f"<div>More than {MOST_NODES} computations: see the lists below.</div>")
        self.picture.html = (
            "<div style='display:flex;flex-wrap:wrap;gap:8px 32px;overflow:auto;"
            f"max-height:36em'>{''.join(boxes)}</div>"
        )
        self._show_reason()
        self._show_outcome()
        self.list.value = decision_lists(view)

    def _show_reason(self) -> None:
        view, picked = self.view, self.picked
        assert view is not None
        names = fusion.node_names(view)
        if len(picked) == 2:
            text = why(view, *picked)
        elif picked:
            node = view.before.node(picked[0])
            inside = f", in {', '.join(node.kernels)}" if node.kernels else f": {node.detail}"
            text = f"{names[picked[0]]}{inside}. Pick another one to read why they share a kernel."
        else:
            text = ""
        self.reason.value = escape(text)
        nodes = [view.before.node(name) for name in picked]
        computed = len(nodes) == 2 and all(node.kind == "kernel" for node in nodes)
        shared = computed and bool(set(nodes[0].kernels) & set(nodes[1].kernels))
        self._possible = computed, shared

    def _show_outcome(self) -> None:
        if self.view is None:
            return
        computed, shared = self._possible
        busy = bool(self._bench.activity)
        self.apart.disabled = busy or not (computed and shared)
        self.together.disabled = busy or not computed or shared
        value = ""
        if self._found is not None:
            count = sum(node.kind == "kernel" for node in self.view.after.nodes)
            lines = fusion.what_if_lines(self._found, count)
            value = markup.notice(lines, markup.QUIET)
        self.outcome.value = problem_or(self._bench, value)


def decision_lists(view: FusionView) -> str:
    """Return every decision, folded away."""
    html = []
    for fused, title in ((True, "fusions made"), (False, "not made, with reasons")):
        rows = [[a, c, b] for a, b, c in fusion.decision_rows(view, fused=fused)]
        if rows:
            more = len(rows) - fusion.MOST_ROWS
            inner = markup.table(["Pair", "Why", "Memory traffic"], rows[: fusion.MOST_ROWS])
            inner += f"<div>and {more} more</div>" if more > 0 else ""
            html.append(f"<details><summary>{len(rows)} {title}</summary>{inner}</details>")
    return "".join(html)
