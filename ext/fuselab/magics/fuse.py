"""``%%fuse`` and ``%fuse``: a cell or an expression as fused kernels."""

from __future__ import annotations

import argparse
import contextlib
import re
from dataclasses import replace
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display
from traitlets import Bool, Enum, Float, Unicode

from fusec.target_api.registry import AUTO, NAMES, described
from fuselab.cell.tracebacks import shorten_traceback
from fuselab.display import words
from fuselab.display.outcomes import Table
from fuselab.errors import CellSyntaxError, UnknownName
from fuselab.magics.arguments import (
    identifier,
    is_number,
    loop_rules,
    names,
    pairs,
    parsed,
    passes,
    seconds,
)
from fuselab.magics.base import show_panel
from fuselab.magics.frontend import frontend_of
from fuselab.magics.late_figures import LateFigures
from fuselab.session.cell_options import CellOptions, Frontend
from fuselab.session.fused_cell import FusedCell
from fuselab.session.peers import PEERS
from fuselab.session.progress import Phases, Progress
from fuselab.session.session import Session

DEFAULT = object()


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
        self.late = LateFigures(shell)

    def remember(self, *_: object) -> None:
        """After a cell: write down what was kept or reverted outside of the magics."""
        with contextlib.suppress(Exception):  # an event's error would be shown for every cell
            self.session.sync()

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
        "--memory-budget",
        metavar="BYTES",
        help="Compute a linear layer with its cross-entropy some rows at a time where its logits "
        "would take more than that: 400MiB, 0.5GB.",
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
    @argument("--compare", choices=PEERS, help="Time this compiler on the same graphs.")
    @argument("--save", metavar="DIR", help="Write stages, kernels and report there as files.")
    @argument("--gpu", metavar="ARCH", help="Architecture to cross-compile for: sm_90, gfx942 ...")
    @argument("--no-check", action="store_true", help="Do not compare with eager and float64.")
    @argument("--panel", action="store_true", help="Show the live workbench below the result.")
    @argument("-q", "--quiet", action="store_true", help="Show nothing but the cell's own value.")
    def fuse(self, line: str, cell: str | None = None) -> Any:
        """Compile the cell's tensor code into fused kernels, run it, and show them.

        The cell behaves as it would without %%fuse: names come from the notebook and
        land in it, Out[n] is its last value. Definitions of functions and nn.Module
        classes alone become compiled ones. As a line magic, %fuse takes one
        expression.

        %%kernel NAME edits a kernel, %fuse_kernels lists them, %fuse_revert NAME
        undoes an edit, %fuse_export NAME writes one to a file, %fuse_report [CELL]
        shows a result again, %fuse_share [CELL] writes it as a page for others.
        %fuse_help lists all magics, %config FuseMagics the defaults that can be set.
        """
        if cell is None:
            options_text, body = _split_line(self.fuse, line)
            header = None
        else:
            options_text, body, header = line, cell, f"%%fuse {line}".rstrip()
        args = parsed(self.fuse, "%%fuse", options_text)
        if line.strip() and not body.strip():
            self._without_code(args, line)
            return None
        options = CellOptions(
            target=args.target or self.target,
            name=args.name or "",
            dynamic=args.dynamic,
            matmul=args.matmul,
            eager_random=args.eager_random,
            cuda_graphs=args.cuda_graphs,
            memory_budget=args.memory_budget,
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

    def _without_code(self, args: argparse.Namespace, line: str) -> None:
        """Put a kernel that was named into the next cell; all else needs the cell's code.

        Raises:
            UsageError: Nothing can be done without code.
        """
        asked = args.edit if isinstance(args.edit, str) else None
        if asked is None:
            raise UsageError(
                f"%%fuse: there is no code below it; {f'%%fuse {line}'.rstrip()} stands in the "
                "first line of a cell, its tensor code below"
            )
        try:
            _, kernel = self.session.find(asked)
        except UnknownName as error:
            raise UsageError(f"--edit: {error}") from None
        self._shell.set_next_input(f"%%kernel {asked}\n{kernel.source}")

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
            if not self.late.show(
                fused, lambda: fused.update(checked=checked, seconds=self.measure_seconds)
            ):
                display(fused)
            for outcome in outcomes:
                display(replace(outcome, whole=fused.fused))
        if args.save:
            self._save(fused, args.save)
        if args.edit is not None:
            self._edit_next(fused, args.edit)
        if args.panel:
            show_panel(fused, below=not args.quiet)

    def _begin_panel(self, cell: FusedCell) -> Any:
        """Let the page make its part of the workbench while the cell is compiled."""
        from fuselab.panel import prepare  # imports ipywidgets

        return prepare(cell)

    def _tune(self, fused: FusedCell, args: argparse.Namespace) -> list[Any]:
        budget = self.tune_seconds if args.tune is DEFAULT else args.tune
        if fused.simulated:
            fused.notes.append(words.NOT_TUNED)
            return []
        tunable = [name for name, kernel in fused.latest_kernels.items() if kernel.can_be_tuned]
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
            wanted = max(
                fused.latest_kernels or kernels,
                key=lambda n: times[n].median if n in times else 0.0,
            )
        if wanted not in kernels:
            raise UsageError(f"--edit: {UnknownName('kernel', wanted, kernels, '', fused.name)}")
        self._shell.set_next_input(f"%%kernel {wanted}\n{kernels[wanted].source}")


def _split_line(magic: Any, line: str) -> tuple[str, str]:
    """Split ``%fuse --target cpp x.relu()`` into its options and its expression."""
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


def _ends_in_semicolon(body: str) -> bool:
    try:
        return bool(DisplayHook.semicolon_at_end_of_expression(body))
    except Exception:  # a cell with magics need not be Python
        return body.rstrip().endswith(";")


__all__ = ["FuseMagics"]
