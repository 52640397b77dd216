"""A result as files: stages, kernels, report."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from fusec.errors import FusecError
from fusec.target_api.registry import find_target
from fuselab.display.totals import unused_name

MIME = "application/vnd.fuselab.result+json"


class Saved(Protocol):
    """What is asked of a cell (``fuselab.session.fused_cell.FusedCell``)."""

    name: str
    source: str
    rules: dict[str, tuple[str, ...]]

    @property
    def lock(self) -> AbstractContextManager[Any, Any]:
        """Held while it runs."""

    @property
    def graphs(self) -> Sequence[Any]:
        """Its compiled graphs."""

    @property
    def kernels(self) -> Mapping[str, Any]:
        """Its kernels, by name."""

    def text(self) -> str:
        """Return the result as a terminal shows it."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Any:
        """Return the result as a notebook shows it."""


def save(cell: Saved, folder: str | Path) -> Path:
    """Write stages, kernels and report as files; return the folder.

    The layout: ``report.txt``, ``report.html``, ``report.json``, ``speed.png``, the cell
    itself, ``kernels/NAME.cpp`` or ``.py``, ``fusion.txt``, and, a graph each,
    ``GRAPH/01-capture.txt`` ... and ``GRAPH/repro.py``, which runs it alone.
    """
    from fusec.inspect.repro import repro_text  # imports the compiler
    from fusec.inspect.whatif import part_view
    from fuselab.display.pages.fusion import fusion_page, parts_of

    root = Path(folder).expanduser() / file_name(cell.name)
    with cell.lock:
        (root / "kernels").mkdir(parents=True, exist_ok=True)
        (root / "cell.py").write_text(cell.source, encoding="utf-8")
        (root / "report.txt").write_text(cell.text() + "\n", encoding="utf-8")
        page = f"<!doctype html><meta charset='utf-8'><title>{file_name(cell.name)}</title>"
        bundle = cell._repr_mimebundle_()
        (root / "report.html").write_text(page + bundle["text/html"], encoding="utf-8")
        report = json.dumps(bundle[MIME], indent=2, ensure_ascii=False)
        (root / "report.json").write_text(report + "\n", encoding="utf-8")
        if "image/png" in bundle:
            (root / "speed.png").write_bytes(base64.b64decode(bundle["image/png"]))
        for name, kernel in cell.kernels.items():
            suffix = find_target(kernel.target).suffixes[0]
            path = root / "kernels" / (file_name(name) + suffix)
            path.write_text(kernel.source, encoding="utf-8")
        taken: dict[str, Any] = {}
        for graph in cell.graphs:
            place = root / unused_name(file_name(graph.name), taken)
            taken[place.name] = graph
            place.mkdir(exist_ok=True)
            for number, stage in enumerate(graph.stages, 1):
                path = place / f"{number:02d}-{file_name(stage.name)}.txt"
                path.write_text(stage.text, encoding="utf-8")
            with contextlib.suppress(FusecError):  # a graph with a module inside has no text
                (place / "repro.py").write_text(repro_text(graph), encoding="utf-8")
        fusion = fusion_page([(n, part_view(part)) for n, _, part in parts_of(cell)], cell.rules)
        (root / "fusion.txt").write_text(fusion.text + "\n", encoding="utf-8")
    return root


def file_name(name: str) -> str:
    """Return a name that any file system takes."""
    return re.sub(r"[^\w.-]+", "_", name).strip("._") or "unnamed"
