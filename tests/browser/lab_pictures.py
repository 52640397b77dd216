"""Pictures of the labs as a student sees them: ``python tests/browser/lab_pictures.py``.

Of each lab, under ``build/screenshots/labs``, to be looked at: as opened, after a wrong answer
to every task, after a right one (in the dark theme, too), and printed, blank too.  ``--only 3 7``
takes some labs, ``--views`` some of these.  What is cut off on a page is said as well, and makes
the exit status 1.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before this folder, which has a conftest of its own.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nbformat
from lab import CHROMIUM_ARGS, KERNEL, PATIENCE, SCREENSHOTS, SECOND, Notebook, start_lab
from playwright.sync_api import Browser, Page, expect, sync_playwright

from fuselab.labs.catalog import find_task, labs
from fuselab.labs.lab import Lab
from fuselab.labs.notebooks import printable, task_of
from support.chromium import find_chromium
from support.lab_answers import EQUIVALENT, LABS, solutions, wrong_answers

VIEWS = ("blank", "opened", "wrong", "right")
FOLDER = SCREENSHOTS / "labs"
WINDOWS = "@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
PAGE = 1500  # pixels of a picture's height
PAPER = 718  # of A4 without its margins
# A student's own mistake rather than one of form, where the answer allows one.
LIKELY = ("the other", "another number", "one too many", "starts late", "half done", "returns")

# What a box cuts off that does not scroll, or makes one scroll sideways within an output.
CUT = """root => [...root.querySelectorAll('*')].filter(e => {
    const over = e.scrollWidth - e.clientWidth, x = getComputedStyle(e).overflowX;
    return e.checkVisibility() && over > 1 && e.clientWidth > 0 && x !== 'visible'
        && (x === 'hidden' || e.closest('.jp-OutputArea-output'))
        && !e.closest('.cm-editor, .jp-Toolbar, .jp-InputPrompt, .jp-OutputPrompt');
}).map(e => (e.className || e.tagName) + ': ' + e.textContent.trim().slice(0, 70))"""
# On paper nothing scrolls: what is wider than the page is lost.
LOST = """root => [...root.querySelectorAll('pre, table, .jp-RenderedHTMLCommon')].filter(e => {
    const box = e.getBoundingClientRect();
    return e.checkVisibility() && (box.right > window.innerWidth + 1
        || (e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1));
}).map(e => e.tagName + ': ' + e.textContent.trim().slice(0, 70))"""


def answered(lab: Lab, answers: dict[str, str]) -> Any:
    """Return the student's notebook with answers to its tasks."""
    notebook = copy.deepcopy(nbformat.read(LABS / f"{lab.stem}.ipynb", as_version=4))
    for cell in notebook.cells:
        found = task_of(cell)
        if found is not None:
            cell.source = f"%%task {found[0]}\n{answers[found[0]].strip()}"
    notebook.metadata["kernelspec"] = {"name": KERNEL, "display_name": KERNEL, "language": "python"}
    return notebook


def wrong(lab: Lab) -> dict[str, str]:
    """Return a likely wrong answer to each task."""
    found = {}
    for name, text in solutions(lab).items():
        given = {
            what: answer
            for what, answer in wrong_answers(find_task(name), text)
            if (name, re.sub(r" \(\d+\)$", "", what)) not in EQUIVALENT
        }
        # In the notebook's own cells a wrong loop might have no end.
        kinds = LIKELY[-2:] if "while" in text else LIKELY
        likely = (what for begun in kinds for what in given if what.startswith(begun))
        found[name] = given[next(likely)]
    return found


def notebooks(lab: Lab) -> Iterator[tuple[str, Any]]:
    """Yield what is opened in JupyterLab, by view."""
    starts = {task.name: task.start for task in lab.tasks}
    yield "opened", answered(lab, starts)
    tried = answered(lab, wrong(lab))  # without what is between: it works with right answers
    tried.cells = [
        cell
        for cell in tried.cells
        if cell.cell_type == "markdown" or "%load_ext" in cell.source or task_of(cell)
    ]
    yield "wrong", tried
    yield "right", answered(lab, solutions(lab))


def slices(page: Page, name: str, height: int, top: int = 0) -> None:
    """Save pictures of a page that is as high as what it shows."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    width = page.viewport_size["width"] if page.viewport_size else 0
    for number, start in enumerate(range(top, height, PAGE), start=1):
        clip = {"x": 0, "y": start, "width": width, "height": min(PAGE, height - start)}
        page.screenshot(path=FOLDER / f"{name}-{number}.png", clip=clip, full_page=True)


def show(notebook: Notebook, name: str) -> list[str]:
    """Take pictures of all of an open notebook; return what is cut off."""
    page = notebook.page
    panel = page.locator(".jp-Notebook").first
    last = page.locator(".jp-Notebook .jp-Cell").last
    top = "e => { (e.querySelector('.jp-WindowedPanel-outer') || e).scrollTop = 0; }"
    height = 0
    for _ in range(2):  # cells that come into view are measured anew
        panel.evaluate(top)
        box = last.bounding_box()
        assert box is not None
        height = int(box["y"] + box["height"]) + 20
        page.set_viewport_size({"width": 1200, "height": max(height + 60, 600)})
        page.wait_for_timeout(300)
    slices(page, name, height, 60)
    return [f"{name}: {line}" for line in panel.evaluate(CUT)]


def run_all(notebook: Notebook) -> None:
    """Run every cell, and wait for the last one."""
    notebook.command("notebook:run-all-cells")
    prompts = notebook.page.locator(".jp-CodeCell .jp-InputPrompt")
    waiting = prompts.filter(has_text=re.compile(r"\[[ *]\]"))
    expect(waiting).to_have_count(0)


def printed(browser: Browser, name: str, path: Path) -> list[str]:
    """Take pictures of what a student prints: a notebook as it is, or with its outputs."""
    context = browser.new_context(viewport={"width": PAPER, "height": 1000}, offline=True)
    page = context.new_page()
    page.emulate_media(media="print")
    page.set_content(printable(path), wait_until="domcontentloaded")
    page.wait_for_timeout(500)
    height = int(page.evaluate("document.documentElement.scrollHeight"))
    slices(page, name, height)
    lost = page.locator("body").evaluate(LOST)
    context.close()
    return [f"{name}: {line}" for line in lost]


def main() -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", type=int, default=[lab.number for lab in labs()])
    parser.add_argument("--views", nargs="+", choices=VIEWS, default=list(VIEWS))
    options = parser.parse_args()
    cut = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_ARGS)
        expect.set_options(timeout=PATIENCE * SECOND)
        with start_lab(Path(folder, "lab")) as jupyter:
            settings = jupyter.folder.parent / "settings" / WINDOWS
            settings.parent.mkdir(parents=True, exist_ok=True)
            settings.write_text('{"windowingMode": "none"}')  # every cell is on the page
            for lab in (lab for lab in labs() if lab.number in options.only):
                if "blank" in options.views:
                    paper = f"lab{lab.number:02}-blank"
                    cut += printed(browser, paper, LABS / f"{lab.stem}.ipynb")
                for view, made in notebooks(lab):
                    if view not in options.views:
                        continue
                    name, began = f"lab{lab.number:02}-{view}", time.monotonic()
                    nbformat.write(made, jupyter.folder / f"{name}.ipynb")
                    notebook = Notebook(browser, jupyter, width=1200)
                    notebook.open(f"{name}.ipynb")
                    if view != "opened":
                        run_all(notebook)
                    cut += show(notebook, name)
                    if view == "right":
                        notebook.save()
                        notebook.theme("dark")
                        cut += show(notebook, f"lab{lab.number:02}-dark")
                        notebook.theme("light")
                        paper = f"lab{lab.number:02}-printed"
                        cut += printed(browser, paper, jupyter.folder / f"{name}.ipynb")
                    print(name, round(time.monotonic() - began), "s", flush=True)
                    notebook.command("notebook:shutdown-kernel")
                    notebook.close()
        browser.close()
    print(*cut, sep="\n")
    return bool(cut)


if __name__ == "__main__":
    sys.exit(main())
