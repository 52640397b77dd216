"""The real marimo: a notebook without magics shows a result, in its light and its dark theme.

``python tests/browser/jupyters.py --only marimo-0.25.2`` installs it under ``build``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import MOST, SCREENSHOTS, _free_port, _wait_for
from playwright.sync_api import Browser, expect

pytestmark = [
    pytest.mark.browser,
    pytest.mark.serial,
    pytest.mark.slow,
    pytest.mark.timeout(MOST),
    pytest.mark.skipif("FUSELAB_MARIMO" not in os.environ, reason="marimo is not installed"),
]

NOTEBOOK = """
import marimo

app = marimo.App(width="full")


@app.cell
def _():
    import fuselab, torch

    fused = fuselab.fuse(lambda x: torch.tanh(x) * 2, name="alone")
    fused(torch.randn(64, 64))
    fused.result
    return fused, fuselab


@app.cell
def _(fused, fuselab):
    kernel = fuselab.kernels["alone"]
    fuselab.edit("alone", kernel.source.replace("* 2.0f", "* 3.0f"))
    return
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Serve the notebook on this machine's loopback."""
    tmp_path.joinpath("notebook.py").write_text(NOTEBOOK)
    tmp_path.joinpath("pyproject.toml").write_text('[tool.marimo.display]\ntheme = "system"\n')
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), os.environ["FUSELAB_MARIMO"]]
    home = {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    port = _free_port()
    command = [sys.executable, "-m", "marimo", "-q", "run", "notebook.py", "--headless"]
    command += ["--no-token", "--host", "127.0.0.1", "--port", str(port)]
    log = tmp_path / "marimo.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=os.environ | home, stdout=stream, stderr=subprocess.STDOUT
        )
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(15)


def test_a_result_in_marimo(browser: Browser, address: str) -> None:
    for theme in ("light", "dark"):
        context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme=theme)
        page = context.new_page()
        page.goto(address)
        card = page.locator(".fuselab-card").first
        expect(card.get_by_text("#pragma omp").first).to_be_visible()
        facts = ("1 kernel", "checked", "eager moves", "fused moves", "line 10", "fuselab.edit(")
        for fact in facts:
            expect(card).to_contain_text(fact)
        expect(card).not_to_contain_text("%%")  # there are no magics here
        turned = "invert" in card.evaluate("e => getComputedStyle(e).filter")
        assert turned == (theme == "dark")
        expect(page.locator("body")).to_contain_text("wrong result")
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"frontend-marimo-{theme}.png")
        context.close()
