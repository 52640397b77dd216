"""Literal looks of the static forms, by role; the templates name them."""

from __future__ import annotations

# The looks are those of a light page; in a dark one they are turned round. JupyterLab strips it in
# an untrusted notebook, where things stay white, dark text on them.
_DARK = ':is([data-jp-theme-light="false"],.vscode-dark,html[theme="dark"],.dark) .fuselab-card'
THEME = (
    f"{_DARK}{{filter:invert(.93) hue-rotate(180deg)}}"
    ".fuselab-card .fuselab-card{filter:none!important}"
)

_LINES = (
    "border:0;margin:0;padding:0;white-space:pre;overflow:visible;"
    "font:12px/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"
)


class Style:
    """Literal looks, by role; the templates name them."""

    box = (
        "background:#fff;color:#111;border:1px solid #d0d0d0;border-radius:4px;"
        "padding:8px 12px;font:13px/1.45 system-ui,-apple-system,'Segoe UI',sans-serif;"
        "max-width:1100px;overflow-x:auto;text-align:left"
    )
    table = (
        "border-collapse:collapse;background:#fff;color:#111;font-size:12px;margin:6px 0;"
        "font-variant-numeric:tabular-nums;width:auto"
    )
    th = (
        "background:#f2f4f7;color:#111;text-align:left;font-weight:600;padding:2px 12px 2px 6px;"
        "border-bottom:1px solid #d0d0d0;vertical-align:bottom"
    )
    number_head = f"{th};text-align:right"
    # Rows have the colors, which notebooks give to rows as well; cells inherit them.
    tr = "background:#fff;color:#111"
    td = "text-align:left;padding:2px 12px 2px 6px;vertical-align:top"
    number = "text-align:right;padding:2px 12px 2px 6px;white-space:nowrap;vertical-align:top"
    best = (
        "background:#fdf1e7;color:#111;text-align:right;padding:2px 12px 2px 6px;"
        "white-space:nowrap;font-weight:600"
    )
    quiet = "background:#fff;color:#5a5a5a"
    code = (
        "background:#fafafa;color:#111;border:1px solid #e4e4e4;padding:4px 0;margin:4px 0;"
        "font:12px/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-x:auto;"
        "max-height:32em;overflow-y:auto;white-space:pre"
    )
    listing = (
        "background:#fafafa;color:#111;border:1px solid #e4e4e4;margin:4px 0;max-height:32em;"
        "overflow:auto"
    )
    columns = "border-collapse:collapse;background:#fafafa;color:#111;margin:0"
    column = (
        "background:#fafafa;color:#111;border:0;padding:4px 8px;text-align:left;"
        "vertical-align:top;width:100%"
    )
    gutter = (
        "background:#fafafa;color:#6e6e6e;border:0;padding:4px 4px 4px 8px;text-align:right;"
        "vertical-align:top;user-select:none"
    )
    origin = (
        "background:#fafafa;color:#2f6db5;border:0;padding:4px;text-align:left;"
        "vertical-align:top;user-select:none"
    )
    lines = f"background:#fafafa;color:#111;{_LINES}"
    numbers = f"background:#fafafa;color:#6e6e6e;text-align:right;{_LINES}"
    origins = f"background:#fafafa;color:#2f6db5;{_LINES}"
    code_bad = "background:#fbe3e0;color:#111"
    mono = (
        "background:#fff;color:#111;font:12px ui-monospace,Menlo,Consolas,monospace;"
        "white-space:pre-wrap"
    )
    summary = "background:#fff;color:#111;cursor:pointer;padding:2px 0"
    good = "background:#e8f4ea;color:#1d5c2b;padding:1px 6px;border-radius:3px"
    bad = "background:#fbe3e0;color:#8a1c10;padding:1px 6px;border-radius:3px;font-weight:600"
    warn = "background:#fff5dc;color:#5f4300;padding:1px 6px;border-radius:3px"
    # A line of the cell: its text at the left, its cost at the right.
    sources = (
        "background:#fff;color:#111;border:1px solid #e4e4e4;margin:6px 0;overflow-x:auto;"
        "font:12px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"
    )
    source = (
        "background:#fff;color:#111;padding:0 8px;cursor:pointer;display:flex;"
        "justify-content:space-between;gap:24px;list-style:none"
    )
    source_plain = (
        "background:#fff;color:#111;padding:0 8px;display:flex;justify-content:space-between;"
        "gap:24px"
    )
    source_text = "white-space:pre;font:inherit;padding:0"
    cost = "white-space:nowrap"
    file = "background:#f2f4f7;color:#5a5a5a;padding:0 8px"
    inside = "background:#fff;color:#111;padding:0 8px 4px 32px"
    fold = "background:#fff;color:#5a5a5a;cursor:pointer;padding:0;font-size:12px"
    bars = "border-collapse:collapse;background:#fff;color:#111;margin:2px 0;width:auto;border:0"
    bar_name = (
        "background:#fff;color:#111;text-align:left;padding:0 8px 0 0;white-space:nowrap;border:0;"
        "font-size:12px;"
        "font-variant-numeric:tabular-nums"
    )
    bar_place = "background:#fff;color:#111;padding:0 8px 0 0;border:0;text-align:left"
    bar_eager = "background:#8a8a8a;color:#111;height:9px"
    bar_fused = "background:#2f6db5;color:#fff;height:9px"


def themed(html: str) -> str:
    """Return HTML of these looks that follows the theme of the page which shows it."""
    return f'<style>{THEME}</style><div class="fuselab-card">{html}</div>'
