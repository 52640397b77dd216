"""``%%kernel`` and the magics about single kernels: list, revert, export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from fusec.errors import FusecError
from fusec.export.forms import FORMS, find_form, form_names
from fuselab.display.outcomes import EditRefused, Table
from fuselab.errors import UnknownName
from fuselab.exporting import export
from fuselab.magics.arguments import parsed
from fuselab.magics.base import SessionMagics
from fuselab.session.progress import Phases

MOST_ROWS = 20  # that %fuse_kernels shows unasked


def first_sentence(text: str) -> str:
    """Return the first sentence of a magic's help, less what it may be given."""
    parts = (part for part in text.split("\n\n") if not part.strip().startswith(("::", "%")))
    sentence = " ".join(next(parts, "").split())
    return sentence.partition(". ")[0].rstrip(".")


@magics_class
class KernelMagics(SessionMagics):
    """What changes, lists and writes kernels."""

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

        It is built alone and run in a worker process first, so that a broken edit
        cannot take the notebook down; it is compared with eager and with float64 on
        the cell's own inputs and on random ones. A refused text is never lost:
        fuselab.edits("NAME") has them all.
        """
        args = parsed(self.kernel, "%%kernel", line)
        try:
            _, known = self.session.find(args.name)
            if not cell.strip():
                # What is wanted is the text to begin with: it takes the place of the empty cell.
                shell: Any = self.shell
                options = f"%%kernel {line}".rstrip()
                shell.set_next_input(f"{options}\n{known.source}", replace=True)
                return
            phases = Phases(self.shell, args.name, quiet=args.quiet)
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

    @line_magic
    @magic_arguments()
    @argument("cell", nargs="?", help="Only this cell's kernels.")
    @argument("--all", action="store_true", help="All kernels, however many there are.")
    def fuse_kernels(self, line: str) -> Table:
        """List the kernels, the latest cell's first, with target, state and tunables."""
        args = parsed(self.fuse_kernels, "%fuse_kernels", line)
        every = [*reversed(self.session.cells.values())]
        cells = [self.cell(args.cell)] if args.cell else every
        rows = []
        for cell in cells:
            for name, kernel in cell.kernels.items():
                values = " ".join(f"{t.name}={t.value}" for t in kernel.tunables)
                state = kernel.state
                rows.append(
                    (name, cell.name, kernel.target, state, values, kernel.generated.summary)
                )
        head = ("kernel", "cell", "target", "state", "tunables", "what it computes")
        shown = rows if args.cell or args.all or len(rows) <= MOST_ROWS else rows[:MOST_ROWS]
        more = ""
        if left := rows[len(shown) :]:
            names = ", ".join(dict.fromkeys(row[1] for row in left))
            more = (
                f"{len(left)} more, of {names}: %fuse_kernels --all lists them, "
                f"%fuse_kernels {left[0][1]} those of one cell"
            )
        return Table(head, tuple(shown), "no kernels yet: run a %%fuse cell first", more)

    @line_magic
    @magic_arguments()
    def fuse_help(self, line: str) -> Table:
        """List what Fuselab adds to a notebook; NAME? behind one explains it."""
        parsed(self.fuse_help, "%fuse_help", line)
        shell: Any = self.shell
        found: list[tuple[str, str]] = []
        for kind, sign in (("cell", "%%"), ("line", "%")):
            for name, magic in shell.magics_manager.magics[kind].items():
                if getattr(type(getattr(magic, "__self__", None)), "__module__", "").startswith(
                    "fuselab."
                ) and not any(name == known[0].lstrip("%") for known in found):
                    found.append((f"{sign}{name}", first_sentence(magic.__doc__ or "")))
        ordered = sorted(found, key=lambda row: (not row[0].startswith("%%"), row[0]))
        return Table(("magic", "what it does"), ordered, more="%%fuse? explains one in full")

    @line_magic
    @magic_arguments()
    @argument("name", help="The kernel's name; CELL.NAME where several cells have one.")
    def fuse_revert(self, line: str) -> None:
        """Put a kernel's generated text back in use."""
        args = parsed(self.fuse_revert, "%fuse_revert", line)
        try:
            self.session.revert(args.name)
        except UnknownName as error:
            raise UsageError(f"%fuse_revert: {error}") from None
        display(Table(("kernel", "in use"), ((args.name, "the generated text"),)))

    @line_magic
    @magic_arguments()
    @argument("name", help="The kernel's name; CELL.NAME where several cells have one.")
    @argument(
        "file", nargs="?", help="The file to write; without one, a name that is not taken here."
    )
    @argument(
        "--form",
        choices=form_names(),
        default="file",
        help="; ".join(f"{form.name}: {form.about}" for form in FORMS) + ".",
    )
    def fuse_export(self, line: str) -> None:
        """Write a kernel's text in use as a file that runs without Fuselab."""
        args = parsed(self.fuse_export, "%fuse_export", line)
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


__all__ = ["KernelMagics"]
