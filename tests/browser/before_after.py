"""The pictures of docs/workbench.md: at the left what was before, at the right the same cells now.

``python tests/browser/before_after.py`` keeps the left halves and takes the right ones anew, in a
JupyterLab of 1200 x 700 pixels; those of the rule for noise are made up.
"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

# Before this folder, which has a conftest of its own.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gallery import BODY, THEMES, html_of, scripted_session
from lab import CHROMIUM_ARGS, OUTPUT, PATIENCE, SCREENSHOTS, SECOND, Notebook, Panel, start_lab
from PIL import Image
from playwright.sync_api import Browser, expect, sync_playwright

from fusec.report import Timing
from fusec.verify.comparison.words import praise
from support.chromium import find_chromium
from support.paths import ROOT

IMAGES = ROOT / "docs" / "images"
CELLS = [
    "%load_ext fuselab\nimport torch, torch.nn.functional as F\nfrom torch import nn\n"
    "x = torch.randn(1024, 1024); w = torch.randn(1024)",
    "%%fuse --name gelu --panel -q\n"
    "y = F.gelu(x)\nz = y * w\nq = (z / z.sum(-1, keepdim=True)).softmax(-1)",
    "weight, bias, a = w, w, x\nx = torch.randn(2048, 1024)",
    "%%fuse --name chain --out y\nt = torch.tanh(x) * weight + bias\ny = t * torch.sigmoid(t)",
    "x = a",
    "%%fuse --name tri --target triton\ny = F.gelu(x) * w",
    "net = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10))\n"
    "inp, lab, opt = torch.randn(64, 256), torch.randint(10, (64,)), "
    "torch.optim.SGD(net.parameters(), 0.1)",
    "%%fuse --name step\nloss = F.cross_entropy(net(inp), lab)\n"
    "loss.backward()\nopt.step()\nopt.zero_grad()",
]
SHOWN = {"card": (3, "dark"), "triton": (5, "light"), "step": (7, "light")}
PLACE = (39, 91, 1161, 669)  # of the notebook on the page
UPPER = 352  # pixels of a panel without its kernel; below it, one of which nothing was saved


def beside(name: str, now: Image.Image) -> None:
    """Put a picture in place of the right half of a document's picture."""
    path = IMAGES / f"stranger-{name}.png"
    both = Image.open(path).convert("RGB")
    half = (both.width - 12) // 2
    both.paste("#808080", (half, 0, both.width, both.height))
    both.paste(now.convert("RGB").crop((0, 0, half, both.height)), (half + 12, 0))
    both.quantize(200, dither=Image.Dither.NONE).save(path, optimize=True)


def _time(*milliseconds: float) -> Timing:
    low, median, high = (1e-3 * each for each in milliseconds)
    return Timing(median, low, high, 30, "made up")


def noise(browser: Browser) -> None:
    """Take the picture of an edit that is a comment, and of a search, in the dark theme."""
    _, cell, session = scripted_session()
    kernel = next(iter(cell.kernels.values()))
    edit = session.edit(kernel.name, kernel.source + "// a comment\n")
    own, generated = _time(0.96, 1.07, 1.30), _time(0.93, 1.00, 1.21)
    verdict = replace(
        edit.verdict,
        reason=praise(edit.verdict.outputs, own, generated),
        timing=own,
        generated=generated,
        graph=_time(0.98, 1.09, 1.31),
        eager=_time(1.01, 1.12, 1.35),
    )
    pages = html_of(replace(edit, verdict=verdict)) + html_of(session.tune(kernel.name, 0.5))
    page = browser.new_page(viewport={"width": 720, "height": 700}, color_scheme="dark")
    page.set_content(BODY.format(light="false", color=THEMES["dark"], page=pages))
    shot = SCREENSHOTS / "noise.png"
    page.screenshot(path=shot)
    page.close()
    beside("noise", Image.open(shot))


def main() -> None:
    """Take the pictures."""
    shot = SCREENSHOTS / "now.png"
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_ARGS)
        expect.set_options(timeout=PATIENCE * SECOND)
        noise(browser)
        with start_lab(Path(folder, "lab")) as lab:
            lab.write("now.ipynb", CELLS)
            notebook = Notebook(browser, lab, width=1200, height=700)
            notebook.open("now.ipynb")
            page = notebook.page
            cells = page.locator(".jp-Notebook .jp-Cell")

            def picture(index: int, theme: str) -> Image.Image:
                notebook.theme(theme)
                cells.nth(index).evaluate("e => e.scrollIntoView({block: 'start'})")
                page.mouse.move(1, 1)
                page.wait_for_timeout(SECOND)
                page.screenshot(path=shot)
                return Image.open(shot).crop(PLACE)

            def run(count: int) -> None:
                for index in range(count):
                    notebook.run(index)
                    done = cells.nth(index).locator(".jp-InputPrompt")
                    expect(done).to_have_text(re.compile(r"\[\d+\]"))

            run(len(CELLS))
            for name, (index, theme) in SHOWN.items():
                beside(name, picture(index, theme))
            panel = Panel(cells.nth(1).locator(OUTPUT))
            panel.tab("Numerics").click()
            panel.says("Compare again")
            page.wait_for_timeout(SECOND)
            notebook.save()
            notebook.restart_kernel()
            notebook.reopen(cells.nth(1).locator(OUTPUT))
            reopened = picture(0, "light")
            # As JupyterLab saves a notebook unless it is told otherwise: without the panel.
            with lab.without_widget_state():
                notebook.open("now.ipynb")
            run(2)
            expect(Panel(cells.nth(1).locator(OUTPUT)).editor).to_be_visible()
            notebook.save()
            notebook.restart_kernel()
            notebook.open("now.ipynb")
            expect(cells.nth(1).locator(OUTPUT)).to_contain_text("Error displaying widget")
            reopened.paste("#808080", (0, UPPER - 4, reopened.width, UPPER))
            reopened.paste(picture(1, "light"), (0, UPPER))
            beside("reopened", reopened)
            notebook.close()
        browser.close()


if __name__ == "__main__":
    main()
