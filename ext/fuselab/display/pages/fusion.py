"""What fusion did: the graph before and after, and a reason for every pair."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from fusec.report import FusionDecision
from fusec.schedule.step_graph import FusionView, StepGraph, node_names
from fuselab.display import noise, words
from fuselab.display.pages.page import Page, indented, static_table, svg_image
from fuselab.display.style import Style
from fuselab.display.svg.colors import PRINT, Look, kernel_colors
from fuselab.display.svg.step_graph import MOST_NEAR, MOST_NODES, around, graph_svg, lines_text

if TYPE_CHECKING:
    from fusec.inspect.pass_gain import PassGain
    from fusec.inspect.whatif import WhatIf

MOST_ROWS = 60
MOST_OPEN = 10  # of a table of decisions; the rest is folded
# Why computations are apart is what somebody can do something about.
MOST_IN_TEXT = {"apart": MOST_ROWS}
MOST_PARTS = 12  # of a kernel, named one by one
_BYTES = re.compile(r"(\d[\d,]*) bytes\b")


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
        # Eager moves another amount: some of its operators are several computations, or none.
        apart = f"{words.size(moved)} with a kernel for each"
        parts.append(f"{words.size(least)} through memory instead of {apart}")
    return ", ".join(parts)


def decision_tables(view: FusionView) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return the decisions as tables: a title, and rows of the pair, the bytes, the reason.

    What was decided against may share a kernel all the same, by another decision: it is computed
    once there, and its readers take the value.
    """
    names = node_names(view)
    of = {node.name: set(node.kernels) for node in view.before.nodes}
    found: dict[str, list[tuple[str, str, str]]] = {
        "together": [],
        "computed once": [],
        "apart": [],
    }
    for d in view.decisions:
        shared = of.get(d.producer, set()) & of.get(d.consumer, set())
        pair = f"{names.get(d.producer, d.producer)} → {names.get(d.consumer, d.consumer)}"
        saved = words.size(d.bytes_saved) if d.bytes_saved >= 0 else ""
        title = "together" if d.fused else "computed once" if shared else "apart"
        found[title].append((pair, saved, _plain(d)))
    return list(found.items())


def _plain(decision: FusionDecision) -> str:
    return "they share memory traffic" if decision.by_traffic else decision.reason


def rounded(text: str) -> str:
    """Return a reason with its bytes in the unit that suits them."""
    return _BYTES.sub(lambda found: words.size(int(found[1].replace(",", ""))), text)


def named_decisions(graph: Any) -> Iterator[FusionDecision]:
    """Yield a graph's decisions, its computations and tensors named as a person knows them."""
    from fusec.inspect.whatif import part_view  # imports the compiler

    parts = [part for part in getattr(graph, "parts", ()) if part.state.schedule]
    if not parts:
        yield from graph.fusions
    for part in parts:
        if not part.state.schedule.decisions:
            continue
        names = node_names(part_view(part))
        hints = {b.name: b.hint for b in part.state.program.buffers.values() if b.hint}
        called = names | hints
        for each in part.state.schedule.decisions:
            reason = _renamed(each.reason, called)
            yield replace(
                each,
                producer=names.get(each.producer, each.producer),
                consumer=names.get(each.consumer, each.consumer),
                reason=rounded(reason),
            )


def _renamed(text: str, names: dict[str, Any]) -> str:
    return re.sub(r"\w+", lambda word: str(names.get(word[0], word[0])), text)


def kernel_rows(view: FusionView) -> list[tuple[str, str, str, str]]:
    """Return a row a kernel or call: its name, what is in it, its lines, the bytes it moves."""
    names = node_names(view)
    rows = []
    for node in view.after.nodes:
        if node.kind not in ("kernel", "extern"):
            continue
        parts = [n for n in view.before.nodes if node.name in n.kernels]
        inside = [names[n.name] for n in parts]
        if len(parts) > MOST_PARTS:  # a loop of the user's, unrolled
            counts = Counter(n.label for n in parts)
            inside = [f"{n} times {label}" if n > 1 else label for label, n in counts.items()]
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
    for title, rows in decision_tables(view):
        if rows:
            lines += ["", f"  {title}:"]
            most = MOST_IN_TEXT.get(title, MOST_OPEN)
            lines += [f"  {line}" for line in indented(rows[:most])]
            if len(rows) > most:
                lines.append(f"    and {len(rows) - most} more")
    return "\n".join(lines)


def decisions_html(title: str, rows: list[tuple[str, str, str]]) -> str:
    """Return decisions of one kind as a table, without the bytes where none are saved.

    Most of a long table is folded: a loop of the user's, unrolled, has a decision for each turn.
    """
    first, rest = rows[:MOST_OPEN], rows[MOST_OPEN:MOST_ROWS]
    if len(rest) <= 2:
        first, rest = first + rest, []
    saves = any(saved for _, saved, _ in rows)

    def table(head: str, some: list[tuple[str, str, str]]) -> str:
        if saves:
            return static_table((head, "saves", "why"), some, 3)
        return static_table((head, "why"), [(pair, why) for pair, _, why in some], 2)

    html = table(title, first)
    if rest:
        more = len(rows) - len(first)
        left = len(rows) - MOST_ROWS
        html += f'<details><summary style="{Style.summary}">{more} more</summary>'
        html += table(title, rest) + (f"<div>and {left} more</div>" if left > 0 else "")
        html += "</details>"
    return html


def colors_of(view: FusionView) -> dict[str, str]:
    """Return a color for each kernel of a view."""
    return kernel_colors([node.name for node in view.after.nodes if node.kind == "kernel"])


def is_large(view: FusionView) -> bool:
    """Whether one of the two graphs is too large to be drawn as a whole."""
    return max(len(view.before.nodes), len(view.after.nodes)) > MOST_NODES


def centers(view: FusionView) -> list[tuple[str, str]]:
    """Return the kernels and calls that a large graph can be drawn around: words and name."""
    names = node_names(view)
    found = []
    for node in view.after.nodes:
        if node.kind not in ("kernel", "extern"):
            continue
        inside = [names[n.name] for n in view.before.nodes if node.name in n.kernels]
        label = node.name if node.kind == "kernel" else node.label
        what = f" ({words.count(len(inside), 'computation')})" if len(inside) > 1 else ""
        place = lines_text(node.where)
        found.append((f"{label}{what}{', ' if place else ''}{place}", node.name))
    return found


def shown_graphs(
    view: FusionView, center: str = "", picked: Collection[str] = ()
) -> tuple[StepGraph, StepGraph]:
    """Return what is drawn of the graphs before and after: all of it, or what is near the center.

    Args:
        view: What fusion did.
        center: Name of a step after fusion; the first kernel if empty or unknown.
        picked: Computations before fusion that are drawn in any case.
    """
    known = [name for _, name in centers(view)]
    if center not in known:
        center = known[0] if known else ""
    before, after = view.before, view.after
    if len(before.nodes) > MOST_NODES:
        inside = [n.name for n in before.nodes if center in n.kernels or n.name == center]
        before = around(before, [*picked, *inside], MOST_NEAR)
    if len(after.nodes) > MOST_NODES:
        after = around(after, [center], MOST_NEAR)
    return before, after


def captions(view: FusionView, shown: tuple[StepGraph, StepGraph]) -> tuple[str, str]:
    """Return what to write over the two drawings."""

    def part(whole: StepGraph, drawn: StepGraph) -> str:
        count = len(whole.nodes)
        return f" ({len(drawn.nodes)} of {count} steps)" if len(drawn.nodes) < count else ""

    return (
        f"Before fusion: pick two to read why{part(view.before, shown[0])}",
        f"After: what runs{part(view.after, shown[1])}",
    )


def pair_svgs(
    view: FusionView,
    look: Look,
    picked: Collection[str] = (),
    prefix: str = "",
    center: str = "",
    center_prefix: str = "",
) -> tuple[str, str]:
    """Draw the graph before and after fusion; a large one around a kernel.

    Args:
        view: What fusion did.
        look: The colors.
        picked: Computations to frame, with their kernels.
        prefix: With one, computations before fusion can be picked.
        center: Where a large graph is drawn: name of a step after fusion.
        center_prefix: With one, steps of a large graph after fusion can be picked.
    """
    colors = colors_of(view)
    kernels = {k for node in view.before.nodes if node.name in picked for k in node.kernels}
    shown = shown_graphs(view, center, picked)
    keys = (prefix, center_prefix if is_large(view) else "")
    framed = {*picked, *kernels, *([center] if is_large(view) else [])}
    titles = ("before fusion", "after fusion")
    first, second = (
        graph_svg(graph, colors, look, title=title, picked=framed, prefix=key)
        for graph, title, key in zip(shown, titles, keys, strict=True)
    )
    return first, second


def rules_line(rules: Mapping[str, Sequence[str]]) -> str:
    """Say which fusions are asked for; empty where none are."""
    said = [f"{rule.replace(':', ' and ')} {kind}" for kind in rules for rule in rules[kind]]
    if not said:
        return ""
    options = " ".join(f"--{kind} {','.join(rules[kind])}" for kind in rules if rules[kind])
    return f"In use: {'; '.join(said)}. In the cell: %%fuse {options}"


def fusion_page(
    parts: Sequence[tuple[str, FusionView]], rules: Mapping[str, Sequence[str]] | None = None
) -> Page:
    """Return the static page about the fusion of every part of a cell.

    Args:
        parts: What to call each, and what fusion did.
        rules: The fusions that are asked for, by ``apart`` and ``together``.
    """
    asked = rules_line(rules or {})
    texts, html = ([asked], [f"<div>{escape(asked)}</div>"]) if asked else ([], [])
    for name, view in parts:
        texts.append(fusion_text(name, view))
        html.append(f"<div><b>{escape(name)}</b>: {escape(head(view))}</div>")
        drawn = () if is_large(view) else pair_svgs(view, PRINT)
        for svg, title in zip(drawn, ("before fusion", "after fusion"), strict=False):
            html.append(f"<div>{title}</div>{svg_image(svg, f'{name} {title}')}")
        html.append(static_table(("runs", "computes", "from", "moves"), kernel_rows(view), 3))
        for title, rows in decision_tables(view):
            html.append(decisions_html(title, rows))
    text = "\n\n".join(texts) or "nothing was compiled yet: run the cell first"
    return Page(text, "".join(html))


def parts_of(cell: Any) -> list[tuple[str, Any, Any]]:
    """Return the compiled parts of a cell: a name for people, the graph and the part.

    First those that ran last: the result is about them.
    """
    latest = getattr(cell, "latest_graphs", cell.graphs)
    found = []
    for graph in (*latest, *(graph for graph in cell.graphs if graph not in latest)):
        earlier = "" if graph in latest else ", of earlier inputs"
        for part in getattr(graph, "parts", ()):
            kind = "" if part.kind == "inference" else f", {part.kind}"
            found.append((f"{graph.name}{kind}{earlier}", graph, part))
    return found


def pass_gain_lines(found: PassGain) -> list[str]:
    """Say what a pass over the graph is worth, the outcome first."""
    now, then = found.now.median, found.then.median
    ratio = noise.against(found.then, found.now)
    first = f"without {found.name}: {words.duration(then)} instead of {words.duration(now)}"
    lines = [f"{first} ({ratio})" if ratio else first]
    before, after = found.kernels
    kernels = words.count(after, "kernel")
    lines.append(f"{kernels} instead of {before}" if after != before else f"{kernels}, as before")
    if found.errors:
        lines.append("same results" if found.same else "other results: the pass is not right")
    lines.append(f"quartiles {words.spread(found.then)}; {words.OWN_RUN}{found.then.method}")
    return lines


def what_if_lines(found: WhatIf, before: int) -> list[str]:
    """Say what came of a wish, the outcome first.

    Args:
        found: What was tried.
        before: How many kernels are in use.
    """
    now, then = found.now.median, found.then.median
    ratio = noise.against(found.then, found.now)
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
    lines.append(f"quartiles {words.spread(found.then)}; {words.OWN_RUN}{found.then.method}")
    return lines
