"""How exact the numbers are: outputs, kernels, lines, and where a NaN comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from fusec.report import Verdict
from fuselab.display import words
from fuselab.display.pages.page import Page, indented, static_table

if TYPE_CHECKING:
    from fusec.inspect.trace import Anomaly, LineError, Trace

OUTPUTS = (
    "output", "dtype and shape", "worst at", "against eager", "allowed",
    "against float64", "eager's own",
)  # fmt: skip
TENSORS = ("written by", "tensor", "dtype", "worst at", "value there", "in float64",
           "relative error", "eager's own")  # fmt: skip
LINES = ("line", "kernel", "largest after", "relative error", "before the line", "grows")


def relative(value: float) -> str:
    """Write a relative error."""
    return "NaN or infinity" if math.isnan(value) else words.error(value)


def number(value: float) -> str:
    """Write a value with nine digits: more than float32 has."""
    return f"{value:.9g}"


def place(index: Sequence[int]) -> str:
    """Write an index."""
    return f"[{', '.join(map(str, index))}]" if index else ""


def output_rows(verdict: Verdict | None) -> list[tuple[str, ...]]:
    """Return a row an output: how far it is from eager and from float64."""
    rows: list[tuple[str, ...]] = []
    for output in verdict.outputs if verdict else ():
        shape = " x ".join(map(str, output.shape)) or "one number"
        rows.append(
            (
                output.name + ("" if output.ok else " – wrong"),
                f"{output.dtype} {shape}",
                place(output.worst),
                words.error(output.against_eager),
                words.error(output.allowed),
                words.error(output.against_float64),
                words.error(output.eager_against_float64),
            )
        )
    return rows


def tensor_rows(trace: Trace) -> list[tuple[str, ...]]:
    """Return a row a tensor in memory, in the order in which they are written."""
    return [
        (
            t.step,
            t.tensor,
            t.dtype,
            place(t.worst.index),
            number(t.worst.value),
            number(t.worst.exact),
            relative(t.compiled),
            relative(t.eager),
        )
        for t in trace.tensors
    ]


def growth(line: LineError) -> str:
    """Say how much the error grows at a line."""
    if math.isnan(line.error):
        return ""
    if not line.entering:
        return "begins" if line.error else ""
    return f"{words.ratio(line.growth)}×" if line.growth > 1 else ""


def line_rows(trace: Trace) -> list[tuple[str, ...]]:
    """Return a row a line of the cell and kernel."""
    return [
        (
            str(line.where),
            line.kernel,
            line.operator,
            relative(line.error),
            relative(line.entering),
            growth(line),
        )
        for line in trace.lines
    ]


def steepest(trace: Trace) -> LineError | None:
    """Return the line at which the error grows most; None where there is nothing to say."""
    grown = [line for line in trace.lines if line.entering and line.growth > 4]
    begun = [line for line in trace.lines if not line.entering and line.error > 1e-6]
    return max(grown, key=lambda line: line.growth, default=None) or max(
        begun, key=lambda line: line.error, default=None
    )


def growth_line(trace: Trace) -> str:
    """Say where the error grows most, in one line."""
    if any(math.isnan(line.error) for line in trace.lines):
        return "NaN or infinity appears: see below where it comes from."
    line = steepest(trace)
    if line is None:
        return "No line makes the error much larger than it was before."
    if not line.entering:
        return f"The error begins at {line.where}: {relative(line.error)} after {line.operator}."
    return (
        f"The error grows most at {line.where}: {words.ratio(line.growth)}×, from "
        f"{relative(line.entering)} to {relative(line.error)}, after {line.operator}."
    )


def anomaly_line(found: Anomaly) -> str:
    """Say where a NaN or an infinity comes from."""
    count = words.count(found.count, "element")
    if found.step == "input":
        return (
            f"The input {found.operator} has {found.kind} in {count}, first at {place(found.index)}"
        )
    where = f"{found.where}: " if found.where else ""
    given = f" of {', '.join(map(number, found.arguments))}" if found.arguments else ""
    text = f"{where}{found.operator}{given} is the first {found.kind}, at {place(found.index)}"
    text += f" ({count}, in {found.step})"
    if found.exact_too:
        return f"{text}; float64 has it too: it comes from the formula itself"
    return f"{text}; float64 has none: the dtype is too small for it"


def trace_text(name: str, trace: Trace) -> str:
    """Write what was traced for a terminal."""
    lines = [f"{name}: {growth_line(trace)}"]
    lines += [f"  {anomaly_line(each)}" for each in trace.anomalies]
    for head, rows in ((TENSORS, tensor_rows(trace)), (LINES, line_rows(trace))):
        if rows:
            lines += ["", *indented([head, *rows])]
    lines += [f"  {kernel}: too large to look into its lines" for kernel in trace.skipped]
    return "\n".join(lines)


def numerics_page(
    name: str, verdict: Verdict | None, traces: Sequence[tuple[str, Trace | str]]
) -> Page:
    """Return the static page about a cell's numbers.

    Args:
        name: The cell's.
        verdict: Of its outputs; None where they were not compared.
        traces: By part; a text says why there is none.
    """
    rows = output_rows(verdict)
    texts = [f"{name}: {words.error_line(verdict) if verdict else 'not compared yet'}"]
    html = [f"<div><b>{escape(texts[0])}</b></div>", static_table(OUTPUTS, rows, 3)]
    texts += indented([OUTPUTS, *rows]) if rows else []
    for part, trace in traces:
        if isinstance(trace, str):
            texts += ["", f"{part}: {trace}"]
            html.append(f"<div>{escape(part)}: {escape(trace)}</div>")
            continue
        texts += ["", trace_text(part, trace)]
        html.append(f"<div><b>{escape(part)}</b>: {escape(growth_line(trace))}</div>")
        html += [f"<div>{escape(anomaly_line(each))}</div>" for each in trace.anomalies]
        html.append(static_table(TENSORS, tensor_rows(trace), 4))
        html.append(static_table(LINES, line_rows(trace), 3))
    return Page("\n".join(texts), "".join(html))
