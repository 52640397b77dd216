"""What stands in a panel's place where the page has no view of it.

A notebook is opened again: its kernel is gone, and unless somebody has asked JupyterLab to save the
state of widgets with notebooks (it does not by itself), so is the panel. ipywidgets writes "Error
displaying widget: model not found" there, or a broken link, and where a request to a kernel that
just starts is lost it waits for ever at "Loading widget...". No script of ours runs in such a page,
so an output before the panel brings looks: they say what to do once nothing has come.
"""

from __future__ import annotations

from typing import Any

from IPython.display import publish_display_data

SAYS = "Not connected to Python any more: run the cell again"
PATIENCE = 12  # seconds: a kernel that starts, and its answers, take a while on a busy machine

MARK = "fuselab-instead"
# ipywidgets' place for a view, in the output below: without any element until there is a view.
_PLACE = (
    f".jp-OutputArea-child:has(.{MARK})+.jp-OutputArea-child>.jp-OutputArea-output"
    ":not(.jp-RenderedHTMLCommon)"
)
_WAITS = f"{_PLACE}:not(:has(*))"
_FAILED = f"{_PLACE}.jupyter-widgets:not(:has(*))"
_BROKEN = f"{_PLACE}:has(>.jupyter-widgets>.jupyter-widgets-error-widget)"
_LOOKS = f"""\
{_WAITS}{{animation:fuselab-gone 0s {PATIENCE}s forwards}}
{_WAITS}::after,{_BROKEN}::after{{content:"{SAYS}";font-size:0;font-style:italic;line-height:1.4;\
font-family:var(--jp-ui-font-family,sans-serif);color:var(--jp-ui-font-color1,#212121);\
animation:fuselab-come 0s {PATIENCE}s forwards}}
{_FAILED},{_FAILED}::after,{_BROKEN}::after{{animation-delay:0s}}
{_BROKEN}>*{{display:none}}
@keyframes fuselab-gone{{to{{font-size:0}}}}
@keyframes fuselab-come{{to{{font-size:var(--jp-ui-font-size1,13px)}}}}
"""
_NOTE = f'<span class="{MARK}"><style>{_LOOKS}</style></span>'


def show(bundle: dict[str, Any]) -> None:
    """Display a panel, after what stands in its place one day; terminals show its text alone."""
    # Not a plain text: a terminal would show an empty line.
    publish_display_data({"text/html": _NOTE})
    publish_display_data(bundle)
