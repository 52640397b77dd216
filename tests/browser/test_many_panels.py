"""200 cells, 20 of them with panels, run again and again: what is held grows no faster.

``FUSELAB_ROUNDS`` runs them more often than four times; ``FUSELAB_MINUTES=60`` is an hour of use by
the clock, a round every three minutes, a panel used and memory looked at every minute;
``FUSELAB_CELLS`` takes fewer cells. With ``FUSELAB_PLAIN`` the cells are a mere ``print``, 20 of
them an ``ipywidgets.HTML``, and nothing of ours is in the notebook: what JupyterLab and ipywidgets
keep.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

import pytest
from lab import OUTPUT, SECOND, Notebook, Panel
from playwright.sync_api import expect

PANELS = 20
CELLS = int(os.environ.get("FUSELAB_CELLS", "200"))
PLAIN = bool(os.environ.get("FUSELAB_PLAIN"))
MINUTES = int(os.environ.get("FUSELAB_MINUTES", "0"))
PACE = 3  # minutes from one round to the next, where the clock is asked
ROUNDS = MINUTES // PACE or int(os.environ.get("FUSELAB_ROUNDS", "4"))
# The first round brings what is made once; the second what JupyterLab keeps of an output's past.
FIRST = 1
pytestmark = [
    pytest.mark.browser,
    pytest.mark.serial,
    pytest.mark.slow,
    pytest.mark.timeout(1200 * ROUNDS),
]

# What a round may leave. JupyterLab keeps 3 to 4 KiB of every cell that runs, a mere print too.
ROOM_KERNEL = 8  # MiB
ROOM_PAGE = 3 << 10  # KiB
ROOM_NODES = 2_000  # of the page, detached ones too: a panel that is on it has 2,300

SETUP = "%load_ext fuselab\nimport gc, psutil, torch\nx = torch.randn(64, 64)"
# Each is shown again and again, as a panel is.
WIDGETS = "import gc, psutil, ipywidgets, torch\nx = torch.randn(64, 64)\nw = [None] * 9"
HTML = "w[{n}] = w[{n}] or ipywidgets.HTML('<p>A text like any other.</p>' * 40)\nw[{n}]"
SHOW = "n => window.jupyterapp.shell.currentWidget.content.scrollToItem(n, 'end')"
CHOOSE = "n => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = n; }"
HELD = "gc.collect(); print(f'held {psutil.Process().memory_full_info().uss >> 20}')"


def cells() -> list[str]:
    """Return the notebook: nine fused cells, each of them again and again, some with panels."""
    found = [WIDGETS if PLAIN else SETUP]
    for n in range(CELLS):
        kind, shown = n % 9, n % (CELLS // PANELS) == 0
        if PLAIN:
            found.append(HTML.format(n=kind) if shown else f"y{kind} = x + {kind}\nprint('done')")
            continue
        panel = " --panel" if shown else ""
        found.append(f"%%fuse --name c{kind} -q{panel}\ny{kind} = torch.tanh(x + {kind}) * 2")
    return [*found, HELD]


def page_holds(notebook: Notebook) -> tuple[int, int]:
    """Return the KiB of the page's heap, and its nodes, after a collection."""
    session = notebook.page.context.new_cdp_session(notebook.page)
    session.send("HeapProfiler.enable")
    for _ in range(2):
        session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    nodes = session.send("Memory.getDOMCounters")["nodes"]
    session.detach()
    return int(used) >> 10, int(nodes)


def use(panel: Panel) -> None:
    """Look at another tab, and check what is in the editor."""
    panel.tab("Fusion").click()
    panel.tab("Kernels").click()
    expect(panel.editor).to_be_visible()
    panel.button("Check").click()
    panel.says(re.compile("Passed – |Refused"))


def test_memory_is_level(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook("many.ipynb", cells(), width=1200, height=700)
    page = notebook.page
    last = page.locator(".jp-Notebook .jp-Cell").nth(CELLS + 1)
    # One of the panels is used, always the same: others would show more than before.
    used = page.locator(".jp-Notebook .jp-Cell").nth(1)
    kernel, page_heap, page_nodes = [], [], []
    began, runs = time.monotonic(), 0

    def look() -> tuple[int, int, int]:
        """Return what the kernel and the page hold, once what was asked for has run."""
        # Cells far from what is seen are not on the page.
        page.evaluate(SHOW, CELLS + 1)
        expect(last.locator(".jp-InputPrompt")).to_have_text(f"[{runs}]:", timeout=1000 * SECOND)
        held = re.search(r"held (\d+)", last.locator(OUTPUT).inner_text())
        assert held is not None
        used.evaluate("e => e.scrollIntoView({block: 'start'})")
        if PLAIN:
            used.locator(".widget-html").click()
        else:
            use(Panel(used))
        heap, nodes = page_holds(notebook)
        minutes = (time.monotonic() - began) / 60
        what = f"kernel {held[1]} MiB, page {heap} KiB, {nodes} nodes"
        print(f"{minutes:.1f} min: {runs} cells, {what}", flush=True)
        return int(held[1]), heap, nodes

    for number in range(1, ROUNDS + 1):
        notebook.command("notebook:run-all-cells")
        runs += CELLS + 2
        found = look()
        for held, value in zip((kernel, page_heap, page_nodes), found, strict=True):
            held.append(value)
        while MINUTES and (left := began + 60 * PACE * number - time.monotonic()) > 30:
            page.wait_for_timeout(min(60, left) * SECOND)
            page.evaluate(CHOOSE, CELLS + 1)
            notebook.command("notebook:run-cell")
            runs += 1
            look()
    if PLAIN:
        pytest.skip("what JupyterLab and ipywidgets keep: nothing of ours was there")
    rounds = ROUNDS - 1 - FIRST
    assert kernel[-1] - kernel[FIRST] <= rounds * ROOM_KERNEL, kernel
    assert page_heap[-1] - page_heap[FIRST] <= rounds * ROOM_PAGE, page_heap
    assert page_nodes[-1] - page_nodes[FIRST] <= rounds * ROOM_NODES, page_nodes
