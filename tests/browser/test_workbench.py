"""The panel in JupyterLab, driven as a person would; screenshots are under build/screenshots."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from lab import MOST, OUTPUT, Lab, Notebook, Panel, fits
from playwright.sync_api import expect

from fuselab.panel import instead

pytestmark = [pytest.mark.browser, pytest.mark.timeout(MOST)]

OpenNotebook = Callable[..., Notebook]

SIZE = "e => getComputedStyle(e).fontSize"
# What stands in a panel's place, and how large.
AFTER = """e => {
    const { content, fontSize } = getComputedStyle(e, "::after");
    return [content.replace(/^"|"$/g, ""), fontSize];
}"""

# A cell whose compiler is a script: quick, and the same every time.
FAKE = [
    "from support.panel_fake import FakeCell\n"
    "from fuselab.panel import workbench\n"
    "cell = FakeCell(0.2)",
    "workbench(cell)",
    "print('calls', cell.host.calls, sorted(cell.host.threads))",
]


# The real thing.
REAL = [
    "%load_ext fuselab\n"
    "import torch, torch.nn.functional as F\n"
    "x, weight, bias = torch.randn(1024, 768), torch.randn(768), torch.randn(768)",
    "%%fuse --panel\ny = F.gelu(x)\nz = F.layer_norm(y, (768,), weight, bias)\n"
    "grad = (y * z).sum(0)",
]


def open_fake(open_notebook: OpenNotebook, name: str, **size: int) -> tuple[Notebook, Panel]:
    notebook = open_notebook(name, FAKE, **size)
    notebook.run(0)
    panel = Panel(notebook.run(1))
    expect(panel.editor).to_be_visible()
    return notebook, panel


def test_edit_check_keep_tune(open_notebook: OpenNotebook) -> None:
    notebook, panel = open_fake(open_notebook, "edit.ipynb")
    panel.says("2 kernels")
    notebook.shoot("panel-first")

    # A right edit: typed, checked, kept.
    panel.type_at_end_of("float mean = 0.0f", "  // a person typed this")
    panel.button("Check").click()
    panel.says(re.compile("Passed – "))
    panel.says(re.compile("against float64"))
    notebook.shoot("panel-passed", panel.root)
    panel.button("Keep").click()
    panel.says(re.compile(r"1 edited"))

    # One that does not compile, by keyboard; then one that is wrong.
    panel.type_at_end_of("const float scale", "\nstatic_assert(false")
    notebook.page.keyboard.press("Control+Enter")
    panel.says(re.compile("does not compile"))
    expect(panel.fault).to_contain_text("static_assert")
    notebook.shoot("panel-compile", panel.root)
    panel.button("Revert").click()
    panel.says(re.compile("back to the edited text"))
    panel.button("Revert").click()
    panel.says(re.compile("back to the generated text"))
    expect(panel.editor).not_to_have_value(re.compile("static_assert"))
    panel.type_at_end_of("return 0;", " // WRONG")
    notebook.page.keyboard.press("Control+Shift+Enter")
    panel.says(re.compile("wrong result"))
    expect(panel.root).not_to_contain_text("1 edited")
    notebook.shoot("panel-wrong", panel.root)

    # Undo brings the text back as it was, and a slider writes into it.
    while "WRONG" in panel.editor.input_value():
        notebook.page.keyboard.press("Control+z")
    handle = panel.root.get_by_role("slider").first
    handle.focus()
    expect(handle).to_have_attribute("aria-label", "GRAIN")
    notebook.page.keyboard.press("ArrowRight")
    expect(panel.editor).to_have_value(re.compile("GRAIN = 8;"))
    panel.says(re.compile("Passed – "))

    # The other kernel.
    panel.root.get_by_role("combobox", name="Kernel").select_option(index=1)
    expect(panel.editor).to_have_value(re.compile("@triton.jit"))
    notebook.shoot("panel-triton", panel.root)
    panel.root.get_by_role("combobox", name="Kernel").select_option(index=0)

    # Tune; the figure comes while the search runs.
    panel.button("Tune").click()
    expect(panel.tab("Tuning")).to_have_attribute("aria-selected", "true")
    expect(panel.plot).to_be_visible()
    panel.says(re.compile("30 of 30, in use .* all tried"))
    fits(panel.root)
    notebook.shoot("panel-tuned", panel.root)
    panel.tab("Timings").click()
    expect(panel.plot).to_be_visible()
    fits(panel.root)
    notebook.shoot("panel-timings", panel.root)

    # In a narrow window nothing is cut off either.
    notebook.page.set_viewport_size({"width": 720, "height": 1000})
    for tab in ("Kernels", "Tuning", "Timings"):
        panel.tab(tab).click()
        fits(panel.root)
        notebook.shoot(f"panel-narrow-{tab.lower()}", panel.root)


def test_keyboard_belongs_to_the_editor(open_notebook: OpenNotebook) -> None:
    notebook, panel = open_fake(open_notebook, "keys.ipynb")
    keyboard = notebook.page.keyboard
    # In the notebook's command mode these would delete, cut and insert cells.
    panel.type_at_end_of("#include <cstdint>", "\nddxxab")
    keyboard.press("Shift+Enter")
    keyboard.press("Tab")
    keyboard.type("z")
    expect(panel.editor).to_have_value(re.compile(r"\nddxxab\n    z\n"))
    expect(notebook.page.locator(".jp-Notebook .jp-Cell")).to_have_count(len(FAKE))
    # Saving is the notebook's, here too.
    saved = notebook.save()
    # Escape leaves the editor; Tab then moves on rather than indent.
    keyboard.press("Escape")
    expect(panel.editor).not_to_be_focused()
    widgets = saved.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    texts = [m["state"]["content"]["text"] for m in widgets.values() if "content" in m["state"]]
    assert len(texts) == 1, "one editor a panel"
    assert "ddxxab" in texts[0], "what was typed is saved with the notebook"
    size = (notebook.lab.folder / "keys.ipynb").stat().st_size
    assert size < 100_000, size


def test_restoring_runs_nothing(open_notebook: OpenNotebook) -> None:
    notebook, panel = open_fake(open_notebook, "restore.ipynb")
    panel.type_at_end_of("#include <cstdint>", " // typed before")
    # Who leaves the editor sends what was typed: the kernel has it when the next cell has run.
    expect(notebook.run(2)).to_contain_text("calls [] []")
    notebook.save()
    # The page comes back while the kernel lives.
    notebook.open("restore.ipynb")
    panel = Panel(notebook.page.locator(".jp-Notebook .jp-Cell").nth(1))
    expect(panel.editor).to_have_value(re.compile("typed before"))
    output = notebook.run(2)
    expect(output).to_contain_text("calls [] []")
    panel.button("Check").click()
    panel.says(re.compile("Passed – "))
    output = notebook.run(2)
    expect(output).to_contain_text("calls ['check'] ['fuselab-cell_3']")
    # The kernel is another one: the panel is still there to read, and starts nothing.
    notebook.save()
    notebook.restart_kernel()
    place = notebook.page.locator(".jp-Notebook .jp-Cell").nth(1).locator(OUTPUT)
    panel = notebook.reopen(place)
    expect(panel.editor).to_have_value(re.compile("typed before"))
    panel.says(re.compile("Passed – "))
    expect(notebook.page.locator(".jp-Notebook")).not_to_contain_text("NameError")


def test_reopened_without_its_widgets(open_notebook: OpenNotebook, lab: Lab) -> None:
    # As JupyterLab saves a notebook unless it is told otherwise: without the state of widgets.
    with lab.without_widget_state():
        notebook, _ = open_fake(open_notebook, "bare.ipynb")
        assert "widgets" not in notebook.save().metadata
    notebook.restart_kernel()
    notebook.open("bare.ipynb")
    place = notebook.page.locator(".jp-Notebook .jp-Cell").nth(1).locator(OUTPUT)
    expect(place).to_contain_text("Error displaying widget")
    assert (place.evaluate(SIZE), *place.evaluate(AFTER)) == ("0px", instead.SAYS, "13px")
    notebook.shoot("panel-reopened-bare")
    # One for which ipywidgets waits in vain says so in time, not at once.
    place.evaluate(
        "e => { e.textContent = 'Loading widget...'; e.classList.remove('jupyter-widgets'); }"
    )
    assert place.evaluate(AFTER)[1] == "0px"
    assert place.evaluate(SIZE) != "0px"
    place.evaluate("e => e.getAnimations({subtree: true}).forEach(each => each.finish())")
    assert (place.evaluate(SIZE), *place.evaluate(AFTER)) == ("0px", instead.SAYS, "13px")
    # With a view in it, whatever that is, it is left alone.
    place.evaluate("e => e.append(document.createElement('b'))")
    assert place.evaluate(AFTER)[0] == "none"
    assert place.evaluate(SIZE) != "0px"


def test_fuse_panel(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook("fuse.ipynb", REAL, height=1500)
    notebook.run(0)
    panel = Panel(notebook.run(1))
    expect(panel.editor).to_be_visible()
    panel.says(re.compile("[1-9] kernel"))
    # An edit that is right, one that is wrong, one that does not compile.
    panel.type_at_end_of("return 0;", "  // a person typed this")
    panel.button("Check").click()
    panel.says(re.compile("Passed – "))
    notebook.shoot("fuse-passed", panel.root)  # the picture in the README
    panel.type_at_end_of("\n{", "\nreturn 0;", after='extern "C"')
    panel.button("Keep").click()
    panel.says(re.compile("Refused: wrong result"))
    panel.button("Revert").click()
    panel.says(re.compile("back to the generated text"))
    panel.type_at_end_of("\n{", "\nint broken = ;", after='extern "C"')
    notebook.page.keyboard.press("Control+Enter")
    panel.says(re.compile("Refused.* line"))
    expect(panel.fault).to_contain_text("broken")
    panel.button("Revert").click()
    panel.says(re.compile("back to the generated text"))
