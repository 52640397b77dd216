"""What can be done in the tabs, beyond looking: done as a person would, over real cells."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from lab import MOST, Notebook, Panel, fits, settled
from page_timing import open_tab
from playwright.sync_api import expect

pytestmark = [
    pytest.mark.browser,
    pytest.mark.serial,
    pytest.mark.slow,  # they wait for TorchInductor's compiler, and for a search of ten seconds
    pytest.mark.timeout(MOST),
]

OpenNotebook = Callable[..., Notebook]

CELLS = [
    "%load_ext fuselab\n"
    "import torch, torch.nn.functional as F\n"
    "x, weight, bias = torch.randn(512, 768), torch.randn(768), torch.randn(768)\n"
    "matrix = torch.randn(768, 256)",
    "%%fuse --panel -q\ny = F.gelu(x)\nz = F.layer_norm(y, (768,), weight, bias)\n"
    "grad, out = (y * z).sum(0), z @ matrix",
    "print('kernels', list(fuselab.cells['cell_2'].kernels))",
]

# Puts what is on the clipboard into a field of the page, as Ctrl+V does.
PASTE_FIELD = """() => {
    const area = document.createElement('textarea');
    area.id = 'pasted';
    area.style.cssText = 'position:fixed;top:0;left:0;z-index:9999';
    document.body.append(area);
    area.focus();
}"""


def pasted(notebook: Notebook) -> str:
    page = notebook.page
    page.evaluate(PASTE_FIELD)
    page.keyboard.press("Control+v")
    text = str(page.locator("#pasted").input_value())
    page.evaluate("() => document.getElementById('pasted').remove()")
    return text


def test_export_copy_time_and_reschedule(open_notebook: OpenNotebook) -> None:
    cells = [CELLS[0].replace("import torch,", "import fuselab, torch,"), *CELLS[1:]]
    notebook = open_notebook("features.ipynb", cells, height=1500)
    notebook.run(0)
    panel = Panel(notebook.run(1))
    expect(panel.editor).to_be_visible()

    # Kernels: copied where the page has a clipboard, and where it has none.
    notebook.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel.type_at_end_of("#include <stdint.h>", "  // mine")
    panel.button("Copy").click()
    panel.says("Copied")
    assert pasted(notebook) == panel.editor.input_value()
    panel.type_at_end_of("#include <stdint.h>", "  // and this")
    notebook.page.evaluate(
        "() => Object.defineProperty(navigator, 'clipboard', {get: () => undefined})"
    )
    expect(panel.button("Copy")).to_be_visible()
    panel.button("Copy").focus()
    notebook.page.keyboard.press("Enter")
    panel.says("Copied")
    assert "// mine  // and this" in pasted(notebook).replace("// and this  // mine", "")
    panel.button("Revert").click()
    panel.says(re.compile("back to the generated text"))

    # Exported as an operator.
    panel.button("Export as op").click()
    panel.says(re.compile(r"Written to \w+_op\.py: import \w+_op registers the operator"))
    (path,) = notebook.lab.folder.glob("*_op.py")
    assert "torch.library.custom_op" in path.read_text()
    fits(panel.root)
    notebook.shoot("features-kernels", panel.root)

    # An edit that is kept, for a bar of its own.
    panel.type_at_end_of("#include <stdint.h>", "  // mine")
    panel.button("Keep").click()
    panel.says(re.compile("1 edited"))

    # Timings: TorchInductor beside the others; every step alone; the limit.
    open_tab(panel, "Timings")
    panel.button("TorchInductor").click()
    expect(panel.button("Stop")).to_be_visible()
    panel.button("Stop").click()
    panel.says(re.compile("was stopped"))
    expect(panel.button("TorchInductor")).to_be_enabled()
    panel.button("TorchInductor").click()
    panel.says("TorchInductor, whole cell")
    expect(panel.button("Measure again")).to_be_enabled()
    panel.button("Measure again").click()
    # On AMD's processors oneDNN multiplies.
    panel.says(re.compile(r"(aten\.mm|mkldnn\._linear_pointwise), line 4"))
    panel.says(re.compile("each timed alone"))
    panel.says(re.compile("the edit, checked$"))
    panel.button("Against the machine").click()
    panel.says("Of a copy")
    settled(notebook.page)  # drawn anew
    fits(panel.root)
    notebook.shoot("features-timings", panel.root)

    # Fusion: what was tried is put in use, survives the next run, and is taken back.
    open_tab(panel, "Fusion")
    picks = panel.root.locator("[data-pick]")
    picks.nth(0).click()
    picks.nth(1).click()
    panel.button("What if apart").click()
    panel.says("same results")
    expect(panel.button("Use this schedule")).to_be_enabled()
    panel.button("Use this schedule").click()
    panel.says(re.compile("kernels in use, checked against eager"))
    panel.says(re.compile("In use: gelu and layer_norm apart"))
    fits(panel.root)
    notebook.shoot("features-fusion", panel.root)
    notebook.run(1)
    panel = Panel(notebook.page.locator(".jp-Notebook .jp-Cell").nth(1))
    expect(notebook.run(2)).to_contain_text("gelu_kernel")
    open_tab(panel, "Fusion")
    panel.button("Default schedule").click()
    expect(panel.button("Default schedule")).to_be_disabled()
    panel.says(re.compile("in use, checked against eager"))
    expect(notebook.run(2)).not_to_contain_text("gelu_kernel")


# Three tunables, far more configurations than there is time for, and a map of two of them.
TURNED = [
    "%load_ext fuselab\nimport torch\nx = torch.randn(1024, 768)",
    "%%fuse --panel -q\ny = (torch.sigmoid(x) * 2).T.contiguous()",
]


def test_a_search_and_its_points(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook("tuned.ipynb", TURNED, height=1800)
    notebook.run(0)
    panel = Panel(notebook.run(1))
    expect(panel.editor).to_be_visible()
    open_tab(panel, "Tuning")
    panel.root.get_by_role("combobox", name="Budget").select_option(label="10 s")
    panel.button("Tune").click()
    panel.says(re.compile(r"about \d+\ss left"))
    pictures = panel.root.locator(".fuselab-picture").locator("visible=true")
    # A point stays where it is while others come.
    pictures.nth(0).locator(".fuselab-spot").first.click()
    panel.says(re.compile("once the search has ended"))
    panel.says(re.compile("in use .* after"))
    expect(panel.button("Tune")).to_be_enabled()
    for n, what in enumerate(("a point of the search", "a square of the map")):
        spot = pictures.nth(n).locator(".fuselab-spot").last
        expect(spot, what).to_be_visible()
        config = str(spot.get_attribute("aria-label")).partition(":")[0]
        spot.click()
        panel.says(re.compile(f"{config} (is in use|was refused)"))
        expect(panel.button("Tune")).to_be_enabled()
    fits(panel.root)
    notebook.shoot("features-tuning", panel.root)


TRITON = [
    "%load_ext fuselab\nimport torch\nx = torch.randn(64, 256)",
    "%%fuse --target triton --panel -q\ny = torch.sigmoid(x) * 2\nz = y / y.sum(1, keepdim=True)",
]


def test_machine_code_without_a_gpu(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook("triton.ipynb", TRITON, height=1200)
    notebook.run(0)
    panel = Panel(notebook.run(1))
    expect(panel.editor).to_be_visible()
    open_tab(panel, "Stages")
    panel.root.get_by_role("combobox", name="beside").select_option(label="nothing")
    stage = panel.root.get_by_role("combobox", name="Stage")
    for title, fact in (("Triton IR", "tt.func"), ("PTX", ".target sm_90"), ("SASS", "S2R")):
        known = stage.locator("option").all_text_contents()  # their spaces do not break
        (index,) = [
            n for n, text in enumerate(known) if text.endswith(f":\xa0{title}".replace(" ", "\xa0"))
        ]
        stage.select_option(index=index)
        expect(panel.root.locator(".fuselab-code").first).to_contain_text(fact)
    fits(panel.root)
    notebook.shoot("features-sass", panel.root)
