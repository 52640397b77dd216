"""Screenshots of every tab over three real cells, in both themes, and those of the documentation.

``python tests/browser/pictures.py`` leaves them under ``build/screenshots``, to be looked at;
``--docs`` also replaces ``panel.png`` and ``fusion.png`` in ``docs/images``; with
``--only norm --tabs Kernels Fusion`` it takes no others, for which a machine is quiet long enough.
What axe-core says of each tab is printed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path

# Before this folder, which has a conftest of its own.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from axe_playwright_python.sync_playwright import Axe
from lab import (
    CHROMIUM_ARGS,
    PATIENCE,
    ROOT,
    SCREENSHOTS,
    SECOND,
    Notebook,
    Panel,
    overflowing,
    start_lab,
)
from page_timing import CONTENT, tab_times
from playwright.sync_api import expect, sync_playwright

from support.chromium import find_chromium

SETUP = "%load_ext fuselab\nimport torch, torch.nn.functional as F\nfrom torch import nn\n"
CELLS = {
    "norm": (
        "x, weight, bias = torch.randn(1024, 768), torch.randn(768), torch.randn(768)",
        "y = F.gelu(x)\nz = F.layer_norm(y, (768,), weight, bias)\ngrad = (y * z).sum(0)",
    ),
    "attention": (
        "x = torch.randn(2, 128, 256)\n"
        "norm, project, out = nn.LayerNorm(256), nn.Linear(256, 768), nn.Linear(256, 256)\n"
        "mask = torch.full((128, 128), -torch.inf).triu(1)",
        "with torch.no_grad():\n"
        "    q, k, v = project(norm(x)).view(2, 128, 3, 4, 64).permute(2, 0, 3, 1, 4)\n"
        "    weights = (q @ k.transpose(-1, -2) * 0.125 + mask).softmax(-1)\n"
        "    h = x + out((weights @ v).transpose(1, 2).reshape(2, 128, 256))",
    ),
    "training": (
        "x, target = torch.randn(256, 128), torch.randint(10, (256,))\n"
        "model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.LayerNorm(256), "
        "nn.Linear(256, 10))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        "optimizer.zero_grad()\nloss = F.cross_entropy(model(x), target)\nloss.backward()\n"
        "optimizer.step()",
    ),
}


def use(panel: Panel, title: str) -> None:
    """Do in a tab what fills it."""
    page = panel.root.page
    if title == "Kernels":
        panel.type_at_end_of("return 0;", "  // an edit")
        panel.button("Check").click()
        panel.says(re.compile("Passed – |Refused"))
    elif title == "Timings":
        panel.button("Against the machine").click()
        panel.says("Of a copy")
        expect(panel.button("Sweep")).to_be_visible()
        if panel.button("Sweep").is_enabled():
            panel.button("Sweep").click()
            page.wait_for_timeout(1 * SECOND)  # it may end at once: not every size can be another
            expect(panel.button("Sweep")).to_be_enabled()
    elif title == "Tuning" and panel.button("Tune").is_enabled():
        panel.root.get_by_role("combobox", name="Budget").select_option(label="5 s")
        panel.button("Tune").click()
        expect(panel.button("Stop")).to_be_visible()
        expect(panel.button("Tune")).to_be_enabled()
    elif title == "Fusion":
        picks = panel.root.locator("[data-pick]")
        for n in range(min(picks.count(), 2)):
            picks.nth(n).click()
            page.wait_for_timeout(500)
    elif title == "Numerics":
        panel.button("Trace the numbers").click()
        panel.says(re.compile("in the order written|Line by line"))
    page.wait_for_timeout(500)


def access(panel: Panel, what: str) -> list[str]:
    """Return what axe-core finds wrong with the panel."""
    found = Axe().run(panel.root.page, context=".fuselab-panel").response["violations"]
    lines = []
    for each in found:
        for node in each["nodes"]:
            why = (node["any"] or node["all"] or node["none"])[0]["message"]
            lines.append(f"{what}: {each['id']}: {node['html'][:160]} – {why[:160]}")
    return lines


def show_tabs(notebook: Notebook, panel: Panel, name: str, titles: list[str]) -> None:
    """Use the tabs, take their pictures, and say what is wrong with them."""
    for title in sorted(titles, key=lambda each: each != "Kernels"):
        tab_times(panel, title)
        use(panel, title)
        for line in overflowing(panel.root):
            print(f"{name}, {title}: cut off: {line}")

        def check(theme: str, title: str = title) -> None:
            for line in access(panel, f"{name}, {title}, {theme}"):
                print(line)

        picture = f"cells-{name}-{title.partition(' ')[0].lower()}"
        notebook.shoot(picture, panel.root, check)


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--tabs", nargs="+", choices=CONTENT, default=list(CONTENT))
    parser.add_argument("--docs", action="store_true", help="replace those in docs/images")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_ARGS)
        expect.set_options(timeout=PATIENCE * SECOND)
        with start_lab(Path(folder, "lab")) as lab:
            for name in options.only:
                given, text = CELLS[name]
                lab.write(f"{name}.ipynb", [SETUP + given, f"%%fuse --name {name} --panel\n{text}"])
                notebook = Notebook(browser, lab, height=2700)
                notebook.open(f"{name}.ipynb")
                notebook.run(0)
                output = notebook.run(1)
                panel = Panel(output)
                expect(panel.editor).to_be_visible()
                notebook.page.wait_for_timeout(2 * SECOND)
                notebook.shoot(f"cells-{name}-result", output.first)
                show_tabs(notebook, panel, name, options.tabs)
                notebook.close()
        browser.close()
    if options.docs:
        for tab, name in (("kernels", "panel"), ("fusion", "fusion")):
            made = SCREENSHOTS / f"cells-norm-{tab}-light.png"
            shutil.copyfile(made, ROOT / "docs" / "images" / f"{name}.png")


if __name__ == "__main__":
    main()
