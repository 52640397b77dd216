"""Every state of a result that needs no live page, in both themes and two widths, without Jupyter.

``python tests/browser/gallery.py`` (a part of ``make pictures``) leaves them under
``build/screenshots/gallery``, to be looked at: real cells, and cells of a scripted compiler.
The figures of the latter never change; ``--accept`` writes what they look like, in a few numbers
each, into ``gallery.json``, which ``test_gallery.py`` compares where the fonts are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before this folder, which has a conftest of its own.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn.functional as F
from lab import CHROMIUM_ARGS, SCREENSHOTS
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from fusec.cache import CacheStore
from fuselab.display.pages import subjects
from fuselab.session.cell_options import CellOptions, Frontend
from fuselab.session.session import Session
from support.cell_fake import FakeCompiler
from support.chromium import find_chromium

FOLDER = SCREENSHOTS / "gallery"
KNOWN = Path(__file__).with_name("gallery.json")
WIDTHS = {"wide": 1160, "narrow": 720}
THEMES = {"light": "#ffffff", "dark": "#111111"}
SIDE = 24  # of what is kept of a picture, in squares
# JupyterLab's own names for the themes, which a result's page follows.
BODY = "<body data-jp-theme-light='{light}' style='margin:12px;background:{color}'>{page}</body>"
FONTS = (
    "<p style='font:16px sans-serif'>Fuselab 0123 gelu</p><p style='font:13px monospace'>x[i]</p>"
)

Pages = dict[str, str]


def html_of(thing: Any) -> str:
    """Return what a notebook shows of a thing."""
    bundle = thing._repr_mimebundle_()
    return str((bundle[0] if isinstance(bundle, tuple) else bundle)["text/html"])


def scripted_session() -> tuple[Callable[[str, str], Any], Any, Session]:
    """Return a function that makes a cell whose figures never change, one of them, the session."""
    torch._dynamo.reset()
    # Edits of an earlier run are none of these states.
    store = CacheStore(Path(tempfile.mkdtemp(prefix="fuselab-gallery-")))
    session = Session({"F": F, "x": torch.ones(4)}, compiler=FakeCompiler(), store=store)

    def made(name: str, text: str) -> Any:
        cell, program = session.prepare(text, CellOptions(name=name), Frontend())
        session.run(cell, program)
        cell.update()
        return cell

    cell = made("gelu_norm", "y = F.gelu(x)\nz = F.layer_norm(y, (4,))")
    return made, cell, session


def scripted() -> Pages:
    """Return states whose figures never change."""
    made, cell, session = scripted_session()
    pages = {"passed": html_of(cell)}
    kernel = next(iter(cell.kernels.values()))
    text = kernel.source
    pages["edit-passed"] = html_of(session.edit(kernel.name, text.replace("T(0.5)", "0.5f")))
    pages["edited"] = html_of(cell)
    pages["edit-refused"] = html_of(session.edit(kernel.name, text + "// WRONG"))
    broken = text.replace("return 0;", "static_assert(false); return 0;")
    pages["edit-broken"] = html_of(session.edit(kernel.name, broken))
    pages["tuned"] = html_of(session.tune(kernel.name, 0.5))
    pages["broken-off"] = html_of(made("broken_off", "y = F.gelu(x)\nprint(y)\nz = y * 2"))
    return pages


def real() -> Pages:
    """Return states of cells that run; their times are this machine's."""
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    space = {"F": F, "torch": torch, "x": torch.randn(256, 512), "w": torch.randn(512)}
    space |= {"model": model, "given": torch.randn(128, 64), "h": torch.randn(64, 64).half()}
    space |= {"target": torch.randint(8, (128,)), "step": torch.optim.SGD(model.parameters(), 0.1)}
    session = Session(space)

    def made(name: str, text: str, **options: Any) -> Any:
        cell, program = session.prepare(text, CellOptions(name=name, **options), Frontend())
        session.run(cell, program)
        cell.update(seconds=0.05)
        return cell

    norm = made("norm", "y = F.gelu(x)\nz = F.layer_norm(y, (512,), w)\np = z.softmax(-1)")
    training = "step.zero_grad()\nloss = F.cross_entropy(model(given), target)\n"
    cells = {
        "norm": norm,
        "training": made("training", training + "loss.backward()\nstep.step()"),
        "half": made("half", "a = (h @ h).relu()\nb = a.sum(0)"),
        "triton": made("tri", "t = F.gelu(x[:64]) * w", target="triton"),
        "loops": made("loops", "s = x\nfor k in range(3):\n    s = torch.sin(s) * (k + 1)"),
    }
    pages = {name: html_of(cell) for name, cell in cells.items()}
    views: dict[str, Callable[[Any], Any]] = {
        "fusion": subjects.fusion_of,
        "stages": subjects.stages_of,
        "guards": subjects.guards_of,
        "numerics": subjects.numerics_of,
        "limits": subjects.limits_of,
        "counters": subjects.counters_of,
        "timings": subjects.timings_of,
    }
    return pages | {f"page-{name}": html_of(view(norm)) for name, view in views.items()}


def shots(browser: Browser, pages: Pages) -> Iterator[tuple[str, Page, bytes]]:
    """Show each page in each theme and width; yield its name, the page and its picture."""
    for width, pixels in WIDTHS.items():
        for theme, color in THEMES.items():
            page = browser.new_page(
                viewport={"width": pixels, "height": 900},
                color_scheme=theme,  # type: ignore[arg-type]
            )
            for name, html in pages.items():
                light = str(theme == "light").lower()
                text = BODY.format(light=light, color=color, page=html)
                page.set_content(text, wait_until="domcontentloaded")
                yield f"{name}-{theme}-{width}", page, page.screenshot(full_page=True)
            page.close()


def fonts(browser: Browser) -> str:
    """Return what tells these fonts from others."""
    page = browser.new_page(viewport={"width": 300, "height": 120})
    page.set_content(FONTS)
    shown = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L"))
    page.close()
    return hashlib.sha256(shown.tobytes()).hexdigest()[:16]


def look(picture: bytes) -> tuple[tuple[int, int], np.ndarray[Any, Any]]:
    """Return a picture's size, and the brightness of its squares."""
    image = Image.open(io.BytesIO(picture))
    small = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    return image.size, np.asarray(small, dtype=np.uint8)


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--accept", action="store_true", help="these are as they should look")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_ARGS)
        known: dict[str, Any] = {}
        for name, _, picture in shots(browser, scripted()):
            FOLDER.joinpath(f"{name}.png").write_bytes(picture)
            size, squares = look(picture)
            known[name] = [*size, squares.tobytes().hex()]
        if options.accept:
            found = {"fonts": fonts(browser), "pictures": known}
            KNOWN.write_text(json.dumps(found, indent=0) + "\n")
        else:
            for name, _, picture in shots(browser, real()):
                FOLDER.joinpath(f"real-{name}.png").write_bytes(picture)
        browser.close()


if __name__ == "__main__":
    main()
