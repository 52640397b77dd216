"""A stranger's tour: what somebody sees who opens a notebook for the first time.

At the sizes of a laptop and of a screen, in both themes, with every other host blocked; the
pictures are left in ``build/screenshots``, to be looked at. The steps are in the order in which one
would take them; each builds on what those before it have left.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import nbconvert
import pytest
from lab import MOST, OUTPUT, SCREENSHOTS, SECOND, Notebook, Panel, eventually, fits, settled
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Locator, Page, expect

from fusec.call import native

pytestmark = [
    pytest.mark.browser,
    pytest.mark.serial,
    pytest.mark.slow,
    pytest.mark.timeout(MOST),
]

SIZES = {"screen": (1400, 900), "laptop": (1200, 700)}

FRESH = 10 * secrets.randbelow(10_000)  # no cache has these kernels: their phases take a while

CELLS = {
    "setup": "%load_ext fuselab\nimport fuselab, torch, torch.nn.functional as F\n"
    "x, w = torch.randn(1024, 1024), torch.randn(1024)",
    "gelu": "%%fuse --name gelu\ny = F.gelu(x)\nz = y * w\np = z.softmax(-1)",
    "less": "%%fuse --name gelu --out p\ny = F.gelu(x)\nz = y * w\np = z.softmax(-1)",
    "terminal": "print(fuselab.cells['gelu'].text())",
    "mistake": "%%fuse\ny = F.gelu(x\nz = y * w",
    "unknown": "%%fuse\ny = F.gelu(x) * weight",
    "lost": "%%kernel glu\nvoid",
    "training": "layer = torch.nn.Linear(64, 8)\n"
    "given, wanted = torch.randn(32, 64), torch.randn(32, 8)\n"
    "step = torch.optim.SGD(layer.parameters(), 0.1)",
    "train": "%%fuse --name train\nstep.zero_grad()\nloss = F.mse_loss(layer(given), wanted)\n"
    "loss.backward()\nstep.step()",
    "triton": "%%fuse --name tri --target triton --out y\ny = F.gelu(x[:512, :768]) * w[:768]",
    "search": "%%fuse --name tri --target triton --out y --tune 2\n"
    "y = F.gelu(x[:512, :768]) * w[:768]",
    "chain": "%%fuse --name chain --panel\ny = torch.tanh(x) * w\nz = y * torch.sigmoid(y)",
    "tune": "%%fuse --name searched --tune 4\ny = torch.tanh(x) * w + 1",
    "compiling": f"%%fuse --name stop_compiling\nq = torch.tanh(x) * w + {FRESH + 1}",
    "checking": f"%%fuse --name stop_checking\nq = torch.tanh(x) * w + {FRESH + 2}",
    "measuring": f"%%fuse --name stop_measuring\nq = torch.tanh(x) * w + {FRESH + 3}",
    "tuning": f"%%fuse --name stop_tuning --tune 60\nq = torch.tanh(x) * w + {FRESH + 4}",
    "share": "%fuse_share gelu",
    "complete": "%%fuse --name complete\nq = x + 15",
}
INDEX = {name: number for number, name in enumerate(CELLS)}

# Boxes that scroll sideways by a few pixels, for nothing.
DEAD = """root => [...root.querySelectorAll('*')].filter(e => {
    const over = e.scrollWidth - e.clientWidth;
    return e.checkVisibility() && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)
        && over > 0 && over < 30 && e.clientWidth > 0 && !e.closest('.fuselab-editor');
}).map(e => e.className)"""
CUT = """root => [root, ...root.querySelectorAll('*')].filter(e => e.checkVisibility()
    && e.clientHeight > 0 && e.scrollHeight > e.clientHeight + 2
    && ['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowY)).length"""
COLOR = "e => getComputedStyle(e).backgroundColor"
LIT = "rgb(255, 224, 138)"
SHOWS = """([n, text]) => document.querySelectorAll('.jp-Notebook .jp-Cell')[n]
    .querySelector('.jp-OutputArea')?.textContent.includes(text)"""
STOPS = f"""given => ({SHOWS})(given)
    && (window.jupyterapp.commands.execute('notebook:interrupt-kernel'), true)"""
BEFORE: Any = "e => getComputedStyle(e, '::before').content"
TIME = re.compile(r"\d (?:s|ms|µs|ns)\b")


def bottom(of: Locator) -> float:
    box = of.bounding_box()
    assert box is not None
    return float(box["y"] + box["height"])


def below(page: Page, what: Locator, most: float) -> None:
    """Wait until something ends above a line of the page: it may still be moving there."""
    eventually(page, lambda: bottom(what) >= most and f"{what} ends at {bottom(what)}")


class Tour:
    """The notebook, and a stranger's hands."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook
        self.page: Page = notebook.page

    def cell(self, name: str) -> Locator:
        return self.page.locator(".jp-Notebook .jp-Cell").nth(INDEX[name])

    def start(self, name: str) -> Locator:
        """Run a cell, and wait for nothing."""
        return self.notebook.run(INDEX[name])

    def ended(self, name: str) -> None:
        prompt = self.cell(name).locator(".jp-InputPrompt")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]"))

    def ran(self, name: str) -> Locator:
        """Run a cell, and wait until it has run."""
        output = self.start(name)
        self.ended(name)
        return output

    def sizes(self, name: str) -> Iterator[tuple[str, int]]:
        """Show a cell at the upper end of each size of the page, as one does to read its result."""
        for size, (width, height) in SIZES.items():
            self.page.set_viewport_size({"width": width, "height": height})
            self.cell(name).evaluate("e => e.scrollIntoView({block: 'start'})")
            settled(self.page)
            yield size, height

    def look(self, name: str, each: Callable[[str], object] | None = None) -> None:
        """Leave pictures of a cell and its result at both sizes, in both themes."""
        for size, _ in self.sizes(name):
            self.notebook.shoot(f"stranger-{name}-{size}", each=each)


def kernel_first(tour: Tour) -> None:
    """1 and 3: the loop, the bytes and the limit are above the fold, in a terminal, too."""
    tour.ran("setup")
    card = tour.ran("gelu").locator(".fuselab-card")
    expect(card).to_be_visible()
    loop = card.get_by_text("#pragma omp parallel").first

    def dark_in_the_dark(theme: str) -> None:
        invert = card.evaluate("e => getComputedStyle(e).filter")
        assert ("invert" in invert) == (theme == "dark")

    for size, height in tour.sizes("gelu"):
        below(tour.page, loop, height - 60)
        for text in ("eager moves", "fused moves", re.compile("limit here|a copy of its")):
            below(tour.page, card.get_by_text(text).first, height / 2)
        tour.notebook.shoot(f"stranger-gelu-{size}", each=dark_in_the_dark)
    expect(card).to_contain_text(re.compile("[Ww]aits for memory|[Bb]ound by|[Tt]oo small"))
    assert card.evaluate(DEAD) == []
    lines = tour.ran("terminal").inner_text().splitlines()
    found = [n for n, line in enumerate(lines) if "#pragma omp parallel" in line]
    assert found, lines
    assert found[0] >= len(lines) - 24, "a terminal's last page shows the loop"
    assert any("fused moves" in line for line in lines[:4])


def source_first(tour: Tour) -> None:
    """2: a line of the cell opens to its kernel lines, and both sides light up."""
    card = tour.cell("gelu").locator(".fuselab-card")
    line = card.locator("summary.l2")
    own = card.locator("div[data-kernel] span.l2").first
    line.hover()
    assert own.evaluate(COLOR) == line.evaluate(COLOR) == LIT
    card.locator("div[data-kernel] span.l3").first.hover()
    assert own.evaluate(COLOR) != LIT
    assert card.locator("summary.l3").evaluate(COLOR) == LIT
    line.click()
    expect(line.locator("xpath=..").get_by_text("fx_one_plus_erf")).to_be_visible()
    tour.notebook.shoot("stranger-line", card)
    line.click()
    said = card.inner_text()
    assert not re.search(r"\bop\d+\b|cell \d", said), said


def what_next(tour: Tour) -> None:
    """4: what to do next; what it says of ``--out`` is what comes of it."""
    card = tour.cell("gelu").locator(".fuselab-card")
    for text in ("Next: edit", "%%fuse --edit gelu", "%%fuse --tune", "--panel", "%%fuse?"):
        expect(card).to_contain_text(text)
    found = re.search(r"write ([\d.]+) MiB less\s+%%fuse --out p", card.inner_text())
    assert found is not None
    moved = re.compile(r"fused moves\s+([\d.]+) MiB")
    before = moved.search(card.inner_text())
    after = moved.search(tour.ran("less").locator(".fuselab-card").inner_text())
    assert before is not None
    assert after is not None
    assert float(before[1]) - float(after[1]) == pytest.approx(float(found[1]), abs=0.1)


def errors(tour: Tour) -> None:
    """8: a mistake shows the cell's line and what to do; a training step has no idle warnings."""
    output = tour.ran("mistake")
    expect(output).to_contain_text("SyntaxError: '(' was never closed")
    assert "File" not in output.inner_text()
    assert output.inner_text().strip().count("\n") == 3
    said = tour.ran("unknown").inner_text()
    assert "name 'weight' is not defined" in said
    assert "y = F.gelu(x) * weight" in said
    assert said.count("File ") == 1, "no file of ours"
    said = tour.ran("lost").inner_text()
    assert "gelu" in said, "the kernels that there are"
    assert said.strip().count("\n") <= 2, said
    tour.look("mistake")
    tour.ran("training")
    said = tour.ran("train").inner_text()
    assert not re.search(r"input\d|\bop\d|warning", said), said
    tour.look("train")


def no_gpu(tour: Tour) -> None:
    """6: nothing is said of speed; what is predicted is marked; checks are quick."""
    began = time.monotonic()
    card = tour.ran("triton").locator(".fuselab-card")
    print(f"triton without a GPU: {time.monotonic() - began:.1f} s, compiled and checked")
    expect(card).to_contain_text("predicted by its")
    for fact in ("registers", "shared memory", "occupancy", "not measured", "checked"):
        expect(card).to_contain_text(fact)
    fast = re.compile(r"×\s(faster|slower)|GB/s|eager [\d.]+ .?s")
    assert not fast.search(card.inner_text())
    tour.look("triton")
    said = tour.ran("search").inner_text()
    assert not fast.search(said), said


def panel(tour: Tour) -> None:
    """2, 5 and 9: the verdict is in view, no dead scrollbar, one line number, times of one run."""
    page = tour.page
    output = tour.start("chain")
    panel = Panel(output)
    expect(panel.editor).to_be_visible()
    panel.type_at_end_of("return 0;", "  // a comment")
    for size, height in tour.sizes("chain"):
        panel.root.evaluate("e => e.scrollIntoView({block: 'start'})")
        checking = panel.watch("Checking chain …")
        panel.button("Check").click()
        checking()
        expect(panel.root).not_to_contain_text("Checking chain …")
        panel.says(re.compile("Passed – "))
        verdict = panel.root.locator(".fuselab-verdict")
        below(page, verdict, height + 1)
        tour.notebook.shoot(f"stranger-panel-{size}")
        for title in ("Timings", "Tuning", "Fusion", "Stages", "Guards", "Numerics"):
            panel.tab(title).click()
            settled(page)
            eventually(page, lambda: panel.root.evaluate(DEAD))
            fits(panel.root)
            panel.root.evaluate("e => e.scrollIntoView({block: 'start'})")
            tour.notebook.shoot(f"stranger-{title.lower()}-{size}")
            if title == "Timings":  # a checked text has no time beside the kernel's own
                row = panel.root.locator("tr", has_text="the text checked last")
                expect(row).to_be_visible()
                assert not TIME.search(row.inner_text())
        panel.tab("Kernels").click()
    # A compile error has one number: the gutter's own.
    panel.button("Revert").click()
    panel.type_at_end_of("\n{", "\nint broken = ;", after='extern "C"')
    page.keyboard.press("Control+Enter")
    panel.says(re.compile("Refused.* line"))
    line = panel.editor.input_value().split("int broken")[0].count("\n") + 1
    expect(panel.root.locator(".fuselab-verdict")).to_contain_text(f"line {line}")
    expect(panel.fault).to_contain_text("broken")
    panel.root.evaluate("e => e.scrollIntoView({block: 'start'})")
    tour.notebook.shoot("stranger-refused")
    # Who has but a keyboard is told the way out of the editor.
    expect(panel.root).to_contain_text("Esc, then Tab, leaves the editor")
    panel.editor.focus()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    focused = "e => e.contains(document.activeElement) && document.activeElement.tagName"
    assert panel.root.evaluate(focused) not in (False, "TEXTAREA")
    # An endless edit is refused.
    panel.button("Revert").click()
    panel.says(re.compile("back to the"))
    panel.type_at_end_of("\n{", "\nfor (volatile int i = 0;; ) i = i + 1;", after='extern "C"')
    began = time.monotonic()
    panel.button("Check").click()
    panel.says(re.compile("did not end|took longer|did not finish"))
    print(f"an endless edit: refused after {time.monotonic() - began:.1f} s")
    panel.button("Revert").click()


def progress_and_stop(tour: Tour) -> None:
    """7: a line at once, a plot while it searches, and Stop ends in one line in every phase."""
    output = tour.start("tune")
    expect(output.locator("img[alt$='the search so far']")).to_be_visible()
    tour.ended("tune")
    tour.look("tune")
    for phase in ("compiling", "checking", "measuring", "tuning"):
        began = time.monotonic()
        output = tour.start(phase)
        # Watched in the page itself, at each frame: some phases are over in a moment.
        tour.page.wait_for_function(SHOWS, arg=[INDEX[phase], " …"])
        print(f"{phase}: the first line was seen after {time.monotonic() - began:.2f} s")
        tour.page.wait_for_function(STOPS, arg=[INDEX[phase], f"{phase} …"])
        tour.ended(phase)
        said = output.last.inner_text().strip()
        if phase == "tuning":  # what was best so far is in use, measured and shown
            expect(tour.cell(phase)).to_contain_text("1 kernel")
        else:
            # Stop may come when the next phase has begun.
            assert re.match(r"KeyboardInterrupt: stopped while \w+ing stop_", said), said
            assert "\n" not in said
    tour.look("checking")


def completion(tour: Tour) -> None:
    """10: options and their values alone, and quickly the first time too.

    Where nothing of a value is typed yet, JupyterLab adds the cell's own words at the end.
    """
    page = tour.page
    editor = tour.cell("complete").locator(".cm-content")
    offered = page.locator(".jp-Completer-list .jp-Completer-item")
    for typed in (" --", "target "):
        editor.click()
        page.keyboard.press("Control+Home")
        page.keyboard.press("End")
        page.keyboard.type(typed)
        began = time.monotonic()
        for _ in range(10):  # JupyterLab waits a second for an answer, and a busy machine longer
            page.keyboard.press("Tab")
            with contextlib.suppress(PlaywrightError):
                offered.first.wait_for(state="visible", timeout=3 * SECOND)
                break
        expect(offered.first).to_be_visible()
        print(f"completion after {typed!r}: {time.monotonic() - began:.2f} s")
        # Ours are a letter for an icon, the text and its kind.
        shown = [text.split() for text in offered.all_inner_texts()]
        ours = [words[-2] for words in shown if words[-1] == "option"]
        page.screenshot(path=SCREENSHOTS / f"stranger-completion-{typed.strip(' -')}.png")
        if typed == "target ":
            assert ours == ["auto", "cpp", "triton", "plain"]
            rest = [words[-1] for words in shown[len(ours) :]]
            assert all(word in editor.inner_text() for word in rest), shown
        else:
            assert len(ours) == len(shown)
            assert all(re.fullmatch("--[a-z-]+", text) for text in ours), ours
        page.keyboard.press("Escape")


def share(tour: Tour) -> None:
    """Beyond: one page that needs no server, and a program that anybody can run."""
    folder = tour.notebook.lab.folder
    tour.ran("share")
    made = next(folder.glob("gelu*.html"))
    page = tour.page.context.new_page()
    page.set_viewport_size({"width": 1200, "height": 700})
    page.set_content(made.read_text(encoding="utf-8"), wait_until="domcontentloaded")
    card = page.locator(".fuselab-card").first
    expect(card.get_by_text("#pragma omp parallel").first).to_be_visible()
    card.locator("summary.l4").first.hover()
    assert card.locator("div[data-kernel] span.l4").first.evaluate(COLOR) == LIT
    page.screenshot(path=SCREENSHOTS / "stranger-shared.png")
    page.close()
    program = next(folder.glob("gelu*.py"))
    command = [sys.executable, program.name]
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def paper_and_slides(tour: Tour) -> None:
    """9: printed, and on slides, nothing of a result is cut."""
    saved = tour.notebook.save()
    saved.cells = [saved.cells[INDEX["less"]], saved.cells[INDEX["train"]]]
    for cell in saved.cells:
        cell.metadata["slideshow"] = {"slide_type": "slide"}
    saved.metadata.pop("widgets", None)
    for kind in ("HTMLExporter", "SlidesExporter"):
        text, _ = getattr(nbconvert, kind)().from_notebook_node(saved)
        page = tour.page.context.new_page()
        page.set_viewport_size({"width": 718, "height": 1000})  # A4 without its margins
        page.set_content(text, wait_until="domcontentloaded")
        page.emulate_media(media="print")
        for card in page.locator(".fuselab-card").all():
            assert card.evaluate(CUT) == 0
        page.screenshot(path=SCREENSHOTS / f"stranger-print-{kind}.png", full_page=True)
        page.close()
    tour.notebook.strangers.clear()  # nbconvert's own pages ask a CDN for MathJax and reveal.js


def reopened(tour: Tour) -> None:
    """9: the kernel is gone: the panel says once what to do, and shows no red icons."""
    tour.notebook.restart_kernel()
    panel = tour.notebook.reopen(tour.cell("chain").locator(OUTPUT).last)
    assert "run the cell again" in panel.root.evaluate(BEFORE)
    inside = panel.root.locator(".jupyter-widgets-disconnected").first
    assert inside.evaluate(BEFORE) == "none"
    for size, _ in tour.sizes("chain"):
        panel.root.evaluate("e => e.scrollIntoView({block: 'start'})")
        tour.notebook.shoot(f"stranger-reopened-{size}")
    output = tour.cell("gelu").locator(OUTPUT)
    expect(output.locator(".fuselab-card").get_by_text("#pragma omp parallel")).to_be_visible()


STEPS = (
    kernel_first,
    source_first,
    what_next,
    errors,
    no_gpu,
    panel,
    progress_and_stop,
    completion,
    share,
    paper_and_slides,
    reopened,
)


def test_tour(open_notebook: Callable[..., Notebook]) -> None:
    native.types(wait=True)  # what is timed without it is compared with nothing
    notebook = open_notebook("stranger.ipynb", list(CELLS.values()), width=1400, height=900)
    tour = Tour(notebook)
    failed: list[Exception] = []
    for step in STEPS:  # all of them: one that fails says nothing of the next
        began = time.monotonic()
        try:
            step(tour)
        except (AssertionError, PlaywrightError) as error:
            error.add_note(step.__name__)
            failed.append(error)
        print(f"{step.__name__}: {time.monotonic() - began:.0f} s", flush=True)
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {len(STEPS)} steps failed", failed)
