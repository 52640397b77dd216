"""JupyterLab in a subprocess, and a page in Chromium that drives it as a person would.

Which Jupyter it is can be chosen: ``FUSELAB_JUPYTER`` is ``lab`` or ``notebook`` and
``FUSELAB_JUPYTER_PYTHON`` the Python that has it; ``FUSELAB_IPYKERNEL`` is a folder with an
ipykernel that goes before the installed one (``make test-jupyter`` makes all of these).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import matplotlib
import nbformat
from playwright.sync_api import Browser, Locator, Page, expect

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
KERNEL = "fuselab-test"
# What a cell shows, less the place where a line said what it waited for, and the looks of what
# stands in a panel's place one day.
OUTPUT = ".jp-OutputArea-output:not(:has(> span:only-child:is(:empty, .fuselab-instead)))"
# Waits until a panel is there, or until its place says that there is none.
CAME_OR_GONE = """async e => {
    const gone = () => getComputedStyle(e).fontSize === "0px";
    while (!e.querySelector(".fuselab-panel") && !gone()) {
        await new Promise(requestAnimationFrame);
    }
}"""
WIDGETS = "@jupyter-widgets/jupyterlab-manager/plugin"
SECOND = 1000  # Playwright counts milliseconds
# A state is waited for until it is there: what is quick costs nothing, and a machine may have two
# slow cores and other work. What never comes fails after so long.
PATIENCE = 240  # seconds
MOST = 1800  # seconds for a test

CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
    # It reaches no other host. Requests that Playwright has to let through one by one take the way
    # through two more processes each, as do the kernel's messages, and nothing is kept of them.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


class Lab:
    """A running JupyterLab server.

    Attributes:
        folder: The folder it serves.
        url: Its address, without the token.
        token: What a browser must show.
        app: ``lab`` or ``notebook``.
    """

    def __init__(self, folder: Path, url: str, token: str, app: str) -> None:
        self.folder = folder
        self.url = url
        self.token = token
        self.app = app

    def write(self, name: str, cells: list[str]) -> None:
        """Write a notebook of code cells."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
        # A notebook that names no kernel opens a dialog.
        notebook.metadata["kernelspec"] = {
            "name": KERNEL,
            "display_name": KERNEL,
            "language": "python",
        }
        nbformat.write(notebook, self.folder / name)

    @contextmanager
    def without_widget_state(self) -> Iterator[None]:
        """Save notebooks as JupyterLab does by itself; for pages that are opened within."""
        path = self.folder.parent / "settings" / f"{WIDGETS}.jupyterlab-settings"
        before = path.read_text()
        path.write_text(json.dumps({"saveState": False}))
        try:
            yield
        finally:
            path.write_text(before)


@contextmanager
def start_lab(base: Path, without: Sequence[str] = ()) -> Iterator[Lab]:
    """Run JupyterLab on this machine's loopback with settings of its own.

    Args:
        base: An empty folder for everything that Jupyter writes.
        without: Extensions of its pages that are switched off.
    """
    folders = {
        name: base / name for name in ("notebooks", "config", "data", "runtime", "home", "settings")
    }
    for folder in folders.values():
        folder.mkdir(parents=True)
    spec = folders["data"] / "kernels" / KERNEL
    spec.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    # The notebooks use the tests' fakes.
    paths = [os.environ.get("FUSELAB_IPYKERNEL"), str(ROOT / "tests"), os.environ.get("PYTHONPATH")]
    described = {"argv": command, "display_name": KERNEL, "language": "python"}
    described |= {"env": {"PYTHONPATH": os.pathsep.join(filter(None, paths))}}
    spec.joinpath("kernel.json").write_text(json.dumps(described))
    news = "@jupyterlab/apputils-extension/notification"
    for name, values in {news: {"fetchNews": "false"}, WIDGETS: {"saveState": True}}.items():
        path = folders["settings"] / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(values))
    pages = folders["config"] / "labconfig"
    pages.mkdir()
    off = {"disabledExtensions": dict.fromkeys(without, True)}
    pages.joinpath("page_config.json").write_text(json.dumps(off))
    port, token = _free_port(), secrets.token_hex(16)
    environment = {
        **os.environ,
        "HOME": str(folders["home"]),
        # Its list of fonts takes seconds to make; the tests' own will do.
        "MPLCONFIGDIR": matplotlib.get_cachedir(),
        "IPYTHONDIR": str(base / "ipython"),
        "JUPYTER_CONFIG_DIR": str(folders["config"]),
        "JUPYTER_DATA_DIR": str(folders["data"]),
        "JUPYTER_RUNTIME_DIR": str(folders["runtime"]),
        "JUPYTERLAB_SETTINGS_DIR": str(folders["settings"]),
        "JUPYTERLAB_WORKSPACES_DIR": str(base / "workspaces"),
        "JUPYTER_TOKEN": token,
    }
    app = os.environ.get("FUSELAB_JUPYTER", "lab")
    python = os.environ.get("FUSELAB_JUPYTER_PYTHON", sys.executable)
    own = {"lab": "LabApp", "notebook": "JupyterNotebookApp"}[app]
    arguments = [
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.open_browser=False",
        "--ServerApp.allow_root=True",
        f"--ServerApp.root_dir={folders['notebooks']}",
        "--LabApp.news_url=",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
        f"--{own}.expose_app_in_browser=True",  # to change the theme without clicking through it
    ]
    log_path = base / "jupyter.log"
    url = f"http://127.0.0.1:{port}"
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [python, "-m", {"lab": "jupyterlab"}.get(app, app), *arguments],
            cwd=folders["notebooks"],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_for(f"{url}/api?token={token}", process, log_path)
            yield Lab(folders["notebooks"], url, token, app)
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-4000:]}")


class Notebook:
    """An open notebook in a page.

    Attributes:
        name: The open notebook's file name.
        page: The browser page.
        strangers: Addresses on other hosts that something wanted; Chromium reached none of them.
        errors: Uncaught errors of scripts.
    """

    def __init__(
        self,
        browser: Browser,
        lab: Lab,
        width: int = 1280,
        height: int = 1000,
        *,
        watched: bool = True,
    ) -> None:
        """Open an empty page.

        Args:
            browser: Chromium.
            lab: What it shows.
            width: Of the page, in pixels.
            height: Likewise.
            watched: Whether Playwright tells of each request. To measure times it should not.
        """
        self.lab = lab
        self.name = ""
        self.strangers: list[str] = []
        self.errors: list[str] = []
        context = browser.new_context(
            viewport={"width": width, "height": height}, reduced_motion="reduce"
        )
        if watched:
            context.on("request", lambda request: self._see(request.url))
            context.on("page", lambda page: page.on("websocket", lambda ws: self._see(ws.url)))
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE * SECOND)
        self.page.on("pageerror", self._note)

    def open(self, name: str) -> None:
        """Open a notebook alone on the page, and wait until its kernel can take a cell."""
        self.name = name
        place = "lab/tree" if self.lab.app == "lab" else "notebooks"
        self.page.goto(
            f"{self.lab.url}/{place}/{name}?token={self.lab.token}&reset", timeout=PATIENCE * SECOND
        )
        expect(self.page.locator(".jp-NotebookPanel-toolbar")).to_be_visible(
            timeout=PATIENCE * SECOND
        )
        # A cell that is run before the kernel is there is dropped without a word.
        if self.lab.app == "lab":
            idle = self.page.locator(".jp-StatusBar-Widget", has_text=re.compile(r"\| Idle")).first
            expect(idle).to_be_visible(timeout=PATIENCE * SECOND)
        else:  # it has no status bar, and its indicator says idle before it is connected
            self.page.wait_for_function(
                "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
                "?.connectionStatus === 'connected'",
                timeout=PATIENCE * SECOND,
            )
            idle = self.page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first
            expect(idle).to_be_visible(timeout=PATIENCE * SECOND)
        # Room for the notebook: without the file browser.
        if self.page.locator("#jp-left-stack").is_visible():
            self.page.keyboard.press("Control+b")

    def run(self, index: int) -> Locator:
        """Run a cell with the keyboard; return its output area."""
        cell = self.page.locator(".jp-Notebook .jp-Cell").nth(index)
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")
        return cell.locator(OUTPUT)

    def restart_kernel(self) -> None:
        """Give the notebook a fresh kernel, as the server does it."""
        self.page.evaluate(
            """async () => {
                const { sessions } = window.jupyterapp.serviceManager;
                for (const model of sessions.running()) {
                    await window.jupyterapp.serviceManager.kernels.shutdown(model.kernel.id);
                }
            }"""
        )

    def reopen(self, place: Locator) -> Panel:
        """Open the notebook again, its kernel being another one; return the panel at a place.

        Where a request to a kernel that just starts is lost, no widget of the page comes back, a
        plain slider neither: the page is opened once more.
        """
        panel = Panel(place)
        for _ in range(3):
            self.open(self.name)
            place.evaluate(CAME_OR_GONE)
            if panel.root.count():
                break
        expect(panel.root).to_be_visible()
        return panel

    def command(self, name: str, **arguments: str) -> None:
        """Execute one of JupyterLab's own commands."""
        script = "([name, given]) => window.jupyterapp.commands.execute(name, given)"
        self.page.evaluate(script, [name, arguments])

    def theme(self, name: str) -> None:
        """Change to ``light`` or ``dark`` if need be, and wait until it shows."""
        shown = self.page.locator(f"body[data-jp-theme-light={str(name == 'light').lower()}]")
        if not shown.count():
            self.command("apputils:change-theme", theme=f"JupyterLab {name.title()}")
            expect(shown).to_be_attached()
            # A splash lies over the page meanwhile, and fades.
            expect(self.page.locator("#jupyterlab-splash")).to_have_count(0)

    def shoot(
        self, name: str, of: Locator | None = None, each: Callable[[str], object] | None = None
    ) -> None:
        """Save a screenshot in the light and one in the dark theme under ``build``.

        Args:
            name: Of the files.
            of: What to show; all of the page if None.
            each: Called with the theme when it is on.
        """
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        # From whichever theme there is to the other: changing takes longer than the picture.
        dark = self.page.locator("body[data-jp-theme-light=false]").count() > 0
        for theme in ("dark", "light") if dark else ("light", "dark"):
            self.theme(theme)
            (of or self.page).screenshot(path=SCREENSHOTS / f"{name}-{theme}.png")
            if each is not None:
                each(theme)

    def save(self) -> Any:
        """Save the notebook as a person would, and return it as it is on disk."""
        path = self.lab.folder / self.name
        before = path.stat().st_mtime_ns
        self.page.keyboard.press("Control+s")
        deadline = time.monotonic() + PATIENCE
        while path.stat().st_mtime_ns == before:
            assert time.monotonic() < deadline, "the notebook was not saved"
            self.page.wait_for_timeout(50)
        while True:  # it may still be written
            self.page.wait_for_timeout(200)
            with contextlib.suppress(nbformat.reader.NotJSONError):
                return nbformat.read(path, as_version=4)
            assert time.monotonic() < deadline, "the notebook was not saved whole"

    def close(self) -> None:
        """Close the page; whatever wanted another host fails the test."""
        broken = self.page.locator(".jupyter-widgets-error-widget").count()
        self.page.context.close()
        assert broken == 0, "a widget could not be shown"
        assert self.strangers == [], "something wanted another host"
        assert self.errors == [], "\n".join(self.errors)

    def _note(self, error: Any) -> None:
        # Notebook has one of its own while it starts; the panel's scripts are blobs.
        if self.lab.app == "lab" or "blob:" in (error.stack or ""):
            self.errors.append(error.stack or str(error))

    def _is_own(self, url: str) -> bool:
        own = urlparse(self.lab.url)
        other = urlparse(url)
        if other.scheme in ("data", "blob", "about"):
            return True
        return (other.hostname, other.port) == (own.hostname, own.port)

    def _see(self, url: str) -> None:
        if not self._is_own(url):
            self.strangers.append(url)


class Panel:
    """The parts of a workbench on the page, found as a person or a screen reader finds them."""

    def __init__(self, output: Locator) -> None:
        self.root = output.locator(".fuselab-panel")
        self.editor = self.root.locator(".fuselab-editor textarea")
        self.plot = self.root.locator(".fuselab-plot").locator("visible=true")
        self.fault = self.root.locator(".fuselab-fault")

    def button(self, name: str) -> Locator:
        """Return the visible button with this name."""
        # An icon is a letter in a font of its own, and part of the name.
        pattern = re.compile(rf"^\W*{re.escape(name)}$")
        return self.root.get_by_role("button", name=pattern).locator("visible=true")

    def tab(self, name: str) -> Locator:
        """Return a tab by its title."""
        return self.root.get_by_role("tab", name=name)

    def type_at_end_of(self, line: str, text: str, after: str = "") -> None:
        """Put the cursor at the end of the first line with ``line`` after ``after``, and type."""
        value = self.editor.input_value()
        found = value.index(line, value.index(after))
        end = value.index("\n", found + len(line))
        self.editor.focus()
        self.editor.evaluate("(area, end) => area.setSelectionRange(end, end)", end)
        self.editor.page.keyboard.type(text)

    def watch(self, text: str) -> Callable[[], object]:
        """Look out for a text that may be there for a moment only.

        Returns:
            Waits until it was seen since.
        """
        seen = self.root.evaluate_handle(
            """(root, text) => {
                const seen = { was: root.textContent.includes(text) };
                const look = () => { seen.was ||= root.textContent.includes(text); };
                const parts = { subtree: true, childList: true, characterData: true };
                new MutationObserver(look).observe(root, parts);
                return seen;
            }""",
            text,
        )
        return lambda: self.root.page.wait_for_function("seen => seen.was", arg=seen)

    def says(self, text: str | re.Pattern[str], timeout: float = PATIENCE) -> None:
        """Wait until the panel shows a text."""
        shown = self.root.get_by_text(text).locator("visible=true")
        expect(shown.first).to_be_visible(timeout=timeout * SECOND)


def settled(page: Page) -> None:
    """Wait until nothing on the page moves any more: ten frames with every cell where it was."""
    page.evaluate(
        """() => new Promise(done => {
            let before = "", same = 0;
            const look = () => {
                const cells = [...document.querySelectorAll(".jp-Notebook .jp-Cell")];
                const places = cells.map(e => e.getBoundingClientRect());
                const now = JSON.stringify([innerWidth, innerHeight, places]);
                same = now === before ? same + 1 : 0;
                before = now;
                if (same < 10) requestAnimationFrame(look);
                else done();
            };
            look();
        })"""
    )


def eventually(page: Page, wrong: Callable[[], Any]) -> None:
    """Wait until nothing is wrong: what is drawn comes some time after what was asked for.

    Args:
        page: Goes on meanwhile.
        wrong: Returns what is wrong; nothing where all is well.
    """
    deadline = time.monotonic() + PATIENCE
    while found := wrong():
        assert time.monotonic() < deadline, found
        page.wait_for_timeout(100)


def fits(root: Locator) -> None:
    """Wait until no text in ``root`` is cut off sideways."""
    eventually(root.page, lambda: overflowing(root))


def overflowing(root: Locator) -> Any:
    """Return the texts in ``root`` that are cut off sideways by a box that does not scroll.

    Left out: the editor, and what is only spoken, which is cut to nothing on purpose.
    """
    return root.evaluate(
        """root => [...root.querySelectorAll('*')].filter(e => {
            const style = getComputedStyle(e);
            return e.checkVisibility() && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0
                && style.overflowX === 'hidden'
                && !e.closest('.fuselab-editor, .fuselab-spoken');
        }).map(e => e.className + ': ' + e.textContent.slice(0, 60))"""
    )
