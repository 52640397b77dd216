"""``%%predict``: what a cell would become, beside what the user expects of it."""

from __future__ import annotations

import argparse
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from fusec.target_api.registry import AUTO, NAMES
from fuselab.magics.arguments import identifier, names, parsed
from fuselab.magics.frontend import frontend_of
from fuselab.session.cell_options import CellOptions


def size(text: str) -> int:
    """Read a number of bytes."""
    from fuselab.display.guesses import read_size  # imports the compiler

    try:
        return read_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def count(text: str) -> int:
    """Read a number of things."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


@magics_class
class PredictMagics(Magics):
    """``%%predict`` and ``%predict``."""

    @no_var_expand
    @line_cell_magic
    @magic_arguments("%predict")  # its help writes another % in front
    @argument("-t", "--target", choices=NAMES, default=AUTO, help="As for %%%%fuse.")
    @argument("-n", "--name", type=identifier, help="As for %%%%fuse.")
    @argument("--dynamic", action="store_const", const=True, help="As for %%%%fuse.")
    @argument("--out", type=names, metavar="NAMES", help="As for %%%%fuse.")
    @argument("--kernels", type=count, metavar="N", help="How many kernels you expect.")
    @argument("--calls", type=count, metavar="N", help="How many extern calls you expect.")
    @argument("--breaks", type=count, metavar="N", help="How many graph breaks you expect.")
    @argument("--reads", type=size, metavar="SIZE", help="Bytes read that you expect: 8MB.")
    @argument("--writes", type=size, metavar="SIZE", help="Bytes written that you expect.")
    def predict(self, line: str, cell: str | None = None) -> Any:
        """Say what %%fuse would make of the cell: kernels, bytes, ATen's calls, breaks.

        Nothing is built or run, and no name lands. Say first what you expect
        (--kernels 2 --reads 8MB) and the two are shown side by side. As a line magic,
        %predict takes one expression. Out[n] is the prediction; its .data() is for
        programs.
        """
        options, body = (line, cell) if cell is not None else ("", line + "\n")
        args = parsed(self.predict, "%%predict", options)
        if not body.strip():
            if cell is not None:
                raise UsageError("%%predict: there is no code below it")
            raise UsageError("%predict takes an expression: %predict x.relu().sum()")
        from fuselab.display.guesses import SUBJECTS, guessed  # imports the compiler
        from fuselab.session.predicting import predict_cell

        shell: Any = self.shell
        chosen = CellOptions(
            target=args.target, name=args.name or "", dynamic=args.dynamic, out=args.out
        )
        try:
            found = predict_cell(body, chosen, frontend_of(shell), shell.user_ns)
        except SyntaxError as error:
            # Only the last frame says anything; the text and the caret are in the error.
            raise error.with_traceback(None) from None
        except ValueError as error:
            raise UsageError(f"%%predict: {error}") from None
        said = {name: getattr(args, name) for name in SUBJECTS}
        guesses = {name: value for name, value in said.items() if value is not None}
        return guessed(found, guesses) if guesses else found


__all__ = ["PredictMagics"]
