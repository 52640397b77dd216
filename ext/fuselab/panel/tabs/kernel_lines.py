"""The time of each line of a kernel, beside its lines in the editor and in a sentence below."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from fuselab.display.line_counts import packed_shares, said_of
from fuselab.display.pages.counters import NO_GPU, count_lines_of
from fuselab.panel.context import Bench
from fuselab.panel.widgets import plain
from fuselab.panel.widgets.linking import same_lines

if TYPE_CHECKING:
    from fusec.timing.line_counts import LineCounts

JOB = "lines"


class KernelLines:
    """A button, what was found of each kernel, and the sentence about the one that is shown."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._found: dict[str, LineCounts] = {}
        self.button = plain.button(
            "Profile",
            "Run the kernel alone and see which of its lines the time goes to",
            "microchip",
        )
        self.button.on_click(lambda _: self.start())
        self.said = plain.html(width="100%")

    def start(self) -> None:
        """Look at the kernel that is shown, on the worker."""
        bench = self._bench
        with bench.state:
            name = bench.selected
        if bench.kernel is None:
            return

        def job() -> None:
            cell: Any = bench.cell
            with cell.lock:
                found = count_lines_of(cell, name)
            with bench.state:
                self._found[name] = found

        bench.do(f"Profiling {name}", job, f"{JOB} {name}")

    def found_of(self, name: str) -> LineCounts | None:
        """Return what was seen of a kernel's lines; what the cell knows counts, too."""
        known = getattr(self._bench.cell, "line_counts", {})
        return self._found.get(name) or known.get(name)

    def shares(self, name: str, text: str) -> str:
        """Return the shares of the lines of a text, for the editor: see ``packed_shares``.

        Args:
            name: The kernel's.
            text: The one in the editor; lines that were not there when somebody looked have none.
        """
        counts = self.found_of(name)
        if counts is None:
            return ""
        return packed_shares(counts, same_lines(counts.text, text))

    def refresh(self) -> None:
        """Show what is now the case."""
        bench = self._bench
        self.button.disabled = bench.kernel is None or bench.has(f"{JOB} {bench.selected}")
        if bench.simulated:
            self.button.disabled = True
            self.button.tooltip = f"Not here: {NO_GPU}"
        counts = self.found_of(bench.selected)
        said = said_of(counts) if counts is not None else ""
        if counts is not None and bench.kernel is not None and counts.text != bench.kernel.source:
            said += "; the text in use has changed since"
        self.said.value = f"<div style='opacity:0.75'>{escape(said)}</div>" if said else ""
        plain.show(self.said, bool(said))


__all__ = ["KernelLines"]
