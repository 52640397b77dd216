"""What is left of a result where nothing is live: reopened, untrusted, converted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from lab import MOST, OUTPUT, PATIENCE, SCREENSHOTS, Notebook, Panel
from playwright.sync_api import expect

pytestmark = [
    pytest.mark.browser,
    pytest.mark.serial,
    pytest.mark.slow,  # three notebooks and a conversion
    pytest.mark.timeout(MOST),
]

OpenNotebook = Callable[..., Notebook]

CELLS = [
    "%load_ext fuselab\n"
    "import torch, torch.nn.functional as F\n"
    "x, weight, bias = torch.randn(64, 768), torch.randn(768), torch.randn(768)",
    "%%fuse --name shown --panel\ny = F.gelu(x)\nz = F.layer_norm(y, (768,), weight, bias)",
    "%%fuse --name alone --panel -q\ny = F.gelu(x)\nz = F.layer_norm(y, (768,), weight, bias)",
]
FACTS = ("1 kernel", "shown (cpp, generated", "checked", "#pragma omp", "// line 3: z = F.layer")


def copied(page: Any) -> str:
    return str(page.evaluate("() => navigator.clipboard.readText()"))


def test_results_without_a_kernel(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook("static.ipynb", CELLS, height=1600)
    notebook.run(0)
    outputs = notebook.run(1)
    expect(Panel(outputs).editor).to_be_visible()
    expect(Panel(notebook.run(2)).editor).to_be_visible()

    # Trusted: the result has a button that copies the whole kernel.
    notebook.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    outputs.first.get_by_role("button", name="Copy").click()
    expect(outputs.first.get_by_role("button", name="Copied")).to_be_visible()
    text = Panel(outputs).editor.input_value()
    assert copied(notebook.page).strip() == text.strip()
    saved = notebook.save()

    # The same file as if it came from somebody else: not signed, and without its widgets.
    saved.metadata.pop("widgets", None)
    for cell in saved.cells:
        cell.source += "\n# another notebook"  # its signature is of another text
    path = notebook.lab.folder / "untrusted.ipynb"
    path.write_text(json.dumps(saved))
    other = Notebook(notebook.page.context.browser, notebook.lab, height=2600)
    other.open("untrusted.ipynb")
    first, second = (
        other.page.locator(".jp-Notebook .jp-Cell").nth(n).locator(OUTPUT) for n in (1, 2)
    )
    for fact in FACTS:
        expect(first.first).to_contain_text(fact)
        if fact != "checked":  # -q asks for no check
            expect(second.first).to_contain_text(fact.replace("shown", "alone"))
    expect(first.first.locator("img")).to_be_visible()
    assert first.first.locator("img").evaluate("i => i.complete && i.naturalWidth > 0")
    expect(other.page.get_by_role("button", name="Copy", exact=True)).to_have_count(0)
    expect(first.nth(1)).to_contain_text("the result is above")
    other.shoot("static-untrusted")
    other.close()

    # Converted to a page: with the button, the kernel and the picture.
    command = [sys.executable, "-m", "nbconvert", "--to", "html", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    page = notebook.page.context.new_page()
    page.set_content(path.with_suffix(".html").read_text(), wait_until="domcontentloaded")
    for fact in FACTS:
        expect(page.locator("body")).to_contain_text(fact)
    expect(page.locator("img[alt^=shown]")).to_be_visible()
    expect(page.get_by_role("button", name="Copy").first).to_be_visible()
    page.set_viewport_size({"width": 1200, "height": 2600})
    page.screenshot(path=SCREENSHOTS / "static-nbconvert.png")
    page.close()
    notebook.strangers.clear()  # nbconvert's own page asks a CDN for MathJax and RequireJS
