"""How quick the panel is, and how large a saved notebook: in the real JupyterLab, in Chromium.

``python tests/bench/panel_speed.py`` prints a table.  Times are the page's own, from the pointer's
press to the first frame in which what the row names can be seen, so they hold the kernel's part,
the messages and the layout.  *Sign* is the tab with anything in it: its widgets, or "Working …".
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "browser")]

from lab import CHROMIUM_ARGS, SECOND, Lab, Notebook, Panel, start_lab  # noqa: E402
from page_timing import CONTENT, SHOWN, tab_times  # noqa: E402
from playwright.sync_api import expect, sync_playwright  # noqa: E402

from support.chromium import find_chromium  # noqa: E402

SETUP = (
    "%load_ext fuselab\nimport torch, torch.nn.functional as F\n"
    "x, weight, bias = torch.randn(512, 768), torch.randn(768), torch.randn(768)"
)
CELL = "y{n} = F.gelu(x + {n})\nz{n} = F.layer_norm(y{n}, (768,), weight, bias)\ng{n} = z{n}.sum(0)"
# The kernel's part of one redraw of a search, drawn in full each time.
REDRAW = (
    "import dataclasses, time, fuselab\n"
    "tab = fuselab.cells['bench_0'].workbench().tuning\n"
    "run, spent = dataclasses.replace(tab._drawn, stopped=''), []\n"
    "for _ in range(9):\n    start = time.perf_counter()\n"
    "    tab._show(run); tab._draw(run)\n"
    "    spent.append(time.perf_counter() - start)\n"
    "print('redraw', *(round(1e3 * s, 1) for s in sorted(spent)))"
)


def cells(count: int, options: str) -> list[str]:
    """Return a notebook's cells: the set-up, then fused ones with a panel each."""
    fused = [f"%%fuse --name bench_{n} --panel {options}\n{CELL.format(n=n)}" for n in range(count)]
    return [SETUP, *fused]


def run_all(notebook: Notebook, count: int) -> list[Panel]:
    """Run the cells; return their panels once they are drawn."""
    notebook.run(0)
    panels = []
    for n in range(1, count + 1):
        panel = Panel(notebook.run(n))
        expect(panel.editor).to_be_visible(timeout=120 * SECOND)
        panels.append(panel)
    notebook.page.wait_for_timeout(2 * SECOND)
    return panels


def speeds(browser: Any, lab: Lab, rounds: int) -> list[tuple[str, list[float]]]:
    """Measure in a fresh kernel each round."""
    rows: dict[str, list[float]] = {}
    for number in range(rounds):
        name = f"speed-{number}.ipynb"
        lab.write(name, [*cells(1, ""), REDRAW])
        notebook = Notebook(browser, lab, watched=False)
        notebook.open(name)
        notebook.run(0)
        # What is imported between cells is imported: a person takes longer to write a cell.
        notebook.page.wait_for_timeout(20 * SECOND)
        shown = notebook.page.evaluate_handle(SHOWN)
        panel = Panel(notebook.run(1))
        # Nothing is asked of the page meanwhile: to look for an element Playwright describes all of
        # the page at every try, half a second of it while the panel is drawn.
        rows.setdefault("panel shown, after the result", []).append(
            shown.evaluate("p => p.promise")
        )
        expect(panel.editor).to_be_visible()
        notebook.page.wait_for_timeout(3 * SECOND)
        for title in CONTENT:
            sign, content = tab_times(panel, title)
            rows.setdefault(f"{title}, first: sign", []).append(sign)
            rows.setdefault(f"{title}, first: content", []).append(content)
            notebook.page.wait_for_timeout(300)
        for title in CONTENT:
            rows.setdefault(f"{title}, again: content", []).append(tab_times(panel, title)[1])
        tab_times(panel, "Tuning")
        panel.root.get_by_role("combobox", name="Budget").select_option(label="5 s")
        panel.button("Tune").click()
        expect(panel.button("Stop")).to_be_visible()
        expect(panel.button("Tune")).to_be_enabled(timeout=60 * SECOND)
        output = notebook.run(2)
        expect(output).to_contain_text("redraw")
        spent = [float(word) for word in output.inner_text().split()[1:]]
        rows.setdefault("redraw while tuning, kernel's part", []).append(statistics.median(spent))
        notebook.close()
    return list(rows.items())


def size(browser: Any, lab: Lab, count: int, options: str) -> float:
    """Return the megabytes of a saved notebook with so many panels."""
    name = f"size{options}.ipynb"
    lab.write(name, cells(count, options))
    notebook = Notebook(browser, lab)
    notebook.open(name)
    run_all(notebook, count)
    notebook.save()
    notebook.close()
    return (lab.folder / name).stat().st_size / 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--panels", type=int, default=10, help="in the saved notebook; 0: none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_ARGS)
        expect.set_options(timeout=60 * SECOND)  # others may have the machine
        with start_lab(Path(folder, "lab")) as lab:
            for name, values in speeds(browser, lab, options.rounds) if options.rounds else []:
                low, high = min(values), max(values)
                print(f"{name:40} {statistics.median(values):7.0f} ms  ({low:.0f} to {high:.0f})")
            if options.panels:
                for given in ("-q", ""):
                    megabytes = size(browser, lab, options.panels, given)
                    label = f"saved, {options.panels} panels {given or 'with their results'}"
                    print(f"{label:40} {megabytes:7.2f} MB")
        browser.close()


if __name__ == "__main__":
    main()
