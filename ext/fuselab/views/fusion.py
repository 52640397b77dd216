"""What fusion did: the graph before and after, and a reason for every pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from fusec.report import FusionDecision
from fusec.schedule.view import FusionView, StepGraph
from fuselab import words
from fuselab.views.graph import MOST_NODES, graph_svg, lines_text
from fuselab.views.looks import PRINT, Look, kernel_colors
from fuselab.views.page import Page, indented, static_table, svg_image

if TYPE_CHECKING:
    from fusec.runtime.whatif import WhatIf

MOST_ROWS = 60


def node_names(view: FusionView) -> dict[str, str]:
    """Return what to call each computation: its label, with a number where there are several."""
    counts = Counter(node.label for node in view.before.nodes if node.kind in ("kernel", "extern"))
    seen: Counter[str] = Counter()
    names = {}
    for node in view.before.nodes:
        seen[node.label] += 1
        several = counts[node.label] > 1
        names[node.name] = f"{node.label} #{seen[node.label]}" if several else node.label
    return names


def head(view: FusionView) -> str:
    """Say in one line what fusion did."""
    before = [node for node in view.before.nodes if node.kind == "kernel"]
    after = [node for node in view.after.nodes if node.kind == "kernel"]
    externs = sum(node.kind == "extern" for node in view.after.nodes)
    parts = [
        f"{words.count(len(before), 'computation')} in {words.count(len(after), 'kernel')}",
        *([f"beside {words.count(externs, 'call')} of ATen"] if externs else []),
    ]
    moved, least = view.before.traffic, view.after.traffic
    if min(moved, least) >= 0:
        parts.append(f"{words.size(least)} through memory instead of {words.size(moved)}")
    return ", ".join(parts)


def decision_rows(view: FusionView, *, fused: bool) -> list[tuple[str, str, str]]:
    """Return the decisions as rows: the pair, the bytes, the reason."""
    names = node_names(view)

    def called(name: str) -> str:
        return names.get(name, name)

    return [
        (
            f"{called(d.producer)} → {called(d.consumer)}",
            words.size(d.bytes_saved) if d.bytes_saved >= 0 else "",
            _plain(d),
        )
        for d in view.decisions
        if d.fused == fused
    ]


def _plain(decision: FusionDecision) -> str:
    return "they share memory traffic" if decision.reason.startswith("saves ") else decision.reason


def kernel_rows(view: FusionView) -> list[tuple[str, str, str, str]]:
    """Return a row a kernel or call: its name, what is in it, its lines, the bytes it moves."""
    names = node_names(view)
    rows = []
    for node in view.after.nodes:
        if node.kind not in ("kernel", "extern"):
            continue
        inside = [names[n.name] for n in view.before.nodes if node.name in n.kernels]
        what = " + ".join(inside) if inside else f"{node.label}: {node.detail}"
        name = node.name if node.kind == "kernel" else "ATen"
        own = StepGraph((node,), tuple(e for e in view.after.edges if touches(e, node.name)))
        rows.append((name, what, lines_text(node.where), words.size(own.traffic)))
    return rows


def touches(edge: object, name: str) -> bool:
    """Whether an edge begins or ends at a node."""
    return name in (getattr(edge, "source", ""), getattr(edge, "target", ""))


def fusion_text(name: str, view: FusionView) -> str:
    """Write what fusion did for a terminal."""
    lines = [f"{name}: {head(view)}"]
    lines += indented([("runs", "computes", "from", "moves"), *kernel_rows(view)])
    for fused, title in ((True, "together"), (False, "apart")):
        rows = decision_rows(view, fused=fused)
        if rows:
            lines += ["", f"  {title}:"]
            lines += [f"  {line}" for line in indented(rows[:MOST_ROWS])]
            if len(rows) > MOST_ROWS:
                lines.append(f"    and {len(rows) - MOST_ROWS} more")
    return "\n".join(lines)


def colors_of(view: FusionView) -> dict[str, str]:
    """Return a color for each kernel of a view."""
    return kernel_colors([node.name for node in view.after.nodes if node.kind == "kernel"])


def pair_svgs(
    view: FusionView, look: Look, picked: Collection[str] = (), prefix: str = ""
) -> tuple[str, str]:
    """Draw the graph before and after; empty texts where it is too large for a picture."""
    colors = colors_of(view)
    kernels = {k for node in view.before.nodes if node.name in picked for k in node.kernels}
    drawn = []
    for graph, title in ((view.before, "before fusion"), (view.after, "after fusion")):
        fits = len(graph.nodes) <= MOST_NODES
        keys = prefix if graph is view.before else ""
        framed = {*picked, *kernels}
        drawn.append(
            graph_svg(graph, colors, look, title=title, picked=framed, prefix=keys) if fits else ""
        )
    return drawn[0], drawn[1]


def fusion_page(parts: Sequence[tuple[str, FusionView]]) -> Page:
    """Return the static page about the fusion of every part of a cell."""
    texts, html = [], []
    for name, view in parts:
        texts.append(fusion_text(name, view))
        html.append(f"<div><b>{escape(name)}</b>: {escape(head(view))}</div>")
        for svg, title in zip(pair_svgs(view, PRINT), ("before fusion", "after"), strict=True):
            if svg:
                html.append(f"<div>{title}</div>{svg_image(svg, f'{name} {title}')}")
        html.append(static_table(("runs", "computes", "from", "moves"), kernel_rows(view), 3))
        for fused, title in ((True, "Together"), (False, "Apart")):
            rows = decision_rows(view, fused=fused)[:MOST_ROWS]
            html.append(static_table((title, "saves", "why"), rows, 3))
    text = "\n\n".join(texts) or "nothing was compiled yet: run the cell first"
    return Page(text, "".join(html))


def parts_of(cell: Any) -> list[tuple[str, Any, Any]]:
    """Return the compiled parts of a cell: a name for people, the graph and the part."""
    found = []
    for graph in cell.graphs:
        for part in getattr(graph, "parts", ()):
            kind = "" if part.kind == "inference" else f", {part.kind}"
            found.append((f"{graph.name}{kind}", graph, part))
    return found


def what_if_lines(found: WhatIf, before: int) -> list[str]:
    """Say what came of a wish, the outcome first.

    Args:
        found: What was tried.
        before: How many kernels are in use.
    """
    now, then = found.now.median, found.then.median
    ratio = words.against(then, now)
    count = len(found.kernels)
    kernels = words.count(count, "kernel")
    first = f"{kernels} instead of {before}" if count != before else f"{kernels}, as before"
    first += f": {words.duration(then)} instead of {words.duration(now)}"
    lines = [f"{first} ({ratio})" if ratio else first]
    if found.refused and count == before:
        return [f"Not possible: {found.refused[0]}", *found.refused[1:]]
    lines += list(found.refused)
    if found.errors:
        lines.append("same results" if found.same else "other results: the schedule is not right")
    lines.append(f"quartiles {words.spread(found.then)}; {found.then.method}")
    return lines
