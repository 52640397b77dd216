"""A step graph as SVG: computations colored by kernel, bytes on the wires."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from html import escape

from fusec.report import SourceLine
from fusec.schedule.step_graph import GraphNode, StepGraph
from fuselab.display import words
from fuselab.display.svg.colors import Look
from fuselab.display.svg.layout import Box, Wire, lay_out

# More than this is no picture any more: what is near to one place is drawn.
MOST_NODES = 60
MOST_NEAR = 24

_FONT = 12
_LETTER = 6.9  # pixels a letter of the label takes, on the safe side
_PORT = 62.0  # room for a wire's label above a box
_LONGEST = 34
_GRAY = "#8a8a8a"


def graph_svg(
    graph: StepGraph,
    colors: Mapping[str, str],
    look: Look,
    *,
    title: str,
    picked: Collection[str] = (),
    prefix: str = "",
) -> str:
    """Draw a step graph.

    Args:
        graph: What to draw; a large one is hard to read, see ``around``.
        colors: Kernel name to color.
        look: The other colors.
        title: What a screen reader says of the whole.
        picked: Names of nodes to frame.
        prefix: With one, computations can be picked: each has ``data-pick`` with it and its name.
    """
    into = {node.name: 0 for node in graph.nodes}
    for edge in graph.edges:
        into[edge.target] += 1
    sizes = {node.name: _size(node, into[node.name]) for node in graph.nodes}
    layout = lay_out(sizes, [(edge.source, edge.target) for edge in graph.edges])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="group" aria-label="{escape(title)}" '
        f'width="{layout.width:.0f}" height="{layout.height:.0f}" '
        f'viewBox="0 0 {layout.width:.0f} {layout.height:.0f}" '
        f'font-family="system-ui, sans-serif" font-size="{_FONT}">'
    ]
    parts += [_wire(wire, look) for wire in layout.wires]
    # Labels lie over all wires.
    parts += [
        _wire_label(wire, words.size(edge.bytes), edge.tensor, look)
        for edge, wire in zip(graph.edges, layout.wires, strict=True)
    ]
    parts += [
        _box(node, layout.boxes[node.name], colors, look, node.name in picked, prefix)
        for node in graph.nodes
    ]
    return "".join([*parts, "</svg>"])


def around(graph: StepGraph, names: Collection[str], most: int) -> StepGraph:
    """Return the part of a graph that is nearest to some of its nodes.

    Args:
        graph: The whole.
        names: Where to begin; those that it does not have are left out.
        most: How many nodes to keep.

    Returns:
        Its nodes in their order, and the edges between them.
    """
    neighbors: dict[str, list[str]] = {node.name: [] for node in graph.nodes}
    for edge in graph.edges:
        neighbors[edge.source].append(edge.target)
        neighbors[edge.target].append(edge.source)
    # An input that everything reads brings nothing nearer to anything.
    inputs = {node.name for node in graph.nodes if node.kind == "input"}
    kept = dict.fromkeys([name for name in names if name in neighbors][:most])
    latest = list(kept)
    while latest and len(kept) < most:
        through = [name for name in latest if name not in inputs]
        found = dict.fromkeys(n for name in through for n in neighbors[name] if n not in kept)
        latest = list(found)[: most - len(kept)]
        kept |= dict.fromkeys(latest)
    return StepGraph(
        tuple(node for node in graph.nodes if node.name in kept),
        tuple(e for e in graph.edges if e.source in kept and e.target in kept),
    )


def lines_text(where: tuple[SourceLine, ...]) -> str:
    """Return ``lines 2-3``; of the file that most lines are in."""
    if not where:
        return ""
    files = [place.file for place in where]
    return words.lines_of(where, max(set(files), key=files.count))


def _texts(node: GraphNode) -> tuple[str, str]:
    label = node.label
    if len(label) > _LONGEST:
        label = label[: _LONGEST - 1] + "…"
    if node.kind == "extern":
        return label, ", ".join(part for part in ("ATen", lines_text(node.where)) if part)
    return label, lines_text(node.where)


def _size(node: GraphNode, into: int) -> tuple[float, float]:
    first, second = _texts(node)
    if node.kind in ("input", "output"):
        return max(len(first) * _LETTER + 16, 34.0), 20.0
    text = max(len(first) * _LETTER * 1.08, len(second) * _LETTER * 0.95)
    return max(text + 20, into * _PORT, 56.0), 38.0 if second else 26.0


def _box(
    node: GraphNode,
    box: Box,
    colors: Mapping[str, str],
    look: Look,
    picked: bool,
    prefix: str,
) -> str:
    first, second = _texts(node)
    edge = node.kind in ("input", "output")
    color = colors.get(node.kernels[0], _GRAY) if node.kernels else _GRAY
    told = [node.label, node.kind if node.kind != "kernel" else "", lines_text(node.where)]
    told += [f"in {', '.join(node.kernels)}"] if node.kernels else []
    spoken = escape(", ".join(part for part in told if part))
    stroke = look.mark if picked else look.line if edge else color
    dash = ' stroke-dasharray="4 3"' if node.kind == "extern" else ""
    attributes = ""
    if prefix and not edge:
        attributes = (
            f' data-pick="{escape(prefix + node.name)}" tabindex="0" role="button" '
            f'aria-pressed="{str(picked).lower()}" aria-label="{spoken}" style="cursor:pointer"'
        )
    shape = (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{10 if edge else 4}" fill="{look.paper}"/>'
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{10 if edge else 4}" fill="{color}" '
        f'fill-opacity="{0.06 if edge else 0.2}" stroke="{stroke}" '
        f'stroke-width="{2.5 if picked else 1.2}"{dash}/>'
    )
    x, y = box.middle, box.y + box.height / 2
    middle = f'text-anchor="middle" x="{x:.1f}"'
    if edge or not second:
        text = f'<text {middle} y="{y + 4:.1f}" fill="{look.text}">{escape(first)}</text>'
    else:
        text = (
            f'<text {middle} y="{y - 2:.1f}" font-weight="600" fill="{look.text}">'
            f"{escape(first)}</text>"
            f'<text {middle} y="{y + 12:.1f}" font-size="11" fill="{look.quiet}">'
            f"{escape(second)}</text>"
        )
    return f"<g{attributes}><title>{spoken}</title>{shape}{text}</g>"


def _wire(wire: Wire, look: Look) -> str:
    (x, y), *rest = wire.points
    path = [f"M{x:.1f} {y:.1f}"]
    straight = False
    for a, b in rest:
        if straight:
            path.append(f"L{a:.1f} {b:.1f}")
        else:
            half = (y + b) / 2
            path.append(f"C{x:.1f} {half:.1f} {a:.1f} {half:.1f} {a:.1f} {b:.1f}")
        straight = not straight
        x, y = a, b
    arrow = f"M{x - 3.5:.1f} {y - 6:.1f}L{x:.1f} {y:.1f}L{x + 3.5:.1f} {y - 6:.1f}"
    return f'<path d="{"".join(path)}{arrow}" fill="none" stroke="{look.line}" stroke-width="1.2"/>'


def _wire_label(wire: Wire, size: str, tensor: str, look: Look) -> str:
    x, y = wire.points[-1]
    width = len(size) * 5.6 + 4
    title = escape(f"{tensor}: {size}")
    return (
        f"<g><title>{title}</title>"
        f'<rect x="{x - width / 2:.1f}" y="{y - 20:.1f}" width="{width:.1f}" height="12" '
        f'fill="{look.paper}" fill-opacity="0.85"/>'
        f'<text x="{x:.1f}" y="{y - 10.5:.1f}" text-anchor="middle" font-size="10" '
        f'fill="{look.quiet}">{escape(size)}</text></g>'
    )
