"""Layered layout of a directed graph without cycles: boxes in rows, wires from top to bottom."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Point = tuple[float, float]

ROW_GAP = 44.0  # room for the wires and their labels
BOX_GAP = 18.0
MARGIN = 8.0
_SWEEPS = 6


@dataclass(frozen=True)
class Box:
    """A node's place: its upper left corner and its size, in pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The horizontal middle."""
        return self.x + self.width / 2


@dataclass(frozen=True)
class Wire:
    """An edge's way: from the bottom of its source to the top of its target.

    Attributes:
        points: Where it passes, from top to bottom.
    """

    points: tuple[Point, ...]


@dataclass(frozen=True)
class Layout:
    """Where everything is; ``wires`` are in the order of the edges given."""

    boxes: Mapping[str, Box]
    wires: tuple[Wire, ...]
    width: float
    height: float


@dataclass
class _Item:
    """A node, or a bend of an edge that spans several rows."""

    width: float
    height: float
    up: list[str]
    down: list[str]
    row: int = 0
    x: float = 0.0  # of the middle


def lay_out(sizes: Mapping[str, tuple[float, float]], edges: Sequence[tuple[str, str]]) -> Layout:
    """Place nodes in rows so that every edge goes down.

    Args:
        sizes: Width and height by node, in an order in which every edge goes forward.
        edges: Source and target; the same pair may occur several times.
    """
    rows_of = _ranks(list(sizes), edges)
    items = {
        name: _Item(width, height, [], [], rows_of[name]) for name, (width, height) in sizes.items()
    }
    paths: list[list[str]] = []
    for number, (source, target) in enumerate(edges):
        path = [source]
        for row in range(rows_of[source] + 1, rows_of[target]):
            bend = f"\0{number}:{row}"
            items[bend] = _Item(6.0, 0.0, [], [], row)
            path.append(bend)
        path.append(target)
        for above, below in itertools.pairwise(path):
            items[above].down.append(below)
            items[below].up.append(above)
        paths.append(path)
    rows: list[list[str]] = [[] for _ in range(max(rows_of.values(), default=-1) + 1)]
    for name, item in items.items():
        rows[item.row].append(name)
    _order(rows, items)
    _straighten(rows, items)
    return _finish(rows, items, sizes, edges, paths)


def _ranks(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return each node's row: below all that it reads; what reads nothing, right above its use."""
    above: dict[str, list[str]] = {name: [] for name in names}
    below: dict[str, list[str]] = {name: [] for name in names}
    for source, target in edges:
        above[target].append(source)
        below[source].append(target)
    rank: dict[str, int] = {}
    for name in names:
        rank[name] = max((rank[other] + 1 for other in above[name]), default=0)
    for name in names:
        if not above[name] and below[name]:
            rank[name] = min(rank[other] for other in below[name]) - 1
    return rank


def _order(rows: list[list[str]], items: Mapping[str, _Item]) -> None:
    """Sort each row by where its neighbors are, down and up a few times: fewer crossings."""
    place = {name: n for row in rows for n, name in enumerate(row)}

    def sort(row: list[str], up: bool) -> None:
        def middle(name: str) -> float:
            neighbors = items[name].up if up else items[name].down
            return (
                sum(place[n] for n in neighbors) / len(neighbors)
                if neighbors
                else float(place[name])
            )

        row.sort(key=middle)
        for n, name in enumerate(row):
            place[name] = n

    for _ in range(_SWEEPS):
        for row in rows[1:]:
            sort(row, up=True)
        for row in reversed(rows[:-1]):
            sort(row, up=False)


def _straighten(rows: list[list[str]], items: Mapping[str, _Item]) -> None:
    """Move items towards the middle of their neighbors, as far as the others leave room."""
    for row in rows:
        left = 0.0
        for name in row:
            items[name].x = left + items[name].width / 2
            left += items[name].width + BOX_GAP
    for turn in range(2 * _SWEEPS):
        down = turn % 2 == 0
        for row in rows if down else reversed(rows):
            wanted = []
            for name in row:
                item = items[name]
                neighbors = item.up if down else item.down
                wanted.append(
                    sum(items[n].x for n in neighbors) / len(neighbors) if neighbors else item.x
                )
            for name, x in zip(row, _without_overlap(row, items, wanted), strict=True):
                items[name].x = x


def _without_overlap(
    row: list[str], items: Mapping[str, _Item], wanted: list[float]
) -> list[float]:
    """Return the places nearest to those wanted at which nothing overlaps, in the same order."""
    offsets, offset = [], 0.0
    for n, name in enumerate(row):
        if n:
            offset += (items[row[n - 1]].width + items[name].width) / 2 + BOX_GAP
        offsets.append(offset)
    # Least squares under an order: neighbors that are in the wrong order share their mean.
    blocks: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        mean, count = want - offset, 1
        while blocks and blocks[-1][0] > mean:
            before, number = blocks.pop()
            mean = (before * number + mean * count) / (number + count)
            count += number
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _finish(
    rows: list[list[str]],
    items: Mapping[str, _Item],
    sizes: Mapping[str, tuple[float, float]],
    edges: Sequence[tuple[str, str]],
    paths: list[list[str]],
) -> Layout:
    if not items:
        return Layout({}, (), 0.0, 0.0)
    left = min(item.x - item.width / 2 for item in items.values()) - MARGIN
    tops, top = [], MARGIN
    for row in rows:
        tops.append(top)
        top += max(items[name].height for name in row) + ROW_GAP
    heights = [max(items[name].height for name in row) for row in rows]
    boxes = {}
    for name, (width, height) in sizes.items():
        item = items[name]
        room = (heights[item.row] - height) / 2
        boxes[name] = Box(item.x - width / 2 - left, tops[item.row] + room, width, height)
    leaving, entering = _ports(boxes, items, edges, paths, left)
    wires = []
    for number, path in enumerate(paths):
        points = [(leaving[number], boxes[path[0]].y + boxes[path[0]].height)]
        for bend in path[1:-1]:
            item = items[bend]
            x, y = item.x - left, tops[item.row]
            points += [(x, y), (x, y + heights[item.row])]
        points.append((entering[number], boxes[path[-1]].y))
        wires.append(Wire(tuple(points)))
    width = max(item.x + item.width / 2 for item in items.values()) - left + MARGIN
    return Layout(boxes, tuple(wires), width, top - ROW_GAP + MARGIN)


def _ports(
    boxes: Mapping[str, Box],
    items: Mapping[str, _Item],
    edges: Sequence[tuple[str, str]],
    paths: list[list[str]],
    left: float,
) -> tuple[dict[int, float], dict[int, float]]:
    """Return where each edge leaves and enters its boxes: side by side, in the order of its way."""
    leaving: dict[int, float] = {}
    entering: dict[int, float] = {}
    for name, box in boxes.items():
        out = [n for n, (source, _) in enumerate(edges) if source == name]
        out.sort(key=lambda n: items[paths[n][1]].x)
        for place, number in enumerate(out, 1):
            leaving[number] = box.x + box.width * place / (len(out) + 1)
        into = [n for n, (_, target) in enumerate(edges) if target == name]
        into.sort(key=lambda n: items[paths[n][-2]].x)
        for place, number in enumerate(into):
            entering[number] = box.x + box.width * (place + 0.5) / len(into)
    return leaving, entering
