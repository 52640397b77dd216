"""Pages that lack something: third-party widgets, magics, all widgets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from lab import MOST, PATIENCE, SCREENSHOTS, Notebook, Panel, start_lab
from playwright.sync_api import Browser, expect

pytestmark = [
    pytest.mark.browser,
    pytest.mark.serial,
    pytest.mark.slow,
    pytest.mark.timeout(MOST),
]

CELLS = [
    "%load_ext fuselab\nimport torch\nx = torch.randn(256, 256)",
    "%%fuse --name plain --panel -q\ny = torch.tanh(x) * 2",
]

# What a page of marimo's has: no magics and no widgets, plain functions, and results as HTML.
WITHOUT_A_SHELL = """
import sys, torch, fuselab
fused = fuselab.fuse(lambda x: torch.tanh(x) * 2, name="alone")
fused(torch.randn(64, 64))
html = fused.result._repr_mimebundle_()["text/html"]
text = fused.result._repr_mimebundle_()["text/plain"]
assert "alone" in text
assert "fuselab.edit('alone', text)" in " ".join(text.split()) and "%%fuse --" not in text
outcome = fuselab.edit("alone", fuselab.kernels["alone"].source.replace("{", "{ /* mine */", 1))
assert outcome.ok, str(outcome)
assert not {"ipywidgets", "anywidget"} & set(sys.modules)
print(html)
"""


def test_core_widgets_alone(browser: Browser, tmp_path: Path) -> None:
    """As where a page loads no third-party widgets, or may not: Colab at first, VS Code offline."""
    with start_lab(tmp_path / "lab", without=["anywidget"]) as lab:
        lab.write("core.ipynb", CELLS)
        notebook = Notebook(browser, lab, width=1200, height=1000)
        notebook.open("core.ipynb")
        notebook.run(0)
        panel = Panel(notebook.run(1))
        plain = panel.button("Edit as plain text")
        expect(plain).to_be_visible()
        plain.click()
        area = panel.root.locator("textarea").locator("visible=true")
        expect(area).to_have_value(re.compile("#pragma omp|extern"))
        # An edit is checked, a wrong one refused, all with the widgets that there are.
        text = area.input_value()
        area.fill(text.replace("* 2.0f", "* 3.0f"))
        assert area.input_value() != text
        panel.button("Check").click()
        panel.says(re.compile("Refused"))
        area.fill(text.replace("* 2.0f", "* (1.0f + 1.0f)"))
        panel.button("Keep").click()
        panel.says(re.compile("the edit is in use"))
        shown = panel.root.locator(".widget-tab-contents").locator("visible=true").first
        said = {
            "Timings": "whole cell",
            "Stages": "only what changed",
            "Guards": "x is a",
            "Numerics": "compared with eager",
        }
        for title, text in said.items():
            panel.root.get_by_role("tab", name=title).click()
            expect(shown.get_by_text(text).locator("visible=true").first).to_be_visible()
        panel.tab("Kernels").click()
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        notebook.page.screenshot(path=SCREENSHOTS / "frontend-core-widgets.png")
        assert notebook.strangers == []
        notebook.page.context.close()


def test_html_alone(browser: Browser) -> None:
    """As in marimo: no magics, no widgets; a result is its page, which runs no script."""
    command = [sys.executable, "-c", WITHOUT_A_SHELL]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    page = browser.new_page(java_script_enabled=False, viewport={"width": 1000, "height": 800})
    for theme in ("light", "dark"):
        root = f"<html class='{theme}'><body class='{theme}'>{done.stdout}</body></html>"
        page.set_content(root, wait_until="domcontentloaded")
        card = page.locator(".fuselab-card")
        expect(card.get_by_text("#pragma omp").first).to_be_visible()
        expect(card).to_contain_text("line")
        page.screenshot(path=SCREENSHOTS / f"frontend-html-{theme}.png")
    page.close()
