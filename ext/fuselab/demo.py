"""Run the quickstart as a user would, and report it: `python -m fuselab.demo`.

The notebook is executed in a real Jupyter kernel, cell by cell. Each fused cell is printed
with its kernels, its times and its error against eager. The executed notebook, its HTML and
every plot are left in the output folder, also when a cell fails.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from jinja2 import DictLoader

try:
    import ipykernel as _ipykernel  # noqa: F401 - run by name, in the kernel's process
    import nbformat
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from nbconvert.exporters import HTMLExporter
    from nbformat import NotebookNode
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the demo needs {error.name}: pip install 'fuselab[lab]'", name=error.name
    ) from None

RESULT = "application/vnd.fuselab.result+json"
WRITTEN = ".plots"  # the plots that the last run left in the output folder
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

# JupyterLab's look without the two scripts that its page would fetch from elsewhere: require.js
# serves live widgets and MathJax formulas, and the page has neither.
OFFLINE_PAGE = """\
{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js_requirejs -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
"""


class Exit(IntEnum):
    """What the process says to the shell."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130


class NotebookError(Exception):
    """The notebook cannot be read; the message is for the user."""


@dataclass
class NotebookRun:
    """How far an execution came: the notebook with its outputs, and why it stopped, if it did."""

    notebook: NotebookNode
    code: Exit = Exit.OK
    problem: str = ""
    seconds: float = 0.0
    fused: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the notebook, write the files; return the exit code."""
    options = _parse(argv)
    try:
        notebook = read_notebook(options.notebook)
    except NotebookError as error:
        print(f"fuselab.demo: {error}", file=sys.stderr)
        return Exit.USAGE
    print(f"Running {options.notebook}")
    try:
        run = asyncio.run(execute(notebook, options.notebook.resolve().parent, options.timeout))
    except KeyboardInterrupt:  # before the first cell, or twice
        print("\nInterrupted.", file=sys.stderr)
        return Exit.INTERRUPTED
    for line in table(run.fused):
        print(line)
    if run.problem:
        sys.stdout.flush()
        print(f"\n{run.problem}", file=sys.stderr, flush=True)
    try:
        files = write_files(run.notebook, options.output, options.notebook.stem)
    except OSError as error:
        print(f"fuselab.demo: cannot write to {options.output}: {error}", file=sys.stderr)
        return Exit.FAILED
    print(f"\n{'Stopped' if run.code else 'Done'} after {run.seconds:.1f} s. Written:")
    for path in files:
        print(f"  {path}")
    return run.code


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook, without the outputs it was saved with: all that we show was run now."""
    try:
        notebook: NotebookNode = nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise NotebookError(
            f"no notebook at {path}; run from the project's folder, or name one with --notebook"
        ) from None
    except OSError as error:
        raise NotebookError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, AttributeError, nbformat.ValidationError):
        raise NotebookError(f"{path} is not a notebook in Jupyter's format") from None
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
    notebook.metadata.setdefault("kernelspec", {"name": "python3", "display_name": "Python 3"})
    notebook.metadata.setdefault("language_info", {"name": "python", "pygments_lexer": "ipython3"})
    return notebook


# --- execution -----------------------------------------------------------------------------


class ThisInterpreter(KernelSpecManager):
    """The kernel is the Python that runs this module, whatever kernels are installed."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Describe a kernel on the running interpreter; `kernel_name` does not matter."""
        return KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            display_name="Python 3",
            language="python",
        )


async def execute(notebook: NotebookNode, folder: Path, timeout: int) -> NotebookRun:
    """Execute the cells in order, printing as they go; never raises for what a cell does."""
    run = NotebookRun(notebook)
    started = time.monotonic()
    # Private folders, so that a demo neither finds edits and tunings of an earlier one nor
    # leaves its own, and so that the user's start-up files play no part.
    with tempfile.TemporaryDirectory(prefix="fuselab-demo-", ignore_cleanup_errors=True) as private:
        environment = {**os.environ, "IPYTHONDIR": str(Path(private, "ipython"))}
        environment.setdefault("FUSEC_CACHE_DIR", str(Path(private, "cache")))
        manager = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=ThisInterpreter(),
            connection_file=str(Path(private, "kernel.json")),
            **_transport(private),
        )
        client = NotebookClient(
            notebook,
            km=manager,
            timeout=timeout,
            iopub_timeout=60,  # a busy machine may be late with the last of a cell's output
            raise_on_iopub_timeout=True,
        )
        try:
            await client.async_start_new_kernel(cwd=str(folder), env=environment)
            await client.async_start_new_kernel_client()
            await _execute_cells(client, run)
        except asyncio.CancelledError:
            run.code, run.problem = Exit.INTERRUPTED, "Interrupted before the first cell."
        except (RuntimeError, OSError) as error:
            run.code, run.problem = Exit.FAILED, f"The Jupyter kernel did not start: {error}"
        finally:
            if client.kc is not None:
                client.kc.stop_channels()
            if manager.has_kernel:
                # After a failure there is nothing worth waiting for, and the cell may still run.
                await manager.shutdown_kernel(now=bool(run.code))
    run.seconds = time.monotonic() - started
    return run


def _transport(private: str) -> dict[str, str]:
    """Talk through sockets in a private folder, which no other user of the machine can read.

    The path of such a socket has about a hundred characters at most; TCP has no such limit.
    """
    return {"transport": "ipc", "ip": str(Path(private, "k"))} if len(private) < 80 else {}


async def _execute_cells(client: NotebookClient, run: NotebookRun) -> None:
    cells = [
        (index, cell)
        for index, cell in enumerate(run.notebook.cells)
        if cell.cell_type == "code" and cell.source.strip()
    ]
    for number, (index, cell) in enumerate(cells, start=1):
        where = f"cell {number} of {len(cells)} ({title(cell)})"
        print(f"[{number:{len(str(len(cells)))}}/{len(cells)}] {title(cell)}", end=" ", flush=True)
        started = time.monotonic()
        try:
            await client.async_execute_cell(cell, index, execution_count=number)
        except (asyncio.CancelledError, DeadKernelError) as error:
            # nbclient takes a cancelled wait for a dead kernel as well; the task knows better.
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) or (task and task.cancelling()):
                return _stop(run, Exit.INTERRUPTED, f"Interrupted in {where}.")
            return _stop(run, Exit.FAILED, f"The Jupyter kernel died in {where}.")
        except CellTimeoutError:
            problem = f"{where} did not end within {client.timeout} s (see --timeout)."
            return _stop(run, Exit.FAILED, problem)
        except CellExecutionError as error:
            problem = f"{where} failed with {error.ename}: {ANSI.sub('', error.evalue)}"
            return _stop(run, Exit.FAILED, "\n".join([problem, *traceback_lines(cell)]))
        print(f"{time.monotonic() - started:.1f} s")
        if "raises-exception" in cell.metadata.get("tags", []) and not errors(cell):
            # The notebook shows something refused; that it was not is a failure to report.
            run.code, run.problem = Exit.FAILED, f"{where} should have raised an error: none came."
        found = results(cell)
        name = cell_name(cell, index)
        run.fused += [(result.get("name") or name, result) for result in found]
        for line in report(cell, found):
            print(f"    {line}")
    return None


def _stop(run: NotebookRun, code: Exit, problem: str) -> None:
    print("interrupted" if code is Exit.INTERRUPTED else "failed")
    run.code, run.problem = code, problem


# --- what a cell printed and displayed -----------------------------------------------------


def title(cell: NotebookNode) -> str:
    """Name a cell to a reader: its first line that says something."""
    lines = (line.strip() for line in cell.source.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "comment")
    return first if len(first) <= 60 else first[:57] + "..."


def results(cell: NotebookNode) -> list[dict[str, Any]]:
    """Read the results of the fused code in a cell, as data."""
    found = (data.get(RESULT) for data in _displays(cell))
    return [result for result in found if isinstance(result, dict)]


def cell_name(cell: NotebookNode, index: int) -> str:
    """Name a cell for files: by its result, or else by its place."""
    names = (str(result["name"]) for result in results(cell) if result.get("name"))
    name = re.sub(r"[^\w.-]+", "_", next(names, "")).strip("._")
    return name or f"cell-{index + 1:02d}"


def report(cell: NotebookNode, found: list[dict[str, Any]]) -> list[str]:
    """Describe what a cell fused; an error that the notebook expects is told as well."""
    lines: list[str] = []
    for result in found:
        lines += describe(result)
    if not found and cell.source.lstrip().startswith("%%fuse"):
        for data in _displays(cell):
            lines += str(data.get("text/plain", "")).splitlines()
    for error in errors(cell):  # the cell is tagged raises-exception, or it had ended the run
        message = ANSI.sub("", error.evalue).splitlines() or [""]
        lines += [f"raised, as the notebook expects: {error.ename}: {message[0]}", *message[1:]]
    return lines


def describe(result: dict[str, Any]) -> list[str]:
    """Turn one result into lines: its kernels, its times, its error, its graph breaks."""
    lines = []
    for kernel in result.get("kernels") or []:
        target = f" ({kernel['target']})" if kernel.get("target") else ""
        lines.append(f"kernel {kernel.get('name', '?')}{target}")
        lines += [f"  | {line}".rstrip() for line in kernel.get("head") or []]
    eager, fused = result.get("eager_ms"), result.get("fused_ms")
    if eager is not None and fused is not None:
        times = f"eager {milliseconds(eager)} ms, fused {milliseconds(fused)} ms"
        lines.append(times + ratio(eager, fused))
    if result.get("max_error") is not None:
        of = f", at {result['error_of']}" if result.get("error_of") else ""
        lines.append(f"largest error against eager {float(result['max_error']):.2e}{of}")
    for graph_break in result.get("breaks") or []:
        lines.append(f"graph break: {graph_break}")
    return lines


def table(fused: Iterable[tuple[str, dict[str, Any]]]) -> list[str]:
    """List all fused cells together: name, eager and fused milliseconds, error."""
    rows = [("cell", "eager ms", "fused ms", "error")]
    for name, result in fused:
        eager, ours, error = (result.get(key) for key in ("eager_ms", "fused_ms", "max_error"))
        rows.append(
            (
                name,
                "-" if eager is None else milliseconds(eager),
                "-" if ours is None else milliseconds(ours),
                "-" if error is None else f"{float(error):.2e}",
            )
        )
    if len(rows) == 1:
        return ["", "No cell was fused."]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "",
        *(
            f"{row[0]:<{widths[0]}}  "
            + "  ".join(f"{text:>{w}}" for text, w in zip(row[1:], widths[1:], strict=True))
            for row in rows
        ),
    ]


def milliseconds(value: float) -> str:
    """Write a time to three significant digits."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def ratio(eager: float, fused: float) -> str:
    """Say how the two times compare."""
    if not eager or not fused:
        return ""
    return f" ({eager / fused:.2f}x as fast)"


def traceback_lines(cell: NotebookNode, most: int = 12) -> list[str]:
    """Take the end of the traceback that a failed cell left, without its colors."""
    text = "\n".join("\n".join(error.traceback) for error in errors(cell)[-1:])
    text = ANSI.sub("", text).rstrip()
    return [f"    {line}".rstrip() for line in text.splitlines()[-most:]]


def errors(cell: NotebookNode) -> list[NotebookNode]:
    """List the errors that a cell raised."""
    return [output for output in cell.get("outputs", []) if output.output_type == "error"]


def _displays(cell: NotebookNode) -> list[dict[str, Any]]:
    kinds = ("display_data", "execute_result")
    outputs = cell.get("outputs", [])
    return [output.data for output in outputs if output.output_type in kinds]


# --- files ---------------------------------------------------------------------------------


def write_files(notebook: NotebookNode, folder: Path, stem: str) -> list[Path]:
    """Write the executed notebook, its HTML and its plots; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    _remove_old(folder)
    files = [folder / f"{stem}.ipynb", folder / f"{stem}.html"]
    nbformat.write(notebook, files[0])
    exporter = HTMLExporter(
        template_file="offline.html.j2",
        extra_loaders=[DictLoader({"offline.html.j2": OFFLINE_PAGE})],
    )
    page, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": stem}})
    files[1].write_text(page, encoding="utf-8")
    for index, cell in enumerate(notebook.cells):
        images = [data["image/png"] for data in _displays(cell) if "image/png" in data]
        for image in images:
            path = _unused(folder, cell_name(cell, index), files)
            path.write_bytes(base64.b64decode(image))
            files.append(path)
    (folder / WRITTEN).write_text("".join(f"{path.name}\n" for path in files[2:]))
    return files


def _remove_old(folder: Path) -> None:
    """Remove the plots that an earlier run listed here: they would be taken for this run's."""
    listed = folder / WRITTEN
    if listed.is_file():
        for name in listed.read_text().splitlines():
            if name.endswith(".png") and Path(name).name == name:
                (folder / name).unlink(missing_ok=True)


def _unused(folder: Path, name: str, taken: list[Path]) -> Path:
    path = folder / f"{name}.png"
    number = 2
    while path in taken:
        path = folder / f"{name}-{number}.png"
        number += 1
    return path


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fuselab.demo",
        description="Run a notebook in a Jupyter kernel and report what its cells were fused to.",
    )
    parser.add_argument(
        "--notebook",
        type=Path,
        default=Path("notebooks/quickstart.ipynb"),
        help="the notebook to run (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("build/demo"),
        help="the folder for the results (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=int,
        default=600,
        metavar="SECONDS",
        help="the longest that one cell may take; 0 for no limit (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    if options.output.resolve() == options.notebook.resolve().parent:
        parser.error("--output must not be the notebook's own folder: it would be overwritten")
    if options.timeout < 0:
        parser.error("--timeout takes a number of seconds, 0 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
