"""The panel in JupyterLab, driven as a person would, in the light and the dark theme."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from lab import SECOND, Lab, Notebook, Panel, overflowing
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.serial]

FAKE = [
    "from panel_fake import FakeCell\nfrom fuselab.panel import workbench\ncell = FakeCell(0.2)",
    "workbench(cell)",
]

OpenNotebook = Callable[..., Notebook]


def test_edit_check_keep_tune(open_notebook: OpenNotebook, lab: Lab) -> None:
    notebook = open_notebook("edit.ipynb", FAKE)
    notebook.run(0)
    panel = Panel(notebook.run(1))
    expect(panel.editor).to_be_visible(timeout=90 * SECOND)
    panel.says("2 kernels")
    notebook.shoot(f"panel-first-{lab.theme}")

    # A right edit: typed, checked, kept.
    panel.type_at_end_of("float mean = 0.0f", "  // a person typed this")
    panel.button("Check").click()
    panel.says(re.compile("Passed – "))
    panel.says(re.compile("against float64"))
    notebook.shoot(f"panel-passed-{lab.theme}")
    panel.button("Keep").click()
    panel.says("2 kernels (1 edited)")

    # One that does not compile, by keyboard.
    panel.type_at_end_of("const float scale", "\nstatic_assert(false")
    notebook.page.keyboard.press("Control+Enter")
    panel.says(re.compile("does not compile"))
    expect(panel.fault).to_contain_text("static_assert")
    notebook.shoot(f"panel-compile-{lab.theme}")

    # Revert, then tune.
    panel.button("Revert").click()
    panel.says(re.compile("back to the generated text"))
    assert "static_assert" not in panel.editor.input_value()
    panel.button("Tune").click()
    expect(panel.tab("Tuning")).to_have_attribute("aria-selected", "true")
    expect(panel.root.locator(".fuselab-plot").locator("visible=true")).to_be_visible()
    notebook.shoot(f"panel-tuning-{lab.theme}")
    panel.says(re.compile("30 of 30, best .* all tried"))
    notebook.shoot(f"panel-tuned-{lab.theme}")
    panel.tab("Timings").click()
    expect(panel.root.locator(".fuselab-plot").locator("visible=true")).to_be_visible()
    notebook.shoot(f"panel-timings-{lab.theme}")
    assert overflowing(panel.root) == []
