"""The panel by keyboard alone, and as a screen reader finds it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from lab import MOST, Notebook, Panel, eventually, settled
from page_timing import CONTENT
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.timeout(MOST)]

OpenNotebook = Callable[..., Notebook]

FAKE = [
    "from support.panel_fake import FakeCell\n"
    "from fuselab.panel import workbench\n"
    "cell = FakeCell(0.1)",
    "workbench(cell)",
]
# What has the focus: its role, or tag, and its name as assistive technology has it.
FOCUS = """() => {
    const e = document.activeElement;
    const label = e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent
        || e.title;
    const inside = Boolean(e.closest('.fuselab-panel'));
    return [inside, e.getAttribute('role') || e.tagName.toLowerCase(), label.trim().slice(0, 40)];
}"""


@pytest.fixture
def fake(open_notebook: OpenNotebook) -> tuple[Notebook, Panel]:
    notebook = open_notebook("access.ipynb", FAKE, height=1400)
    notebook.run(0)
    panel = Panel(notebook.run(1))
    expect(panel.editor).to_be_visible()
    # The last to come: what is made while somebody moves through the panel would be passed over.
    expect(panel.root.get_by_role("combobox", name="History")).to_be_visible()
    return notebook, panel


def walk(notebook: Notebook, most: int = 60) -> list[tuple[str, str]]:
    """Press Tab until the focus leaves the panel; return what had it, in order."""
    found = []
    for _ in range(most):
        inside, role, name = notebook.page.evaluate(FOCUS)
        if not inside:
            return found
        found.append((role, name))
        if role == "textarea":
            notebook.page.keyboard.press("Escape")  # Tab indents in the editor
        notebook.page.keyboard.press("Tab")
    raise AssertionError(f"the focus never leaves the panel: {found}")


def test_by_keyboard_alone(fake: tuple[Notebook, Panel]) -> None:
    notebook, panel = fake
    keyboard = notebook.page.keyboard
    panel.tab("Kernels").focus()
    order = walk(notebook)
    assert all(name for _, name in order), order
    names = [name for _, name in order]
    wanted = ["Kernels", "Kernel", "Source of kernel gelu_norm", "GRAIN", "UNROLL", "Check", "Keep"]
    places = [next((n for n, name in enumerate(names) if name == each), -1) for each in wanted]
    assert -1 not in places, order
    assert places == sorted(places), order

    # Another tab, by its arrow, and back.
    panel.tab("Kernels").focus()
    for title in ("Timings", "Tuning"):
        keyboard.press("ArrowRight")
        keyboard.press("Enter")
        expect(panel.tab(title)).to_have_attribute("aria-selected", "true")
        expect(panel.tab(title)).to_be_focused()
    keyboard.press("Home")
    keyboard.press("Enter")
    expect(panel.editor).to_be_visible()

    # An edit, its check, a slider, all without a pointer.
    panel.editor.focus()
    keyboard.press("Control+End")
    keyboard.type("// typed\n")
    keyboard.press("Control+Enter")
    panel.says(re.compile("Passed – "))
    slider = panel.root.get_by_role("slider", name="GRAIN")
    slider.focus()
    expect(slider).to_have_attribute("aria-valuetext", "4")
    keyboard.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", "8")
    expect(panel.editor).to_have_value(re.compile("GRAIN = 8;"))
    expect(panel.root.get_by_role("status").first).to_contain_text("Passed")
    panel.button("Revert").focus()
    keyboard.press("Space")
    panel.says(re.compile("back to the generated text"))


def violations(panel: Panel) -> list[str]:
    """Return what axe-core finds wrong with the panel."""
    api: Any = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = api.Axe().run(panel.root.page, context=".fuselab-panel").response["violations"]
    return [
        f"{each['id']}: {node['html'][:120]} – {(node['any'] or node['all'] or node['none'])[0]}"
        for each in found
        for node in each["nodes"]
    ]


@pytest.mark.slow
def test_axe_finds_nothing_in_any_tab(fake: tuple[Notebook, Panel]) -> None:
    notebook, panel = fake
    panel.button("Check").click()
    panel.says(re.compile("Passed – "))
    panel.button("Tune").click()
    panel.says(re.compile("all tried"))
    for theme in ("light", "dark"):
        notebook.theme(theme)
        for title in CONTENT:
            panel.tab(title).click()
            settled(notebook.page)
            eventually(notebook.page, lambda: violations(panel))


def test_two_windows_of_one_panel(fake: tuple[Notebook, Panel], open_notebook: Any) -> None:
    """What is typed in one is shown in the other, which can go on from there."""
    notebook, panel = fake
    notebook.save()  # the other window reads the file; its widgets come from the kernel
    page = notebook.page.context.new_page()
    page.goto(notebook.page.url.partition("?")[0] + f"?token={notebook.lab.token}")
    other = Panel(page.locator(".jp-Notebook .jp-Cell").nth(1))
    expect(other.editor).to_be_visible()
    panel.type_at_end_of("#include <cstdint>", " // first window")
    expect(other.editor).to_have_value(re.compile("first window"))
    other.type_at_end_of("// first window", ", then the second")
    expect(panel.editor).to_have_value(re.compile("first window, then the second"))
    panel.button("Check").click()
    panel.says(re.compile("Passed – "))
    expect(panel.editor).to_have_value(re.compile("first window, then the second"))
    expect(other.editor).to_have_value(re.compile("first window, then the second"))
    page.close()
