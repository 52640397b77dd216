"""The Fusion tab: the graph before and after, the reason for a pair, and what would be if."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from typing import Any

from fusec.inspect.pass_gain import PassGain, pass_gain, passes_that_changed
from fusec.inspect.whatif import WhatIf, part_view, what_if
from fusec.schedule.overrides import Overrides, pair
from fusec.schedule.rules import with_rule
from fusec.schedule.step_graph import FusionView, node_names, rule_for, why
from fuselab.display import words
from fuselab.display.pages import fusion
from fuselab.display.svg.colors import LIVE
from fuselab.panel.context import Bench
from fuselab.panel.tabs.lazy import LazyTab, problem_or
from fuselab.panel.widgets import markup, plain
from fuselab.panel.widgets.picture import Picture

PICK = "op:"
CENTER = "at:"
TRYING = "Trying another fusion"
USING = "Using another schedule"

Rules = tuple[str, ...]


class FusionTab(LazyTab):
    """One part of one graph at a time."""

    title = "Fusion"

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.picked: list[str] = []
        self.view: FusionView | None = None
        self._found: WhatIf | None = None
        self._gain: PassGain | None = None  # what the pass that was left out is worth
        self._asked = ("", False)  # the rule that it follows, and whether that is ``together``
        self._done = ""  # what came of putting a schedule in use
        self._filling = False
        self._parts: list[tuple[str, Any, Any]] = []
        self._drawn: object = None

    def make(self) -> list[Any]:
        """Return the part's choice, the drawing, the reason and the what-if buttons."""
        self._drawn, self.view, self.picked = None, None, []
        self.part = plain.choice("Graph", "14em")
        self.part.observe(self._choose, "value")
        self.head = plain.beside()
        self.picture = Picture(self.pick)
        self.reason = plain.html(width="100%", min_height="1.6em")
        self.apart = plain.button(
            "What if apart", "Compile the two as two kernels and time that", "cut"
        )
        self.together = plain.button(
            "What if together", "Compile the two as one kernel and time that", "link"
        )
        self.apart.on_click(lambda _: self.try_it(together=False))
        self.together.on_click(lambda _: self.try_it(together=True))
        self.use = plain.button("Use this schedule", "Check it and run the cell with it", "check")
        self.back = plain.button(
            "Default schedule", "Back to the fusions that the compiler chose", "undo"
        )
        self.use.on_click(lambda _: self.use_it())
        self.back.on_click(lambda _: self.go_back())
        self.passes = plain.choice("Pass", "14em")
        self.leave_out = plain.button(
            "What if left out", "Compile the graph without this pass and time that", "cut"
        )
        self.leave_out.on_click(lambda _: self.try_without())
        self.outcome = plain.html()
        self.rules = plain.html()
        self.list = plain.html()
        self.around = plain.choice("Around", "14em")
        plain.show(self.around, False)
        self.around.observe(lambda _: self._move(), "value")
        return [
            plain.row([self.part, self.around, self.head]),
            self.picture,
            self.reason,
            plain.row([self.apart, self.together, self.use, self.back]),
            plain.row([self.passes, self.leave_out]),
            self.rules,
            self.outcome,
            self.list,
        ]

    # --- what the user does -----------------------------------------------------------------

    def pick(self, key: str) -> None:
        """Pick a computation, or put it back; of three, the two latest count.

        A step of a large graph after fusion is where the drawing goes.
        """
        if key.startswith(CENTER):
            self.around.value = key.removeprefix(CENTER)
            return
        name = key.removeprefix(PICK)
        with self._bench.state:
            if name in self.picked:
                self.picked.remove(name)
            else:
                self.picked = [*self.picked, name][-2:]
            self._found, self._gain, self._done = None, None, ""
            self._show()

    def try_it(self, *, together: bool) -> None:
        """Compile the part with the picked pair in one kernel, or in two."""
        with self._bench.state:
            if len(self.picked) != 2 or self.view is None:
                return
            index, wanted = self.part.value or 0, pair(*self.picked)
            _, graph, part = self._parts[index]
            rule = rule_for(self.view, *self.picked)
        asked = (
            Overrides(together=frozenset([wanted])) if together else Overrides(frozenset([wanted]))
        )

        def job() -> None:
            with self._bench.cell.lock:
                found = what_if(graph, part, asked)
            with self._bench.state:
                self._found, self._asked, self._gain = found, (rule, together), None

        self._bench.do(TRYING, job, "what if")

    def try_without(self) -> None:
        """Compile the graph without the chosen pass."""
        with self._bench.state:
            name = self.passes.value
            if name is None or self.view is None:
                return
            _, graph, _ = self._parts[self.part.value or 0]

        def job() -> None:
            with self._bench.cell.lock:
                found = pass_gain(graph, name)
            with self._bench.state:
                self._found, self._gain, self._done = None, found, ""

        self._bench.do(TRYING, job, "what if")

    def use_it(self) -> None:
        """Put the schedule that was tried in use for the cell."""
        with self._bench.state:
            if self._found is None:
                return
            rule, joined = self._asked
        self._reschedule(lambda apart, together: with_rule(apart, together, rule, joined=joined))

    def go_back(self) -> None:
        """Go back to the fusions that the compiler chose."""
        self._reschedule(lambda _apart, _together: ((), ()))

    def _reschedule(self, change: Callable[[Rules, Rules], tuple[Rules, Rules]]) -> None:
        def job() -> None:
            cell: Any = self._bench.cell
            with cell.lock:
                apart, together = change(cell.rules["apart"], cell.rules["together"])
                lost = cell.reschedule(apart=apart, together=together)
                cell.refresh()
            with self._bench.state:
                self._found, self._gain, self.picked = None, None, []
                count = len(cell.latest_kernels)
                self._done = f"{words.count(count, 'kernel')} in use, checked against eager"
                if lost:
                    names = ", ".join(lost)
                    self._done += f"; the edits of {names} come back with the other schedule"

        self._bench.do(USING, job, "schedule")

    def _move(self) -> None:
        with self._bench.state:
            if not self._filling:
                self._show()

    def _choose(self, change: dict[str, Any]) -> None:
        with self._bench.state:
            self.picked, self._found, self._gain, self._done = [], None, None, ""
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
                plain.show(self.part, len(options) > 1)
            chosen = parts[self.part.value or 0][2] if parts else None
            self._offer_passes(parts[self.part.value or 0][1] if parts else None)
            if chosen is self._drawn and chosen is not None:
                return
        view = part_view(chosen) if chosen is not None else None
        with self._bench.state:
            self._drawn, self.view = chosen, view
            self.picked = []
            self._show()

    def _offer_passes(self, graph: Any) -> None:
        """Offer the passes that changed the graph."""
        names = passes_that_changed(graph) if graph is not None else ()
        if names != self.passes.options:
            self.passes.options = names
            self.passes.value = names[0] if names else None
        plain.show(self.passes, bool(names))
        plain.show(self.leave_out, bool(names))

    def refresh(self) -> None:
        """Show what changed."""
        self._show_outcome()

    def _show(self) -> None:
        view = self.view
        if view is None:
            self.head.value = "Nothing was compiled yet: run the cell first."
            self.apart.disabled = self.together.disabled = True
            self.use.disabled = self.back.disabled = self.leave_out.disabled = True
            return
        self.head.value = escape(fusion.head(view))
        self._show_around(view)
        center = self.around.value or ""
        svgs = fusion.pair_svgs(view, LIVE, self.picked, PICK, center, CENTER)
        titles = fusion.captions(view, fusion.shown_graphs(view, center, self.picked))
        boxes = [
            "<figure style='margin:0;max-width:100%'>"
            f"<figcaption style='opacity:0.75'>{title}</figcaption>{_fitting(svg)}</figure>"
            for title, svg in zip(titles, svgs, strict=True)
        ]
        self.picture.html = (
            # As tall as it is: of a large graph a part is drawn.
            "<div style='display:flex;flex-wrap:wrap;gap:8px 32px;overflow:auto;padding:0 2px'>"
            f"{''.join(boxes)}</div>"
        )
        self._show_reason()
        self._show_outcome()
        self.list.value = decision_lists(view)

    def _show_around(self, view: FusionView) -> None:
        """Offer the places around which a large graph can be drawn."""
        large = fusion.is_large(view)
        options = tuple(fusion.centers(view)) if large else ()
        if options != self.around.options:
            self._filling = True
            self.around.options = options
            self.around.value = options[0][1] if options else None
            self._filling = False
        plain.show(self.around, large)

    def _show_reason(self) -> None:
        view, picked = self.view, self.picked
        assert view is not None
        names = node_names(view)
        if len(picked) == 2:
            text = fusion.rounded(why(view, *picked))
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
        self.leave_out.disabled = busy or self.passes.value is None
        self.apart.disabled = busy or not (computed and shared)
        self.together.disabled = busy or not computed or shared
        value = ""
        if self._found is not None:
            count = sum(node.kind == "kernel" for node in self.view.after.nodes)
            lines = fusion.what_if_lines(self._found, count)
            value = markup.notice(lines, markup.QUIET)
        elif self._gain is not None:
            value = markup.notice(fusion.pass_gain_lines(self._gain), markup.QUIET)
        elif self._done:
            value = markup.notice([self._done], markup.GOOD)
        self.outcome.value = problem_or(self._bench, value)
        found = self._found
        usable = found is not None and found.same and not found.refused
        self.use.disabled = busy or not usable
        rules = getattr(self._bench.cell, "rules", {})
        said = fusion.rules_line(rules)
        self.rules.value = escape(said)
        self.back.disabled = busy or not said


def _fitting(svg: str) -> str:
    """Let a drawing that is a little too wide for the panel shrink, as far as it can be read."""
    width = re.search(r'width="(\d+)"', svg)
    least = 0.7 * int(width[1]) if width else 0
    style = f"max-width:100%;min-width:{least:.0f}px;height:auto"
    return svg.replace("<svg ", f'<svg style="{style}" ', 1)


def decision_lists(view: FusionView) -> str:
    """Return every decision, folded away."""
    html = []
    for title, decided in fusion.decision_tables(view):
        rows = [[a, c, b] for a, b, c in decided]
        if rows:
            more = len(rows) - fusion.MOST_ROWS
            inner = markup.table(["Pair", "Why", "Memory traffic"], rows[: fusion.MOST_ROWS])
            inner += f"<div>and {more} more</div>" if more > 0 else ""
            said = {
                "together": words.count(len(rows), "fusion") + " made",
                "computed once": f"{words.count(len(rows), 'value')} computed once for all",
                "apart": f"{len(rows)} not made, with reasons",
            }[title]
            html.append(f"<details><summary>{said}</summary>{inner}</details>")
    return "".join(html)
