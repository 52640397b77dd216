"""Every stage of a compilation as text: which there are, how long each took, what changed."""

from __future__ import annotations

import difflib
import dis
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

from fusec.report import Stage
from fusec.target_api.registry import find_target
from fuselab.display import words
from fuselab.display.pages.page import Page, indented, static_table

Language = Literal["python", "cpp", "text"]

# What the compiler calls a stage: what a person calls it, and how to color it.
TITLES: dict[str, tuple[str, Language]] = {
    "capture": ("FX graph, as captured", "python"),
    "decompose": ("ATen graph, decomposed", "python"),
    "decompose backward": ("ATen graph of backward", "python"),
    "passes": ("passes over the graph", "text"),
    "partition": ("joint graph, before the split", "python"),
    "lower": ("loop IR, before fusion", "python"),
    "schedule": ("loop IR, after fusion", "python"),
    "emit": ("host program and kernels", "text"),
    "build": ("build", "text"),
}


@dataclass(frozen=True)
class StageView:
    """A stage that can be read.

    Attributes:
        key: Unique in its cell.
        title: For people.
        seconds: What it took; None where that is not known.
        language: How to color it.
        read: Writes its text; may compile.
        origins: Line of the text to the user's lines, where that is known.
        stage: The name of the compiler's stage; empty where it is none of those.
    """

    key: str
    title: str
    seconds: float | None
    language: Language
    read: Callable[[], str] = field(repr=False, compare=False)
    origins: dict[int, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)
    stage: str = ""


def stage_views(cell: Any) -> list[StageView]:
    """Return every stage of a cell, from its source down to machine code.

    Args:
        cell: A ``FusedCell``.
    """
    found = [StageView("source", "cell source", None, "python", lambda: str(cell.source))]
    for number, function in enumerate(getattr(cell, "functions", ())):
        code = getattr(getattr(function, "function", None), "__code__", None)
        if code is not None:
            name = f"Python bytecode of {code.co_name.lstrip('_')}"
            found.append(StageView(f"bytecode {number}", name, None, "text", _dis(code)))
    several = len(cell.graphs) > 1
    for graph in cell.graphs:
        before = f"{graph.name}: " if several else ""
        for number, stage in enumerate(graph.stages):
            if stage.name != "build":
                found.append(_of(stage, f"{graph.name} {number}", before))
    for name, kernel in cell.kernels.items():
        target = find_target(kernel.target)
        origins = {
            line: tuple(sorted({p.line for p in places}))
            for line, places in kernel.generated.origins.items()
        }
        found.append(
            StageView(
                f"kernel {name}",
                f"{name}: {target.title}",
                None,
                target.language,
                lambda k=kernel: k.source,  # type: ignore[misc]
                {} if kernel.edited else origins,
            )
        )
        for kind, said in target.artifacts.items():
            found.append(
                StageView(
                    f"{kind} {name}",
                    f"{name}: {said}",
                    None,
                    "text",
                    lambda k=kernel, kind=kind: k.artifact(kind),  # type: ignore[misc]
                )
            )
    return found


def _of(stage: Stage, key: str, before: str) -> StageView:
    title, language = TITLES.get(stage.name, (stage.name, "text"))
    return StageView(
        key, before + title, stage.seconds, language, lambda: stage.text, stage=stage.name
    )


def _dis(code: Any) -> Callable[[], str]:
    def read() -> str:
        out = io.StringIO()
        dis.dis(code, file=out)
        return out.getvalue()

    return read


def time_rows(cell: Any) -> list[tuple[str, float, str]]:
    """Return what each stage took: its title, seconds, and its share of all of it in words."""
    totals: dict[str, float] = {}
    for graph in cell.graphs:
        for stage in graph.stages:
            title = TITLES.get(stage.name, (stage.name, "text"))[0]
            totals[title] = totals.get(title, 0.0) + stage.seconds
    shares = words.shares(list(totals.values()))
    return [(*row, share) for row, share in zip(totals.items(), shares, strict=True)]


@dataclass(frozen=True)
class DiffRow:
    """A line of two texts side by side.

    Attributes:
        left: Its number and text, from 1; None where the left text has nothing here.
        right: Likewise.
        changed: Whether the two differ.
    """

    left: tuple[int, str] | None
    right: tuple[int, str] | None
    changed: bool


def side_by_side(left: str, right: str, around: int = 3) -> list[DiffRow | int]:
    """Align two texts line by line.

    Args:
        left: The earlier text.
        right: The later one.
        around: How many equal lines to keep beside a change; the rest becomes its number.
    """
    a, b = left.splitlines(), right.splitlines()
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=len(a) + len(b) > 4000)
    rows: list[DiffRow | int] = []
    codes = matcher.get_opcodes()
    for place, (tag, i1, i2, j1, j2) in enumerate(codes):
        if tag == "equal":
            head = around if place else 0
            tail = around if place < len(codes) - 1 else 0
            count = i2 - i1
            skipped = count - head - tail
            for n in range(count):
                if skipped > 1 and head <= n < count - tail:
                    if n == head:
                        rows.append(skipped)
                    continue
                rows.append(DiffRow((i1 + n + 1, a[i1 + n]), (j1 + n + 1, b[j1 + n]), False))
            continue
        for n in range(max(i2 - i1, j2 - j1)):
            first = (i1 + n + 1, a[i1 + n]) if n < i2 - i1 else None
            second = (j1 + n + 1, b[j1 + n]) if n < j2 - j1 else None
            rows.append(DiffRow(first, second, True))
    return rows


def stages_page(cell: Any) -> Page:
    """Return the static page about the stages: their times, and what texts there are."""
    rows = [(title, words.duration(seconds), share) for title, seconds, share in time_rows(cell)]
    total = sum(seconds for _, seconds, _ in time_rows(cell))
    head = f"{cell.name}: compiled in {words.duration(total)}"
    views = stage_views(cell)
    lines = [head, *indented([("stage", "time", "share"), *rows]), "", "  texts to read:"]
    lines += [f"    {view.title}" for view in views]
    html = f"<div><b>{escape(head)}</b></div>{static_table(('stage', 'time', 'share'), rows)}"
    return Page("\n".join(lines), html)


def find_stage(views: Sequence[StageView], wanted: str) -> StageView | None:
    """Return the first stage whose title or key has the words in it; None where there is none."""
    text = wanted.lower()
    return next((v for v in views if text in v.title.lower() or text in v.key.lower()), None)
