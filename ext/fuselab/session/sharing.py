"""A result to give away: one page that needs nothing but a browser, and a file that runs alone."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from fuselab.display.style import Style
from fuselab.exporting import free_path
from fuselab.session.saving import file_name

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ margin: 16px auto; max-width: 1130px; padding: 0 8px; background: #fff }}
@media (prefers-color-scheme: dark) {{
  body {{ background: #121212 }}
  .fuselab-card {{ filter: invert(.93) hue-rotate(180deg) }}
  .fuselab-card .fuselab-card {{ filter: none }}
}}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def share(cell: Any, folder: str | Path = ".", *, replace: bool = True) -> list[Path]:
    """Write a cell's result as one HTML page, and its slowest kernel as a Python file.

    The page has the cell, its kernels, plots and verdicts, what was fused and why, the guards; it
    loads nothing. The file runs the kernel by itself, with torch and what compiles its language.

    Args:
        cell: A ``FusedCell``.
        folder: Where to.
        replace: Whether files of the same names there are replaced; others are written if not.

    Returns:
        The paths.
    """
    from fuselab.display.pages import subjects

    root = Path(folder).expanduser()
    root.mkdir(parents=True, exist_ok=True)
    name = file_name(cell.name)
    with cell.lock:
        parts = [cell._repr_mimebundle_()["text/html"]]
        for title, page in (("Fusion", subjects.fusion_of), ("Guards", subjects.guards_of)):
            found = page(cell)._repr_mimebundle_()["text/html"]
            summary = f'<summary style="{Style.summary}">{escape(title)}</summary>'
            parts.append(f'<details class="fuselab-card">{summary}{found}</details>')
        path = root / f"{name}.html" if replace else free_path(root, name, ".html")
        text = _PAGE.format(title=escape(cell.name), body="\n".join(parts))
        path.write_text(text, encoding="utf-8")
        written = [path]
        kernels = cell.kernels
        if kernels:
            times = cell.kernel_times
            slowest = max(kernels, key=lambda n: times[n].median if n in times else 0.0)
            file = root / f"{name}.py" if replace else free_path(root, name, ".py")
            written.append(kernels[slowest].export(file))
    return written


__all__ = ["share"]
