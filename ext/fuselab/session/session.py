"""What a notebook has fused: its cells, its kernels, their edits and tuning runs.

One session a notebook; one re-entrant lock round compile, launch and drawing, which the panel
shares.  A cell that runs again unchanged keeps its compiled functions.
"""

from __future__ import annotations

import contextlib
import linecache
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fusec import warm
from fusec.cache import CacheStore
from fusec.tuning_report import TuningRun
from fuselab.cell.plan import CellPlan, plan_cell
from fuselab.cell.program import CellProgram, Compiled, Compiler
from fuselab.display.outcomes import TuningOutcome
from fuselab.errors import UnknownName
from fuselab.session.book import KernelBook
from fuselab.session.cell_options import CellOptions, Frontend
from fuselab.session.fused_cell import FusedCell
from fuselab.session.kernel_edits import KernelEdits
from fuselab.session.progress import Progress
from fuselab.session.tuning_job import TuningJob

if TYPE_CHECKING:
    from fusec.kernel import Kernel

# A program keeps its graphs' latest inputs alive, so their number is bounded.
MOST_PROGRAMS = 32


@dataclass(frozen=True)
class _Entry:
    """A program and its result, kept for the next run of the same cell."""

    program: CellProgram
    cell: FusedCell
    cell_id: str | None
    plan: Callable[[frozenset[int]], CellPlan]


class Session(KernelEdits):
    """Everything that one notebook has fused.

    Args:
        namespace: The notebook's names.
        compiler: What compiles a function; ``fusec.compile`` if None.
        store: Where kept edits go; the user's cache if None.

    Attributes:
        cells: By name, the latest run last.
        lock: Round compile, launch and drawing; re-entrant.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        *,
        compiler: Callable[..., Compiled] | None = None,
        store: CacheStore | None = None,
    ) -> None:
        super().__init__(namespace, store)
        self._compiler = compiler
        self._programs: OrderedDict[tuple[str, CellOptions], _Entry] = OrderedDict()

    # --- cells -------------------------------------------------------------------------------

    @property
    def kernels(self) -> Mapping[str, Kernel]:
        """Every kernel by name; where two cells have one of the same name, the later cell's."""
        return KernelBook(self)

    @property
    def last(self) -> FusedCell | None:
        """The cell that ran last."""
        return next(reversed(self.cells.values()), None)

    def knows(self, body: str, options: CellOptions) -> bool:
        """Whether a cell has been planned before, and need not be again."""
        entry = self._programs.get((body, options))
        return entry is not None and not entry.program.stale

    def prepare(
        self, body: str, options: CellOptions, frontend: Frontend, header: str | None = "%%fuse"
    ) -> tuple[FusedCell, CellProgram]:
        """Plan a cell, or find it where it has run before.

        Raises:
            SyntaxError: With the cell's own line.
            ValueError: ``options.out`` names something that the cell does not assign.
        """
        with self.lock:
            key = (body, options)
            entry = self._programs.get(key)
            if entry is not None and entry.program.stale:
                self._drop(self._programs.pop(key))
                entry = None
            if entry is None:
                self._forget_earlier(frontend.cell_id, options.name)
                entry = self._new_entry(body, options, frontend, header)
                self._programs[key] = entry
                while len(self._programs) > MOST_PROGRAMS:
                    _, old = self._programs.popitem(last=False)
                    self._drop(old)
            elif entry.cell.plan is not None:
                entry.cell.plan = entry.cell.plan.headed(header)
            self._programs.move_to_end(key)
            # Last in the order of `cells` is the cell that ran last.
            self.cells.pop(entry.cell.name, None)
            self.cells[entry.cell.name] = entry.cell
            return entry.cell, entry.program

    def run(self, cell: FusedCell, program: CellProgram) -> Any:
        """Run a prepared cell and return its value; its names land even where it raises."""
        with self.lock:
            cell.begin_run()
            try:
                value = program.run()
            except BaseException:
                cell.stopped = True
                raise
            finally:
                self.adopt(cell)
            self._plan_around_loops(cell, program)
            return value

    def _plan_around_loops(self, cell: FusedCell, program: CellProgram) -> None:
        """Plan a cell anew that has a loop which TorchDynamo could not capture."""
        entry = next((e for e in self._programs.values() if e.program is program), None)
        lines = frozenset(program.failures.loops)
        if entry is None or not lines:
            return
        plan = entry.plan(lines)
        if [s.kind for s in plan.segments] == [s.kind for s in program.plan.segments]:
            return  # the loop is in a function that the cell calls
        program.replan(plan)
        cell.plan, cell.replanned = plan, True
        where = ", ".join(str(line) for line in sorted(lines))
        cell.notes.append(
            f"a loop breaks the graph (line {where}) and ran in eager;"
            " from the next run on the cell fuses what is between the breaks"
        )

    def _new_entry(
        self, body: str, options: CellOptions, frontend: Frontend, header: str | None
    ) -> _Entry:
        kind = "cell" if header is not None else "line"
        name = options.name or self._unused_name(f"{kind}_{frontend.number}")
        filename = _unused_file(f"<fuse {kind} {frontend.number}>", header, body)

        def plan_with(broken: frozenset[int]) -> CellPlan:
            return plan_cell(
                body,
                name=name,
                filename=filename,
                header=header,
                out=options.out,
                transform=frontend.transform,
                transform_ast=frontend.transform_ast,
                interactivity=frontend.interactivity,
                broken=broken,
            )

        plan = plan_with(frozenset())
        warm.start_interpreter(options.target)
        # What is compiled later follows the schedule that the panel has put in use by then.
        rules = {"apart": options.apart, "together": options.together}
        program = CellProgram(plan, self.namespace, self._compile_with(options, rules))
        cell = FusedCell(
            name,
            body,
            lambda: program.functions,
            filename=filename,
            plan=plan,
            lock=self.lock,
            pending=plan.defines,
            failures_so_far=lambda: program.failures,
            rules=rules,
        )
        return _Entry(program, cell, frontend.cell_id, plan_with)

    def _compile_with(self, options: CellOptions, rules: Mapping[str, tuple[str, ...]]) -> Compiler:
        def compiler(function: Callable[..., Any], defines: str) -> Compiled:
            chosen = options.for_compiler() | dict(rules)
            if options.name and defines:
                # Kernels of several functions of one cell are told apart by the function.
                chosen["name"] = f"{options.name}_{defines}"
            return self.compile(function, **chosen)

        return compiler

    def compile(self, function: Any, **options: Any) -> Compiled:
        """Compile a function or module with this session's compiler."""
        if self._compiler is not None:
            return self._compiler(function, **options)
        import fusec

        compiled: Compiled = fusec.compile(function, keep_inputs=True, **options)
        return compiled

    def _unused_name(self, name: str) -> str:
        candidate, number = name, 2
        while candidate in self.cells:
            candidate = f"{name}_{number}"
            number += 1
        return candidate

    def _forget_earlier(self, cell_id: str | None, name: str) -> None:
        """Drop the programs of a cell that was changed: they hold its old inputs."""
        for key, entry in list(self._programs.items()):
            same_cell = cell_id is not None and entry.cell_id == cell_id
            if same_cell or (name and entry.cell.name == name):
                del self._programs[key]
                self._drop(entry)

    def _drop(self, entry: _Entry) -> None:
        self.sync()
        for kernel in entry.cell.kernels.values():
            self._seen.pop(id(kernel), None)
        if self.cells.get(entry.cell.name) is entry.cell:
            del self.cells[entry.cell.name]

    def cell(self, name: str | None = None) -> FusedCell:
        """Return a cell by name, or the latest. Raises UnknownName."""
        if not name:
            if self.last is None:
                raise UnknownName("cell", "", (), "run a %%fuse cell first")
            return self.last
        if name not in self.cells:
            raise UnknownName("cell", name, self.cells, "run a %%fuse cell first")
        return self.cells[name]

    def close(self) -> None:
        """At the end of the process: write down edits and let go of everything compiled."""
        self.sync()
        # TorchDynamo takes its names out of the notebook when compiled code goes; IPython has
        # emptied the notebook by then, and each name would be a complaint on standard error.
        with contextlib.suppress(Exception):
            torch._dynamo.utils.CleanupManager.instance.refs.clear()

    # --- kernels -----------------------------------------------------------------------------

    def find(self, name: str) -> tuple[FusedCell, Kernel]:
        """Return a kernel and its cell; ``CELL.KERNEL`` picks one of several of a name.

        Raises:
            UnknownName: With the known names and the nearest one.
        """
        owner, _, own = name.rpartition(".")
        for cell in reversed(self.cells.values()):
            if owner in ("", cell.name) and own in cell.kernels:
                return cell, cell.kernels[own]
        named = self.cells.get(name)
        if named is not None and len(named.kernels) == 1:
            return named, next(iter(named.kernels.values()))
        if named is not None and named.kernels:
            kernels = [f"{name}.{each}" for each in named.kernels]
            raise UnknownName("kernel", name, kernels, "", cell=name)
        nothing = "no cell has a kernel yet: run a %%fuse cell first"
        raise UnknownName("kernel", name, self.kernels, nothing, cells=self.cells)

    # --- tuning ------------------------------------------------------------------------------

    def tune(
        self,
        name: str,
        budget: float,
        progress: Callable[[TuningRun], None] | None = None,
        shown: Progress | None = None,
    ) -> TuningOutcome:
        """Tune a kernel on a worker thread and wait; Ctrl-C keeps the best so far.

        Args:
            name: The kernel's.
            budget: Seconds.
            progress: Called on this thread, at most four times a second.
            shown: Where the search is shown, drawn where there is a place for it.
        """
        _, kernel = self.find(name)
        draw = None
        if shown is not None:
            shown.begin(kernel.name)
            if shown.drawn:
                from fuselab.display.plots.search import SearchPicture

                drawing = SearchPicture()
                draw = lambda run: drawing.draw(run)[0]  # noqa: E731
        from fusec.random import generators_kept  # imports the compiler

        with generators_kept():  # as they were before the thread draws its first number
            job = TuningJob(kernel, budget, self.lock, draw)
            if shown is not None:
                progress = lambda run: job.show(run, shown.show)  # noqa: E731
            try:
                job.wait(progress)
            except KeyboardInterrupt:
                # The search ends after the configuration that it is measuring.
                job.stop.set()
                job.wait(None)
        run = job.result()
        self._seen[id(kernel)] = kernel, kernel.source
        return TuningOutcome(kernel.name, run)


def _unused_file(name: str, header: str | None, body: str) -> str:
    """Return a file name under which no other text is registered."""
    text = body if header is None else f"{header}\n{body}"
    candidate, number = name, 2
    while candidate in linecache.cache and "".join(linecache.getlines(candidate)) != text:
        candidate = f"{name[:-1]}.{number}>"
        number += 1
    return candidate
