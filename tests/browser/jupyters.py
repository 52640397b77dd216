"""The panel's browser tests in other versions of Jupyter: ``make test-jupyter``.

``make test`` has one ipykernel and JupyterLab.  Which thread of the kernel runs a widget's callback
differs between versions of ipykernel, and Notebook 7 has another shell round the notebook.  Each of
them is installed under ``build/jupyter``: an ipykernel is a folder that goes before the installed
one, Notebook an environment that has the server and no torch; the kernel is always this Python's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "jupyter"
TESTS = ["tests/browser/test_workbench.py", "tests/browser/test_tabs.py"]

Environment = dict[str, str]


def install(python: Path | str, *arguments: str) -> None:
    """Run pip."""
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *arguments], check=True)


def ipykernel(version: str) -> Environment:
    """Make a folder with an ipykernel and what only older ones need."""
    folder = PLACE / f"ipykernel-{version}"
    if not folder.exists():
        wanted = [f"ipykernel=={version}", "nest-asyncio==1.6.0"]
        install(sys.executable, "--no-deps", "--target", str(folder), *wanted)
    return {"FUSELAB_IPYKERNEL": str(folder)}


def notebook(version: str) -> Environment:
    """Make an environment with Notebook and the widgets' frontends."""
    folder = PLACE / f"notebook-{version}"
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        venv.create(folder, with_pip=True, clear=True)
        pins = str(ROOT / "constraints.txt")
        install(python, "-c", pins, f"notebook=={version}", "ipywidgets", "anywidget")
        (folder / ".installed").touch()
    return {"FUSELAB_JUPYTER": "notebook", "FUSELAB_JUPYTER_PYTHON": str(python)}


def marimo(version: str) -> Environment:
    """Make a folder with marimo; it needs an older Markdown extension than the site does."""
    folder = PLACE / f"marimo-{version}"
    if not (folder / "marimo").exists():
        folder.mkdir(parents=True, exist_ok=True)
        pins = folder / "constraints.txt"
        every = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        pins.write_text("\n".join(p for p in every if not p.startswith("pymdown-extensions")))
        install(sys.executable, "-c", str(pins), "--target", str(folder), f"marimo=={version}")
    return {"FUSELAB_MARIMO": str(folder)}


# The newest ipykernel is the one of constraints.txt, with which `make test` runs.
JUPYTERS: dict[str, Callable[[], Environment]] = {
    "ipykernel-6.30.1": lambda: ipykernel("6.30.1"),
    "ipykernel-7.3.0": lambda: ipykernel("7.3.0"),
    "notebook-7.6.5": lambda: notebook("7.6.5"),
    "marimo-0.25.2": lambda: marimo("0.25.2"),
}
# What a frontend without widgets has.
OWN = {"marimo-0.25.2": ["tests/browser/test_marimo.py"]}


def main() -> int:
    """Run the tests in each; return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=JUPYTERS, default=list(JUPYTERS))
    options, rest = parser.parse_known_args()
    # Options of pytest alone choose no tests: all of the project's would run.
    chosen = any(each.startswith("tests/") for each in rest)
    outcomes = []
    for name in options.only:
        environment = os.environ | JUPYTERS[name]() | {"FUSELAB_REQUIRE_BROWSER": "1"}
        started = time.monotonic()
        print(f"--- {name}", flush=True)
        tests = [] if chosen else OWN.get(name, TESTS)
        command = [sys.executable, "-m", "pytest", *tests, *rest]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        seconds = time.monotonic() - started
        outcomes.append((name, code, f"{'failed' if code else 'passed'} in {seconds:.0f} s"))
    for name, _, outcome in outcomes:
        print(f"{name:18} {outcome}")
    return sum(code != 0 for _, code, _ in outcomes)


if __name__ == "__main__":
    sys.exit(main())
