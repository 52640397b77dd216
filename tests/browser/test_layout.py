"""What is in view in the panel on a low and on a high screen, and what is folded in its editor."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from lab import MOST, Notebook, Panel, eventually
from PIL import Image
from playwright.sync_api import Locator, expect

pytestmark = [pytest.mark.browser, pytest.mark.timeout(MOST)]

SIZES = {"laptop": (1200, 700), "screen": (1400, 900)}

CELLS = [
    "%load_ext fuselab\nimport torch, torch.nn.functional as F\n"
    "x, w = torch.randn(128, 1024), torch.randn(1024)",
    "%%fuse --name chain --panel -q\ny = torch.tanh(x) * w\nz = y * torch.sigmoid(y)\n"
    "p = z.softmax(-1)",
]


def bottom(of: Locator) -> float:
    box = of.bounding_box()
    assert box is not None
    return float(box["y"] + box["height"])


def out_of_view(panel: Panel, edge: float) -> list[str]:
    """Return the buttons, and the verdict, that end below the edge of what can be seen."""
    names = ("Check", "Keep", "Revert", "Tune", "Export", "Copy")
    below = [name for name in names if bottom(panel.button(name)) >= edge]
    return below + ["verdict"] * (bottom(panel.root.locator(".fuselab-verdict")) > edge)


def first_line(panel: Panel) -> str:
    """Say what is wrong with the first line that the editor shows: the kernel's, and its number."""
    page = panel.root.page
    top = panel.root.locator(".prism-code-editor").bounding_box()
    line = panel.root.locator(".pce-line", has_text='extern "C" int chain(').bounding_box()
    assert top is not None
    assert line is not None
    if not 0 <= line["y"] - top["y"] < 20:
        return f"it stands at {line['y']}, the editor at {top['y']}"
    clip = {"x": line["x"], "y": line["y"] + 2, "width": 40, "height": 14}
    number = Image.open(io.BytesIO(page.screenshot(clip=clip)))
    painted = number.convert("RGB").getcolors()
    return "" if painted is None or len(painted) > 3 else "its number is painted over"


def test_layout_and_folds(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook("layout.ipynb", CELLS, width=1200, height=700)
    page = notebook.page
    notebook.run(0)
    panel = Panel(notebook.run(1))
    expect(panel.editor).to_be_visible()
    folds = panel.root.locator(".fuselab-fold")
    editor = panel.root.locator(".prism-code-editor")
    for name, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        panel.button("Check").click()
        panel.says(re.compile("Passed – "))
        panel.root.evaluate("e => e.scrollIntoView({block: 'start'})")
        eventually(page, lambda height=height: out_of_view(panel, height - 26))  # the status bar
        # The kernel itself is what stands there; the rest is a line that opens.
        expect(folds.first).to_have_text(re.compile(r"▸ \d+ lines before it: what it reads"))
        expect(folds.last).to_have_text(re.compile(r"▸ \d+ lines after it: what it calls"))
        eventually(page, lambda: first_line(panel))
        notebook.shoot(f"layout-panel-{name}")

    # Folded, nothing of it can be scrolled to; open, all of it can; the text is whole all the time.
    text = panel.editor.input_value()
    assert "#include" in text
    whole = text.rstrip("\n").count("\n") + 1
    rows = "e => Math.round((e.scrollHeight - 16) / e.querySelector('.pce-line').offsetHeight)"
    eventually(page, lambda: editor.evaluate(rows) >= whole - 10)
    folded = editor.evaluate(rows)
    folds.last.click()
    expect(folds.last).to_have_attribute("aria-expanded", "true")
    folds.first.click()
    eventually(page, lambda: abs(editor.evaluate(rows) - whole) > 4)
    expect(panel.editor).to_have_value(text)
    notebook.shoot("layout-unfolded", panel.root)
    folds.first.click()
    folds.last.click()
    eventually(page, lambda: editor.evaluate(rows) != folded)

    # Who moves there with the keys sees where he is; an edit there is part of the text.
    panel.editor.focus()
    page.keyboard.press("Control+Home")
    expect(folds.first).to_have_attribute("aria-expanded", "true")
    expect(folds.last).to_have_attribute("aria-expanded", "false")
    page.keyboard.type("// mine\n")
    page.keyboard.press("Control+End")
    expect(folds.last).to_have_attribute("aria-expanded", "true")
    expect(panel.editor).to_have_value("// mine\n" + text)
    panel.button("Check").click()
    panel.says(re.compile("Passed – "))
    panel.button("Revert").click()
    panel.says("chain: back to the generated text")
    expect(panel.editor).to_have_value(text)

    # A mistake in what is folded opens it and is marked.
    folds.last.click()
    expect(folds.last).to_have_attribute("aria-expanded", "false")
    panel.editor.evaluate(
        """area => {
            area.focus();
            const at = area.value.lastIndexOf("return");
            area.setSelectionRange(at, at);
        }"""
    )
    page.keyboard.type("bad ")
    folds.last.click()
    expect(folds.last).to_have_attribute("aria-expanded", "false")
    panel.button("Check").click()
    panel.says(re.compile("Refused"))
    expect(folds.last).to_have_attribute("aria-expanded", "true")
    expect(panel.fault).to_be_visible()
    assert not notebook.errors
