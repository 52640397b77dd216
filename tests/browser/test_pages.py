"""A result on a slide and on paper: nothing of it is cut, whatever the height of its kernel."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
import torch.nn.functional as F
from lab import MOST, SCREENSHOTS, Lab, Notebook
from playwright.sync_api import Browser

from fuselab.session.cell_options import CellOptions, Frontend
from fuselab.session.session import Session

nbconvert = pytest.importorskip("nbconvert")

pytestmark = [pytest.mark.browser, pytest.mark.timeout(MOST)]

BODY = "y = F.gelu(x)\nz = y * w\np = z.softmax(-1)\n"
# What reveal.js does to a slide, which nbconvert and RISE load from elsewhere: a page of 960 by 700
# in the middle of the screen, of which nothing can be scrolled.
REVEAL = """
html, body { height: 100%; margin: 0; overflow: hidden }
.reveal .slides { position: absolute; width: 960px; height: 700px; overflow: hidden }
"""
# Boxes that hide a part of what is in them, which nobody can scroll to.
CUT = """card => [card, ...card.querySelectorAll('*')].filter(e => {
    const style = getComputedStyle(e);
    return e.checkVisibility() && e.scrollHeight > e.clientHeight + 2 && e.clientHeight > 0
        && style.overflowY === 'hidden';
}).length"""


@pytest.fixture(scope="module")
def notebook() -> Any:
    """A notebook of one cell and its result."""
    torch._dynamo.reset()
    session = Session({"F": F, "x": torch.rand(64, 960), "w": torch.rand(960)})
    cell, program = session.prepare(BODY, CellOptions(name="gelu"), Frontend())
    session.run(cell, program)
    cell.update(seconds=0.05)
    bundle: Any = cell._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    kept = {kind: data[kind] for kind in ("text/html", "text/plain")}
    output = nbformat.v4.new_output("display_data", data=kept)
    made = nbformat.v4.new_code_cell(f"%%fuse --name gelu\n{BODY}", outputs=[output])
    made.metadata["slideshow"] = {"slide_type": "slide"}
    return nbformat.v4.new_notebook(cells=[made])


def opened(browser: Browser, exporter: Any, notebook: Any, style: str = "") -> Any:
    """Convert a notebook and open the page with every other host blocked."""
    text, _ = exporter.from_notebook_node(notebook)
    context = browser.new_context(viewport={"width": 960, "height": 700})
    context.route("**/*", lambda route: route.abort())
    page = context.new_page()
    page.set_content(text, wait_until="domcontentloaded")
    if style:
        page.add_style_tag(content=style)
    # A figure that comes later changes what there is to scroll.
    page.wait_for_function("() => [...document.images].every(each => each.complete)")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return page


def test_on_a_slide_all_of_it_can_be_read(browser: Browser, notebook: Any) -> None:
    page = opened(browser, nbconvert.SlidesExporter(), notebook, REVEAL)
    card = page.locator(".reveal .slides .fuselab-card").first
    box = card.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 700, "the slide ends above the card's end"
    assert box["x"] + box["width"] <= 960
    assert card.evaluate(CUT) == 0
    page.screenshot(path=SCREENSHOTS / "pages-slide.png")
    # What is below is scrolled to, within the card; once more where the card grew after it, when
    # the page laid out a figure.
    scrolled = """([card, last]) => {
        card.scrollTo(0, card.scrollHeight);
        return last.getBoundingClientRect().bottom <= card.getBoundingClientRect().bottom;
    }"""
    last = card.locator("summary").last
    page.wait_for_function(scrolled, arg=[card.element_handle(), last.element_handle()])
    page.screenshot(path=SCREENSHOTS / "pages-slide-end.png")
    page.context.close()


@pytest.mark.parametrize("kind", ["HTMLExporter", "SlidesExporter"])
def test_on_paper_nothing_is_cut(
    browser: Browser, notebook: Any, kind: str, tmp_path: Path
) -> None:
    page = opened(browser, getattr(nbconvert, kind)(), notebook)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 without its margins
    card = page.locator(".fuselab-card").first
    hidden = "e => [e, ...e.querySelectorAll('*')].filter(e => e.checkVisibility()"
    hidden += " && e.clientHeight > 0 && e.scrollHeight > e.clientHeight + 2"
    hidden += " && getComputedStyle(e).overflowY !== 'visible').length"
    assert card.evaluate(hidden) == 0
    listing = card.locator("div[data-kernel]").first
    assert listing.evaluate("e => e.scrollHeight - e.clientHeight") <= 2
    assert listing.evaluate("e => e.scrollWidth - e.clientWidth") <= 2, "long lines fit"
    # Each line stands beside its number.
    rows = "pres => pres.filter(p => p.checkVisibility()).map(p => Math.round(p.offsetHeight"
    rows += " / parseFloat(getComputedStyle(p).lineHeight)))"
    lines = card.locator("div[data-kernel]:visible").first.locator("pre").evaluate_all(rows)
    assert len(lines) >= 3
    assert max(lines) - min(lines) <= 1, "one of them ends in an empty line"
    page.screenshot(path=SCREENSHOTS / f"pages-print-{kind}.png", full_page=True)
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").stat().st_size > 10_000
    page.context.close()


# Each of them ends, by an error.
WANTING = {
    "http": "url => fetch(url, { mode: 'no-cors' }).catch(() => null)",
    "ws": "url => new Promise(done => { new WebSocket(url).onerror = () => done(); })",
}


@pytest.mark.parametrize("scheme", WANTING)
def test_who_wants_another_host_is_seen_and_reaches_none(
    browser: Browser, lab: Lab, scheme: str
) -> None:
    """What every test of a notebook relies on when it closes the page."""
    notebook = Notebook(browser, lab)
    # By a name, and by a number, where nothing is to be looked up, and somebody listens.
    with socket.create_server(("127.0.0.2", 0)) as server:
        wanted = [f"{scheme}://elsewhere.test/", f"{scheme}://127.0.0.2:{server.getsockname()[1]}/"]
        for url in wanted:
            notebook.page.evaluate(WANTING[scheme], url)
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert notebook.strangers == wanted
    with pytest.raises(AssertionError, match="another host"):
        notebook.close()
