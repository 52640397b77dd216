"""A stranger's tour: what somebody sees who opens a notebook for the first time.

At the sizes of a laptop and of a screen, in both themes, with every other host blocked; the
pictures are left in ``build/screenshots``, to be looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from lab import SECOND, Notebook, Panel, overflowing
from playwright.sync_api import Locator, expect

pytestmark = [
    pytest.mark.browser,
    pytest.mark.serial,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

SIZES = {"screen": (1400, 900), "laptop": (1200, 700)}

CELLS = [
    "%load_ext fuselab\nimport torch, torch.nn.functional as F\n"
    "x, w = torch.randn(1024, 1024), torch.randn(1024)",
    "%%fuse --name gelu\ny = F.gelu(x)\nz = y * w\np = z.softmax(-1)",
    "%%fuse\ny = F.gelu(x\nz = y * w",
    "%%fuse --name tri --target triton --out y\ny = F.gelu(x[:64]) * w",
    "%%fuse --name chain --panel -q\ny = torch.tanh(x) * w\nz = y * torch.sigmoid(y)",
    "%%fuse --name searched --tune 4\ny = torch.tanh(x) * w + 1",
]

# Boxes that scroll sideways by a few pixels, for nothing.
DEAD = """root => [...root.querySelectorAll('*')].filter(e => {
    const over = e.scrollWidth - e.clientWidth;
    return e.checkVisibility() && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)
        && over > 0 && over < 30 && e.clientWidth > 0 && !e.closest('.fuselab-editor');
}).map(e => e.className)"""


def bottom(of: Locator) -> float:
    box = of.bounding_box()
    assert box is not None
    return float(box["y"] + box["height"])


def at_top(notebook: Notebook, index: int) -> Locator:
    """Bring a cell to the upper end of the page, as one does to read its result."""
    cell = notebook.page.locator(".jp-Notebook .jp-Cell").nth(index)
    cell.evaluate("e => e.scrollIntoView({block: 'start'})")
    return cell


def ran(notebook: Notebook, index: int) -> Locator:
    """Run a cell, and wait until it has run."""
    output = notebook.run(index)
    prompt = notebook.page.locator(".jp-Notebook .jp-Cell .jp-InputPrompt").nth(index)
    expect(prompt).to_have_text(re.compile(r"\[\d+\]"), timeout=120 * SECOND)
    return output


def test_tour(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook("stranger.ipynb", CELLS, width=1400, height=900)
    page = notebook.page
    ran(notebook, 0)

    # The kernel and the cell's lines are what one sees, whatever the screen.
    output = ran(notebook, 1)
    card = output.locator(".fuselab-card")
    expect(card).to_be_visible()
    loop = card.get_by_text("#pragma omp parallel").first
    for name, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        at_top(notebook, 1)
        assert bottom(loop) < height - 60, "the loop is below the fold"
        for text in ("eager moves", "fused moves", "limit here"):
            assert bottom(card.get_by_text(text).first) < height / 2

        def dark_in_the_dark(theme: str) -> None:
            invert = card.evaluate("e => getComputedStyle(e).filter")
            assert ("invert" in invert) == (theme == "dark")

        notebook.shoot(f"stranger-card-{name}", each=dark_in_the_dark)
    # Hovering a line of the cell lights its lines of the kernel, and the other way round.
    line = card.locator("summary.l2")
    own = card.locator("div[data-kernel] span.l2").first
    color = "e => getComputedStyle(e).backgroundColor"
    line.hover()
    assert own.evaluate(color) == line.evaluate(color) == "rgb(255, 224, 138)"
    card.locator("div[data-kernel] span.l3").first.hover()
    assert own.evaluate(color) != "rgb(255, 224, 138)"
    assert card.locator("summary.l3").evaluate(color) == "rgb(255, 224, 138)"
    line.click()
    expect(line.locator("xpath=..").get_by_text("fx_one_plus_erf")).to_be_visible()
    line.click()
    assert card.evaluate(DEAD) == []
    # Printed, nothing is cut.
    page.emulate_media(media="print")
    cut = "e => [...e.querySelectorAll('*')].filter(e => e.scrollHeight > e.clientHeight + 2"
    cut += " && ['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowY)).length"
    assert card.evaluate(cut) == 0
    page.emulate_media(media="screen")

    # A mistake shows the cell's line alone.
    output = ran(notebook, 2)
    expect(output).to_contain_text("SyntaxError: '(' was never closed")
    assert "File" not in output.inner_text()
    assert output.inner_text().strip().count("\n") == 3

    # Without a GPU nothing is said about speed.
    output = ran(notebook, 3)
    expect(output.locator(".fuselab-card")).to_contain_text("predicted by its")
    assert not re.search(r"×\s(faster|slower)|GB/s", output.first.inner_text())
    notebook.shoot("stranger-triton", output.first)

    # The panel: no dead scrollbar, and the verdict is in view where one checks.
    output = notebook.run(4)
    panel = Panel(output)
    expect(panel.editor).to_be_visible(timeout=120 * SECOND)
    for name, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        at_top(notebook, 4)
        page.wait_for_timeout(500)
        panel.button("Check").click()
        panel.says(re.compile("Passed – "), timeout=60)
        page.wait_for_timeout(300)
        verdict = panel.root.locator(".fuselab-verdict")
        assert bottom(verdict) <= height
        for title in ("Timings", "Stages", "Kernels"):
            panel.tab(title).click()
            page.wait_for_timeout(800)
            assert panel.root.evaluate(DEAD) == []
            assert overflowing(panel.root) == []
        notebook.shoot(f"stranger-panel-{name}", panel.root)

    # A search is drawn while it goes on.
    output = notebook.run(5)
    expect(output.locator("img[alt$='the search so far']")).to_be_visible(timeout=60 * SECOND)
    expect(page.locator(".jp-Notebook .jp-Cell .jp-InputPrompt").nth(5)).to_have_text(
        re.compile(r"\[\d+\]"), timeout=60 * SECOND
    )

    # The kernel goes away: the panel says so once.
    notebook.save()
    notebook.restart_kernel()
    notebook.open("stranger.ipynb")
    panel = Panel(page.locator(".jp-Notebook .jp-Cell").nth(4))
    expect(panel.root).to_be_visible()
    said: Any = "e => getComputedStyle(e, '::before').content"
    assert "run the cell again" in panel.root.evaluate(said)
    inside = panel.root.locator(".jupyter-widgets-disconnected").first
    assert inside.evaluate(said) == "none"
    notebook.shoot("stranger-reopened", panel.root)
