"""Two cells, or two kernels, side by side: times, traffic, texts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from fusec.report import Timing
from fuselab.display import noise, words
from fuselab.display.pages.page import Page, indented, static_table
from fuselab.display.style import Style

if TYPE_CHECKING:
    from fusec.kernel import Kernel

MOST_LINES = 200


def cells_page(first: Any, second: Any, times: Mapping[str, Timing], why: str = "") -> Page:
    """Return the page about two cells.

    Args:
        first: A ``FusedCell``.
        second: Another.
        times: Of both by name, interleaved; empty where they could not be timed.
        why: The reason for that.
    """
    head = ("", first.name, second.name)
    rows = [
        ("kernels", *(str(len(cell.latest_kernels)) for cell in (first, second))),
        ("extern calls", *(str(len(cell.externs)) for cell in (first, second))),
        ("graph breaks", *(str(len(cell.breaks)) for cell in (first, second))),
        ("fused, timed together", *(_spread(times.get(c.name)) for c in (first, second))),
        ("largest error against eager", *(words.error(c.max_error) for c in (first, second))),
    ]
    one, other = times.get(first.name), times.get(second.name)
    if one and other:
        title = f"{second.name} is {noise.compared(other, one, first.name)}"
        method = one.method
    else:
        title, method = f"{first.name} and {second.name}", why
    return _page(title, head, rows, method, "")


def kernels_page(
    names: tuple[str, str], kernels: tuple[Kernel, Kernel], times: Mapping[str, Timing]
) -> Page:
    """Return the page about two kernels.

    Args:
        names: What the user calls them.
        kernels: The two.
        times: Of each alone, by those names, where they are known.
    """
    rows = [
        ("target", *(kernel.target for kernel in kernels)),
        ("computes", *(kernel.generated.summary for kernel in kernels)),
        ("tunables", *(" ".join(f"{t.name}={t.value}" for t in k.tunables) for k in kernels)),
        ("moves", *(_moved(kernel) for kernel in kernels)),
        ("time alone", *(_spread(times.get(name)) for name in names)),
        ("lines", *(str(len(kernel.source.splitlines())) for kernel in kernels)),
    ]
    first, second = (kernel.source.splitlines() for kernel in kernels)
    diff = list(difflib.unified_diff(first, second, *names, lineterm="", n=2))
    cut = [f"... {len(diff) - MOST_LINES} more lines"] if len(diff) > MOST_LINES else []
    text = "\n".join(diff[:MOST_LINES] + cut) or "the same text"
    known = [times[name] for name in names if name in times]
    return _page(
        f"{names[0]} and {names[1]}",
        ("", *names),
        rows,
        known[0].method if known else "",
        text,
    )


def _page(
    title: str, head: tuple[str, ...], rows: list[tuple[str, ...]], method: str, diff: str
) -> Page:
    lines = [title, *indented([head, *rows])]
    html = [f"<div><b>{escape(title)}</b></div>", static_table(head, rows, 3)]
    if method:
        lines.append(f"  {method}")
        html.append(f'<div style="{Style.quiet}">{escape(method)}</div>')
    if diff:
        lines += ["", diff]
        html.append(f'<pre style="{Style.code};padding:4px 8px">{escape(diff)}</pre>')
    return Page("\n".join(lines), "".join(html))


def _spread(timing: Timing | None) -> str:
    return words.spread(timing) if timing else "–"


def _moved(kernel: Kernel) -> str:
    source = kernel.generated
    known = source.read_bytes >= 0 and source.written_bytes >= 0
    return words.size(source.read_bytes + source.written_bytes if known else -1)
