"""Figures and facts as words: plain text and escaped HTML, nothing else."""

from __future__ import annotations

import math
from html import escape

from fusec.report import OutputError, Timing, Verdict

REFUSALS = {
    "empty": "Nothing to check",
    "signature": "Refused: another signature",
    "compile": "Does not compile",
    "crash": "Refused: it crashed",
    "bounds": "Refused: out of bounds",
    "timeout": "Refused: it did not end",
    "wrong": "Refused: wrong result",
}


def seconds(value: float) -> str:
    """Write a time with three digits and the unit that suits it."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= (1.0 if unit == "s" else 0.0995):
            return f"{digits(value * factor)} {unit}"
    return f"{digits(value * 1e9)} ns"


def digits(value: float) -> str:
    """Write a number with three significant digits and no exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"


def error(value: float) -> str:
    """Write an error with two digits; 0 is the same to the last bit."""
    if math.isnan(value):
        return "NaN"
    return "0" if value == 0 else f"{value:.1e}"


def against(time: float, reference: float) -> str:
    """Say how ``time`` compares with ``reference``: ``3.0× faster``."""
    if time <= 0 or reference <= 0:
        return ""
    ratio = reference / time
    if 0.98 < ratio < 1.02:
        return "the same"
    return f"{digits_short(ratio)}× faster" if ratio > 1 else f"{digits_short(1 / ratio)}× slower"


def digits_short(value: float) -> str:
    """Write a ratio: two decimals below 2, one below 100."""
    return f"{value:.2f}" if value < 2 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def spread(timing: Timing) -> str:
    """Write a timing with its quartiles: ``0.61 ms (0.60 to 0.64)``."""
    scale, unit = (1e3, "ms") if timing.median >= 1e-4 else (1e6, "µs")
    low, median, high = (digits(v * scale) for v in (timing.low, timing.median, timing.high))
    return f"{median} {unit} ({low} to {high})"


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return the verdict as lines of plain text, the outcome first."""
    if not verdict.ok:
        head = REFUSALS.get(verdict.stage, "Refused")
        where = f"line {verdict.line}: " if verdict.line and "line" not in verdict.reason else ""
        return [f"{head} – {where}{verdict.reason}", *_error_line(verdict)]
    return [f"Passed – {verdict.reason}", *_error_line(verdict), *_time_line(verdict)]


def _error_line(verdict: Verdict) -> list[str]:
    if not verdict.outputs:
        return []
    worst = max(verdict.outputs, key=_badness)
    parts = [f"Error against eager {error(worst.against_eager)} (allowed {error(worst.allowed)})"]
    if worst.against_float64 is not None:
        part = f"against float64 {error(worst.against_float64)}"
        if worst.eager_against_float64 is not None:
            part += f" (eager’s own {error(worst.eager_against_float64)})"
        parts.append(part)
    if len(verdict.outputs) > 1:
        parts.append(f"worst of {len(verdict.outputs)} outputs: {worst.name}")
    return [" · ".join(parts)]


def _badness(output: OutputError) -> tuple[bool, float]:
    if math.isnan(output.against_eager):
        return (not output.ok, math.inf)
    return (not output.ok, output.against_eager / max(output.allowed, 1e-300))


def _time_line(verdict: Verdict) -> list[str]:
    parts = []
    if verdict.timing:
        part = f"Kernel {seconds(verdict.timing.median)}"
        if verdict.generated:
            ratio = against(verdict.timing.median, verdict.generated.median)
            part += f", generated {seconds(verdict.generated.median)} ({ratio})"
        parts.append(part)
    if verdict.graph:
        part = f"whole cell {seconds(verdict.graph.median)}"
        if verdict.eager:
            ratio = against(verdict.graph.median, verdict.eager.median)
            part += f", eager {seconds(verdict.eager.median)} ({ratio})"
        parts.append(part)
    if verdict.seconds:
        parts.append(f"checked in {digits(verdict.seconds)} s")
    return [" · ".join(parts)] if parts else []


def notice(lines: list[str], color: str, details: str = "", faded: bool = False) -> str:
    """Return lines as an HTML notice with a colored edge; every text is escaped.

    Args:
        lines: The first is set bold.
        color: A CSS color.
        details: Long text to fold away.
        faded: Whether it speaks of a text that has changed since.
    """
    body = [f"<b>{escape(lines[0])}</b>", *(escape(line) for line in lines[1:])]
    folded = (
        "<details><summary>Full output</summary><pre style='margin:4px 0 0;max-height:16em;"
        f"overflow:auto;white-space:pre-wrap'>{escape(details)}</pre></details>"
        if details.strip()
        else ""
    )
    return (
        f"<div style='border-left:3px solid {color};padding:1px 8px;overflow-wrap:anywhere;"
        f"opacity:{0.6 if faded else 1}'>{'<br>'.join(body)}{folded}</div>"
    )


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return an HTML table; every text is escaped. The first column is text, the rest figures."""

    def row(cells: list[str], tag: str) -> str:
        return "".join(
            f"<{tag} style='padding:1px 14px 1px 0;font-weight:{600 if tag == 'th' else 400};"
            f"text-align:{'right' if i else 'left'};white-space:nowrap'>{escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)
    return (
        "<table style='border-collapse:collapse;font-variant-numeric:tabular-nums'>"
        f"<thead><tr>{row(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"
    )


GOOD = "var(--jp-success-color1, #388e3c)"
BAD = "var(--jp-error-color1, #d32f2f)"
QUIET = "var(--jp-border-color1, #bdbdbd)"
