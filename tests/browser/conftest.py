"""Fixtures of the browser tests: one JupyterLab and one Chromium for all of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Generator, Iterator

import pytest

# Looked for, not imported: every process that collects the tests comes by here, and JupyterLab
# takes seconds to import. What runs it is a process of its own.
if importlib.util.find_spec("jupyterlab") is None:
    pytest.skip("JupyterLab is not installed", allow_module_level=True)
playwright_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from lab import CHROMIUM_ARGS, PATIENCE, SECOND, Lab, Notebook, start_lab  # noqa: E402

FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[playwright_api.Browser]:
    """Start Debian's own Chromium; Playwright's is never downloaded."""
    playwright_api.expect.set_options(timeout=PATIENCE * SECOND)
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Start JupyterLab; the fixture asks for Chromium so as not to start it for nothing."""
    with start_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let the fixtures know whether the test failed."""
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture
def open_notebook(
    browser: playwright_api.Browser, lab: Lab, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Notebook]]:
    """Open notebooks given as lists of cells; at the end, nothing may have wanted another host."""
    opened: list[Notebook] = []

    def open_(name: str, cells: list[str], **size: int) -> Notebook:
        lab.write(name, cells)
        notebook = Notebook(browser, lab, **size)
        opened.append(notebook)
        notebook.open(name)
        return notebook

    yield open_
    for notebook in opened:
        if request.node.stash.get(FAILED, False):
            notebook.shoot(f"failed-{request.node.name}")
        notebook.close()
