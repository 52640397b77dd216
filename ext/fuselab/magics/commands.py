"""The magics: options, errors and display; everything else is the session's."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.displayhook import DisplayHook
from IPython.core.error import UsageError
from IPython.core.magic import (
    Magics,
    cell_magic,
    line_cell_magic,
    line_magic,
    magics_class,
    no_var_expand,
)
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display
from traitlets import Bool, Enum, Float, Unicode

from fusec.errors import FusecError
from fusec.export.forms import FORMS, find_form, form_names
from fusec.target_api.registry import AUTO, NAMES, described
from fuselab.cell.tracebacks import shorten_traceback
from fuselab.display.outcomes import EditRefused, Table
from fuselab.display.pages import subjects
from fuselab.display.pages.page import Page
from fuselab.errors import CellSyntaxError, UnknownName
from fuselab.exporting import export
from fuselab.magics.arguments import (
    explained,
    identifier,
    is_number,
    loop_rules,
    names,
    pairs,
    passes,
    seconds,
)
from fuselab.magics.frontend import frontend_of
from fuselab.session.fused_cell import FusedCell
from fuselab.session.progress import Phases, Progress
from fuselab.session.session import CellOptions, Frontend, Session
from fuselab.session.sharing import share
from fuselab.session.without_gpu import NOT_TUNED

if TYPE_CHECKING:
    pass

DEFAULT = object()

# What ``%fuse_report --show`` knows, and the page about it.
SUBJECTS: dict[str, Callable[[FusedCell], Page]] = {
    "fusion": subjects.fusion_of,
    "stages": subjects.stages_of,
    "guards": subjects.guards_of,
    "numerics": subjects.numerics_of,
    "limits": subjects.limits_of,
    "timings": subjects.timings_of,
}


@magics_class
class FuseMagics(Magics):
    """What a notebook user types; ``%config FuseMagics`` shows and sets the defaults."""

    target = Enum(
        NAMES,
        default_value=AUTO,
        help="Default of --target: auto (C++ for CPU tensors, Triton for CUDA ones), or a target.",
    ).tag(config=True)
    gpu = Unicode(
        "sm_90",
        help="Architecture that Triton kernels are cross-compiled for where there is no GPU.",
    ).tag(config=True)
    tune_seconds = Float(10.0, help="Default of --tune: seconds for all kernels of a cell.").tag(
        config=True
    )
    measure_seconds = Float(0.3, help="Seconds spent on timing each graph.").tag(config=True)
    check = Bool(True, help="Compare every new graph with eager and with float64.").tag(config=True)

    def __init__(self, shell: Any, session: Session, **kwargs: Any) -> None:
        super().__init__(shell, **kwargs)
        self.session = session
        self._shell: Any = shell

    def remember(self, *_: object) -> None:
        """After a cell: write down what was kept or reverted outside of the magics."""
        with contextlib.suppress(Exception):  # an event's error would be shown for every cell
            self.session.sync()

    # --- %%fuse ------------------------------------------------------------------------------

    @no_var_expand
    @line_cell_magic
    @magic_arguments("%fuse")  # its help writes another % in front
    @argument(
        "-t",
        "--target",
        choices=NAMES,
        help=f"What to generate: auto (C++ for CPU tensors, Triton for CUDA ones), {described()}.",
    )
    @argument("-n", "--name", type=identifier, help="The cell's name and its kernels' prefix.")
    @argument(
        "--tune",
        nargs="?",
        const=DEFAULT,
        type=seconds,
        metavar="SECONDS",
        help="Search the kernels' plans and tunables for so many seconds (default 10) and "
        "wait; interrupting keeps the best so far.",
    )
    @argument(
        "--edit",
        nargs="?",
        const=DEFAULT,
        metavar="KERNEL",
        help="Put a kernel into the next cell as %%%%kernel NAME; the slowest if none is named.",
    )
    @argument(
        "--dynamic",
        action="store_const",
        const=True,
        help="Make sizes symbolic at once rather than when they first change.",
    )
    @argument(
        "--matmul",
        choices=("small", "extern", "template", "auto"),
        default="small",
        help="Triton's matrix products: extern calls BLAS, template writes kernels with what comes "
        "before and after in them, small does so on a GPU where that is quicker than calling BLAS, "
        "auto measures both on the GPU and takes the faster one.",
    )
    @argument(
        "--eager-random",
        action="store_true",
        help="Draw exactly the random numbers that eager would; otherwise kernels compute numbers "
        "of their own, repeatable with torch.manual_seed as well.",
    )
    @argument(
        "--cuda-graphs",
        action="store_true",
        help="On a GPU, capture the graph's launches as a CUDA graph and replay it.",
    )
    @argument(
        "--apart",
        type=pairs,
        default=(),
        metavar="A:B",
        help="Computations that must not share a kernel, as the fusion graph calls them: "
        "gelu:layer_norm; add#2:sum,exp:sum.",
    )
    @argument(
        "--together",
        type=pairs,
        default=(),
        metavar="A:B",
        help="Computations that share a kernel wherever that is legal, however little it saves.",
    )
    @argument(
        "--loops",
        type=loop_rules,
        default=(),
        metavar="RULES",
        help="How the loops of kernels are to run, whatever the heuristics say: "
        '"softmax: rows prefetch=0"; the stage of the kernels shows what was decided.',
    )
    @argument(
        "--without",
        type=passes,
        default=(),
        metavar="PASSES",
        help="Leave out passes over the graph, by the names that the stages show: "
        "cse,channels_last.",
    )
    @argument(
        "--out",
        type=names,
        metavar="NAMES",
        help="Only these names (y,z) land in the notebook; the others stay inside the kernels.",
    )
    @argument("--compare", choices=("inductor",), help="Time this compiler on the same graphs.")
    @argument("--save", metavar="DIR", help="Write stages, kernels and report there as files.")
    @argument("--gpu", metavar="ARCH", help="Architecture to cross-compile for: sm_90, gfx942 ...")
    @argument("--no-check", action="store_true", help="Do not compare with eager and float64.")
    @argument("--panel", action="store_true", help="Show the live workbench below the result.")
    @argument("-q", "--quiet", action="store_true", help="Show nothing but the cell's own value.")
    def fuse(self, line: str, cell: str | None = None) -> Any:
        """Compile the cell's tensor code into fused kernels, run it, and show the kernels.

        The cell behaves as it would without %%fuse: names come from the notebook and land in
        it, Out[n] is its last value. Definitions of functions and nn.Module classes alone
        become compiled ones. As a line magic, %fuse takes one expression.

        %%kernel NAME edits a kernel, %fuse_kernels lists them, %fuse_revert NAME undoes an
        edit, %fuse_export NAME writes one to a file, %fuse_report [CELL] shows a result again.
        """
        if cell is None:
            options_text, body = self._split_line(line)
            header = None
        else:
            options_text, body, header = line, cell, f"%%fuse {line}".rstrip()
        args = self._parse(self.fuse, "%%fuse", options_text)
        options = CellOptions(
            target=args.target or self.target,
            name=args.name or "",
            dynamic=args.dynamic,
            matmul=args.matmul,
            eager_random=args.eager_random,
            cuda_graphs=args.cuda_graphs,
            gpu=args.gpu or self.gpu,
            apart=args.apart,
            together=args.together,
            loops=args.loops,
            without=args.without,
            out=args.out,
        )
        frontend = frontend_of(self._shell)
        kind = "line" if cell is None else "cell"
        phases = Phases(self._shell, args.name or f"{kind}_{frontend.number}", quiet=args.quiet)
        begun = None
        try:
            with phases.stopping("run the cell again"):
                if not self.session.knows(body, options):
                    phases.begin("compiling")  # first of all: reading the cell is a part of it
                fused, program = self._prepare(body, options, frontend, header)
                phases.name = fused.name
                begun = self._begin_panel(fused) if args.panel else None
                if not fused.graphs:
                    phases.begin("compiling")
                value = self.session.run(fused, program)
        except BaseException as error:
            if begun is not None:
                begun.close()
            shorten_traceback(self._shell, error)
            raise
        with phases.stopping("its kernels are in use, its results are assigned"):
            try:
                self._after(fused, args, phases)
            finally:
                phases.end()
        return None if _ends_in_semicolon(body) else value

    def _prepare(
        self, body: str, options: CellOptions, frontend: Frontend, header: str | None
    ) -> tuple[Any, Any]:
        try:
            return self.session.prepare(body, options, frontend, header)
        except SyntaxError as error:
            raise CellSyntaxError(error) from None
        except ValueError as error:
            raise UsageError(f"%%fuse: {error}") from None

    def _after(self, fused: FusedCell, args: argparse.Namespace, phases: Phases) -> None:
        """Tune, measure, check and show what the cell became."""
        outcomes = []
        if args.tune is not None:
            phases.end()  # a search has a line of its own
            phases.doing = "tuning"
            outcomes = self._tune(fused, args)
        if not args.quiet:
            checked = self.check and not args.no_check
            fused.update(checked=checked, seconds=self.measure_seconds, phase=phases.begin)
        if args.compare and not fused.simulated:
            phases.begin(f"timing {args.compare}")
            fused.compare(args.compare, self.measure_seconds)
        if args.quiet:
            phases.end()
        else:
            if phases.stands:
                phases.begin("drawing")  # the first plot of a process takes its time
            display(fused)
            for outcome in outcomes:
                display(outcome)
        if args.save:
            self._save(fused, args.save)
        if args.edit is not None:
            self._edit_next(fused, args.edit)
        if args.panel:
            self._show_panel(fused, below=not args.quiet)

    def _begin_panel(self, cell: FusedCell) -> Any:
        """Let the page make its part of the workbench while the cell is compiled."""
        from fuselab.panel import prepare  # imports ipywidgets

        return prepare(cell)

    def _show_panel(self, cell: FusedCell, *, below: bool) -> None:
        """Show the live workbench, perhaps below the cell's result."""
        from fuselab.panel import BelowResult  # imports ipywidgets

        panel = cell.workbench()
        display(BelowResult(panel) if below else panel)

    def _tune(self, fused: FusedCell, args: argparse.Namespace) -> list[Any]:
        budget = self.tune_seconds if args.tune is DEFAULT else args.tune
        if fused.simulated:
            fused.notes.append(NOT_TUNED)
            return []
        tunable = [name for name, kernel in fused.kernels.items() if kernel.can_be_tuned]
        if not tunable:
            fused.notes.append("--tune found no kernel with anything to search")
            return []
        outcomes = []
        with Progress(self._shell, quiet=args.quiet) as progress:
            for name in tunable:
                wanted = f"{fused.name}.{name}"
                outcome = self.session.tune(wanted, budget / len(tunable), shown=progress)
                outcomes.append(outcome)
                if outcome.run.stopped == "stopped":
                    break
        return outcomes

    def _save(self, fused: FusedCell, folder: str) -> None:
        try:
            place = fused.save(folder)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"--save cannot write to {folder!r}: {reason}") from None
        display(Table(("saved",), ((str(place),),)))

    def _edit_next(self, fused: FusedCell, wanted: Any) -> None:
        kernels = fused.kernels
        if not kernels:
            raise UsageError(f"--edit: {fused.name} has no kernel to edit")
        if wanted is DEFAULT:
            times = fused.kernel_times
            wanted = max(kernels, key=lambda n: times[n].median if n in times else 0.0)
        if wanted not in kernels:
            raise UsageError(f"--edit: {UnknownName('kernel', wanted, kernels, '')}")
        self._shell.set_next_input(f"%%kernel {wanted}\n{kernels[wanted].source}")

    # --- %%kernel ----------------------------------------------------------------------------

    @no_var_expand
    @cell_magic
    @magic_arguments("%kernel")
    @argument("name", help="The kernel's name; CELL.NAME where several cells have one.")
    @argument("--strict", action="store_true", help="Raise an error if the edit is refused.")
    @argument("--check-only", action="store_true", help="Check and time it, but do not use it.")
    @argument("-q", "--quiet", action="store_true", help="Show nothing if the edit passes.")
    @argument(
        "--sanitize",
        action="store_true",
        help="Let AddressSanitizer and UndefinedBehaviorSanitizer look at it, too: some seconds.",
    )
    @argument(
        "--trust",
        action="store_true",
        help="Accept what acts on the process: threads, files, variables that outlive a call, "
        "assembly. Nothing protects the notebook from it.",
    )
    def kernel(self, line: str, cell: str) -> None:
        """Edit a kernel: the cell's text is checked, timed, and kept if it passes.

        It is built alone and run in a worker process first, so that a broken edit cannot take
        the notebook down; it is compared with eager and with float64 on the cell's own inputs
        and on random ones. A refused text is never lost: fuselab.edits("NAME") has them all.
        """
        args = self._parse(self.kernel, "%%kernel", line)
        try:
            self.session.find(args.name)
            phases = Phases(self._shell, args.name, quiet=args.quiet)
            with phases.stopping(
                f"the text in use stays, this one is in fuselab.edits({args.name!r})"
            ):
                phases.begin("checking")
                outcome = self.session.edit(
                    args.name,
                    cell,
                    keep=not args.check_only,
                    trust=args.trust,
                    sanitize=args.sanitize,
                )
                phases.end()
        except UnknownName as error:
            raise UsageError(f"%%kernel: {error}") from None
        if args.strict and not outcome.ok:
            raise EditRefused(outcome)
        if not (args.quiet and outcome.ok):
            display(outcome)

    # --- the line magics ---------------------------------------------------------------------

    @line_magic
    @magic_arguments()
    @argument("cell", nargs="?", help="Only this cell's kernels.")
    def fuse_kernels(self, line: str) -> Table:
        """List the kernels: name, cell, target, state, tunables."""
        args = self._parse(self.fuse_kernels, "%fuse_kernels", line)
        cells = [self._cell(args.cell)] if args.cell else list(self.session.cells.values())
        rows = []
        for cell in cells:
            for name, kernel in cell.kernels.items():
                values = " ".join(f"{t.name}={t.value}" for t in kernel.tunables)
                state = kernel.state
                rows.append(
                    (name, cell.name, kernel.target, state, values, kernel.generated.summary)
                )
        head = ("kernel", "cell", "target", "state", "tunables", "what it computes")
        return Table(head, tuple(rows), "no kernels yet: run a %%fuse cell first")

    @line_magic
    @magic_arguments()
    @argument("name", help="The kernel's name; CELL.NAME where several cells have one.")
    def fuse_revert(self, line: str) -> None:
        """Put a kernel's generated text back in use."""
        args = self._parse(self.fuse_revert, "%fuse_revert", line)
        try:
            self.session.revert(args.name)
        except UnknownName as error:
            raise UsageError(f"%fuse_revert: {error}") from None
        display(Table(("kernel", "in use"), ((args.name, "the generated text"),)))

    @line_magic
    @magic_arguments()
    @argument("name", help="The kernel's name; CELL.NAME where several cells have one.")
    @argument("file", nargs="?", help="Where to; without one, a name that is not taken here.")
    @argument(
        "--form",
        choices=form_names(),
        default="file",
        help="; ".join(f"{form.name}: {form.about}" for form in FORMS) + ".",
    )
    def fuse_export(self, line: str) -> None:
        """Write a kernel's text in use as a file that runs without Fuselab."""
        args = self._parse(self.fuse_export, "%fuse_export", line)
        try:
            _, kernel = self.session.find(args.name)
            with self.session.lock:
                if args.file:
                    path = kernel.export(Path(args.file).expanduser(), form=args.form)
                else:
                    path = export(kernel, args.name, args.form, Path.cwd())
        except (UnknownName, FusecError) as error:
            raise UsageError(f"%fuse_export: {error}") from None
        what = find_form(args.form).what
        display(Table(("kernel", "written to", "as"), ((args.name, str(path), what),)))

    @line_magic
    @magic_arguments()
    @argument("cell", nargs="?", help="The cell's name; the latest if none is given.")
    @argument("folder", nargs="?", default=".", help="Where to; here if none is given.")
    def fuse_share(self, line: str) -> None:
        """Write a result as one HTML page that needs no server, and a .py that runs its kernel."""
        args = self._parse(self.fuse_share, "%fuse_share", line)
        cell = self._cell(args.cell)
        cell.update(checked=self.check, seconds=self.measure_seconds)
        try:
            written = share(cell, args.folder)
        except (OSError, FusecError) as error:
            raise UsageError(f"%fuse_share: {error}") from None
        display(Table(("written",), tuple((str(path),) for path in written)))

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
    @argument("--draft", action="store_true", help="All that stands in the way, with its mend.")
    @argument("--panel", action="store_true", help="Show the live workbench below it.")
    def fuse_report(self, line: str) -> None:
        """Show a cell's result again, with times of the kernels now in use.

        With --show, everything that a tab of the workbench has on one subject; with --stage, the
        text of one stage between the cell and machine code.
        """
        args = self._parse(self.fuse_report, "%fuse_report", line)
        cell = self._cell(args.cell)
        if args.draft:
            from fusec.inspect.draft import draft  # imports the compiler

            display(draft(cell.name, cell.functions))
            return
        cell.update(checked=self.check, seconds=self.measure_seconds)
        if args.stage:
            print(self._stage(cell, args.stage))
            return
        if args.show:
            display(SUBJECTS[args.show](cell))
            return
        display(cell)
        if args.panel:
            self._show_panel(cell, below=True)

    @line_magic
    @magic_arguments()
    @argument("first", help="A cell or a kernel.")
    @argument("second", help="Another one.")
    def fuse_compare(self, line: str) -> Page:
        """Compare two cells (timed together, interleaved), or two kernels with their texts."""
        args = self._parse(self.fuse_compare, "%fuse_compare", line)
        if args.first in self.session.cells and args.second in self.session.cells:
            cells = self.session.cells[args.first], self.session.cells[args.second]
            return subjects.compare_cells(*cells, seconds=self.measure_seconds)
        try:
            (one, first), (other, second) = map(self.session.find, (args.first, args.second))
        except UnknownName as error:
            cells_too = f"; cells: {', '.join(self.session.cells)}" if self.session.cells else ""
            raise UsageError(f"%fuse_compare: {error}{cells_too}") from None
        own = {args.first: (one, first), args.second: (other, second)}
        times = {}
        for name, (cell, kernel) in own.items():
            timing = cell.kernel_times.get(_own_name(cell, kernel))
            if timing is not None:
                times[name] = timing
        from fuselab.display.pages import compare

        return compare.kernels_page((args.first, args.second), (first, second), times)

    def _stage(self, cell: FusedCell, wanted: str) -> str:
        from fuselab.display.pages import stages  # imports the compiler

        wanted = wanted.strip("'\"")
        views = stages.stage_views(cell)
        view = stages.find_stage(views, wanted)
        if view is None:
            known = ", ".join(v.title for v in views)
            raise UsageError(
                f"%fuse_report: no stage has {wanted!r} in its name; there is: {known}"
            )
        try:
            return view.read()
        except FusecError as error:
            raise UsageError(f"%fuse_report: {error}") from None

    def _cell(self, name: str | None) -> FusedCell:
        try:
            return self.session.cell(name)
        except UnknownName as error:
            raise UsageError(str(error)) from None

    # --- options -----------------------------------------------------------------------------

    def _parse(self, magic: Any, name: str, line: str) -> argparse.Namespace:
        try:
            return parse_argstring(magic, line)  # type: ignore[no-any-return]
        except UsageError as error:
            raise UsageError(explained(str(error), magic, name)) from None
        except ValueError as error:  # a quotation mark without its partner
            raise UsageError(f"{name}: {str(error).lower()} in {line!r}") from None

    def _split_line(self, line: str) -> tuple[str, str]:
        """Split ``%fuse --target cpp x.relu()`` into its options and its expression."""
        magic: Any = self.fuse
        actions = {s: a for a in magic.parser._actions for s in a.option_strings}
        rest, options = line, []
        while match := re.match(r"\s*(--?[A-Za-z][\w-]*)(=\S+)?(?=\s|$)", rest):
            action = actions.get(match[1])
            if action is None:
                if match[1].startswith("--"):
                    options.append(match[1])  # the parser says what is allowed
                    rest = rest[match.end() :]
                break
            options.append(match[0])
            rest = rest[match.end() :]
            if match[2] or action.nargs == 0:
                continue
            value = re.match(r"\s*(\S+)", rest)
            # An optional value is taken only where it can be nothing else.
            takes = action.nargs != "?" or (value and is_number(value[1]))
            if value and takes:
                options.append(value[0])
                rest = rest[value.end() :]
        if not rest.strip() and not any(o.startswith("--") and o not in actions for o in options):
            raise UsageError("%fuse takes an expression: %fuse x.relu().sum()")
        return " ".join(options), rest.strip() + "\n"


def _own_name(cell: FusedCell, kernel: object) -> str:
    return next((name for name, each in cell.kernels.items() if each is kernel), "")


def _ends_in_semicolon(body: str) -> bool:
    try:
        return bool(DisplayHook.semicolon_at_end_of_expression(body))
    except Exception:  # a cell with magics need not be Python
        return body.rstrip().endswith(";")
