"""``%fuse_report``, ``%fuse_compare`` and ``%fuse_share``: results shown again, or given away."""

from __future__ import annotations

from collections.abc import Callable

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from fusec.errors import FusecError
from fuselab.display.outcomes import Table
from fuselab.display.pages import subjects
from fuselab.display.pages.page import Page
from fuselab.errors import UnknownName
from fuselab.magics.arguments import parsed
from fuselab.magics.base import SessionMagics, show_panel
from fuselab.session.fused_cell import FusedCell
from fuselab.session.peers import PEERS
from fuselab.session.sharing import share

# What ``%fuse_report --show`` knows, and the page about it.
SUBJECTS: dict[str, Callable[[FusedCell], Page]] = {
    "fusion": subjects.fusion_of,
    "stages": subjects.stages_of,
    "guards": subjects.guards_of,
    "numerics": subjects.numerics_of,
    "limits": subjects.limits_of,
    "counters": subjects.counters_of,
    "timings": subjects.timings_of,
}


@magics_class
class ReportMagics(SessionMagics):
    """What shows results."""

    @line_magic
    @magic_arguments()
    @argument("cell", nargs="?", help="The cell's name; the latest if none is given.")
    @argument(
        "folder", nargs="?", default=".", help="The folder to write to; this one if none is given."
    )
    def fuse_share(self, line: str) -> None:
        """Write a result as one HTML page without a server, its kernel as a .py to run."""
        args = parsed(self.fuse_share, "%fuse_share", line)
        cell = self.cell(args.cell)
        cell.update(checked=self.defaults.check, seconds=self.defaults.measure_seconds)
        try:
            written = share(cell, args.folder)
        except (OSError, FusecError) as error:
            raise UsageError(f"%fuse_share: {error}") from None
        rows = zip(
            written, ("a page for any browser", "its slowest kernel, to be run"), strict=False
        )
        display(Table(("written to", "what it is"), [(str(path), what) for path, what in rows]))

    @line_magic
    @magic_arguments()
    @argument("cell", nargs="?", help="The cell's name; the latest if none is given.")
    @argument(
        "-s",
        "--show",
        choices=tuple(SUBJECTS),
        help="One subject in full, instead of the result: " + ", ".join(SUBJECTS) + ".",
    )
    @argument("--stage", metavar="NAME", help="Print one stage's text: fx, aten, asm, ptx ...")
    @argument(
        "--draft",
        action="store_true",
        help="Everything that stands in the way, and how to mend it.",
    )
    @argument("--panel", action="store_true", help="Show the live workbench below it.")
    def fuse_report(self, line: str) -> None:
        """Show a cell's result again, with times of the kernels now in use.

        With --show, everything that a tab of the workbench has on one subject; with
        --stage, the text of one stage between the cell and machine code.
        """
        args = parsed(self.fuse_report, "%fuse_report", line)
        cell = self.cell(args.cell)
        if args.draft:
            from fusec.inspect.draft import draft  # imports the compiler

            display(draft(cell.name, cell.functions, of_cell=True))
            return
        cell.update(checked=self.defaults.check, seconds=self.defaults.measure_seconds)
        if args.stage:
            print(_stage(cell, args.stage))
            return
        if args.show:
            display(SUBJECTS[args.show](cell))
            return
        display(cell)
        if args.panel:
            show_panel(cell, below=True)

    @line_magic
    @magic_arguments()
    @argument("first", help="A cell or a kernel.")
    @argument("second", help="Another one.")
    def fuse_compare(self, line: str) -> Page:
        """Compare two cells, timed together in turns, or two kernels with their texts."""
        args = parsed(self.fuse_compare, "%fuse_compare", line)
        if args.first in self.session.cells and args.second in self.session.cells:
            cells = self.session.cells[args.first], self.session.cells[args.second]
            return subjects.compare_cells(*cells, seconds=self.defaults.measure_seconds)
        try:
            (one, first), (other, second) = map(self.session.find, (args.first, args.second))
        except UnknownName as error:
            cells_too = f"; cells: {', '.join(self.session.cells)}" if self.session.cells else ""
            peers = [p for p in (args.first, args.second) if p.lower().endswith(PEERS)]
            how = f"; %%fuse --compare {PEERS[0]} times a cell beside it" if peers else ""
            raise UsageError(f"%fuse_compare: {error}{cells_too}{how}") from None
        own = {args.first: (one, first), args.second: (other, second)}
        times = {}
        for name, (cell, kernel) in own.items():
            timing = cell.kernel_times.get(_own_name(cell, kernel))
            if timing is not None:
                times[name] = timing
        from fuselab.display.pages import compare

        return compare.kernels_page((args.first, args.second), (first, second), times)


def _stage(cell: FusedCell, wanted: str) -> str:
    from fuselab.display.pages import stages  # imports the compiler

    wanted = wanted.strip("'\"")
    views = stages.stage_views(cell)
    view = stages.find_stage(views, wanted)
    if view is None:
        known = "\n".join(f"  {v.title}" for v in views)
        raise UsageError(f"%fuse_report: no stage has {wanted!r} in its name; there is:\n{known}")
    try:
        return view.read()
    except FusecError as error:
        raise UsageError(f"%fuse_report: {error}") from None


def _own_name(cell: FusedCell, kernel: object) -> str:
    return next((name for name, each in cell.kernels.items() if each is kernel), "")


__all__ = ["SUBJECTS", "ReportMagics"]
