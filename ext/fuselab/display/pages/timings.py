"""Where a cell's time goes: eager, other compilers, fused, the limit, edits, and every step."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from fusec.report import Timing
from fuselab.display import noise, words
from fuselab.display.pages.page import Page, indented, static_table
from fuselab.display.style import Style

HEAD = ("what", "median (quartiles)", "compared", "samples")
STEPS = ("step, alone", "median (quartiles)", "share")
MOST_STEPS = 24


def edits_of(kernels: Mapping[str, Any]) -> list[tuple[str, Timing, Timing]]:
    """Return the edits that were timed: the kernel's name, the generated text's time, its own."""
    found = []
    for name, kernel in kernels.items():
        verdict = kernel.last_verdict
        if verdict is not None and verdict.ok and verdict.timing and verdict.generated:
            found.append((name, verdict.generated, verdict.timing))
    return found


def time_rows(facts: Any) -> list[tuple[str, str, str, str]]:
    """Return the times as rows under ``HEAD``.

    Args:
        facts: A ``FusedCell``, or the panel's facts about one.
    """
    rows: list[tuple[str, str, str, str]] = []
    eager, fused = facts.eager, facts.fused
    early = getattr(facts, "early", False)
    if eager:
        rows.append(("eager, whole cell", words.spread(eager), "", str(eager.samples)))
    if facts.limit:
        ratio = noise.compared(facts.limit, fused, "fused") if fused else ""
        if fused and fused.median <= facts.limit:
            ratio = "reached"
        ratio = "" if early else ratio
        rows.append(("the limit of this machine", words.duration(facts.limit), ratio, ""))
    for name, timing in facts.others.items():
        rows.append((f"{words.peer_title(name)}, whole cell", *_row(timing, eager)))
    if fused:
        spread, ratio, samples = _row(fused, eager)
        rows.append(("fused, whole cell", spread, "timed too early" if early else ratio, samples))
    edits = {name: pair for name, *pair in edits_of(facts.kernels)}
    for name, kernel in facts.kernels.items():
        if name in facts.kernel_times:
            rows.append((f"{name}, alone", *_row(facts.kernel_times[name], None)))
        if name in edits:
            generated, own = edits[name]
            label = "the edit, checked" if kernel.edited else "the text checked last"
            compared = noise.compared(own, generated, "generated")
            # Its time is of another run than those above: beside them it would say nothing.
            rows.append((f"{name}, {label}", "", compared, str(own.samples)))
    return rows


def _row(timing: Timing, reference: Timing | None) -> tuple[str, str, str]:
    ratio = noise.compared(timing, reference, "eager") if reference else ""
    return words.spread(timing), ratio, str(timing.samples)


def steps_of(facts: Any) -> dict[str, Timing]:
    """Return every step that was timed alone, kernels first, the longest first of each."""
    return {
        name: timing
        for times in (facts.kernel_times, facts.extern_times)
        for name, timing in sorted(times.items(), key=lambda item: -item[1].median)
    }


def step_rows(facts: Any) -> list[tuple[str, str, str]]:
    """Return the steps as rows under ``STEPS``, the longest first; none of a step alone."""
    steps = sorted(steps_of(facts).items(), key=lambda item: -item[1].median)
    total = sum(timing.median for _, timing in steps)
    if not total or len(steps) < 2:
        return []
    rows = [(name, words.spread(timing)) for name, timing in steps[:MOST_STEPS]]
    values = [timing.median for _, timing in steps[:MOST_STEPS]]
    rest = sum(timing.median for _, timing in steps[MOST_STEPS:])
    if rest:
        more = words.count(len(steps) - MOST_STEPS, "step")
        rows.append((f"{more} more", words.duration(rest)))
        values.append(rest)
    return [(*row, share) for row, share in zip(rows, words.shares(values), strict=True)]


def check_note(facts: Any) -> str:
    """Say why a checked text has no time here; empty where none was checked."""
    if not edits_of(facts.kernels):
        return ""
    return (
        "A checked text is timed in turn with the generated one, in a run of its own: "
        "only their ratio is shown."
    )


def noise_notes(facts: Any) -> list[str]:
    """Say that a part took longer than its whole, and that the machine was noisy."""
    kernels = facts.kernel_times
    times = [facts.eager, facts.fused, *kernels.values(), *facts.others.values()]
    found = (noise.part_note(facts.fused, kernels), noise.busy_note(times))
    return [note[:1].upper() + note[1:] + "." for note in found if note]


def step_note(facts: Any) -> str:
    """Say what the steps take together, beside the cell; empty of a step alone."""
    steps = steps_of(facts)
    total = sum(timing.median for timing in steps.values())
    if not total or len(steps) < 2 or facts.fused is None:
        return ""
    return (
        f"The steps, each timed alone, take {words.duration(total)} together; "
        f"the cell takes {words.duration(facts.fused.median)}."
    )


def failures_of(facts: Any) -> list[str]:
    """Return why other compilers have no time."""
    return [f"{words.peer_title(name)} failed: {reason}" for name, reason in facts.failed.items()]


def timings_page(cell: Any) -> Page:
    """Return the static page about a cell's times; its steps have been timed."""
    fused, eager = cell.fused, cell.eager
    head = f"{cell.name}: nothing was timed"
    if fused and eager:
        head = f"{cell.name}: {words.duration(fused.median)}"
        early = getattr(cell, "early", False)
        awaited = getattr(cell, "awaited", False)
        head += f", {words.early(awaited) if early else noise.compared(fused, eager, 'eager')}"
    rows, steps = time_rows(cell), step_rows(cell)
    notes = [*failures_of(cell), check_note(cell), step_note(cell), *noise_notes(cell)]
    notes += [eager.method] if eager else []
    notes = [note for note in notes if note]
    lines = [head, *indented([HEAD, *rows] if rows else [])]
    lines += ["", *indented([STEPS, *steps])] if steps else []
    html = [f"<div><b>{escape(head)}</b></div>", static_table(HEAD, rows, 3)]
    html.append(static_table(STEPS, steps, 2))
    html += [f'<div style="{Style.quiet}">{escape(note)}</div>' for note in notes]
    return Page("\n".join([*lines, *(f"  {note}" for note in notes)]), "".join(html))
