"""``%fuse_package``: cells as packages, with their kernels as they are in use."""

from __future__ import annotations

import argparse
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from fusec.errors import FusecError
from fuselab.display.outcomes import Table
from fuselab.errors import FuselabError, UnknownName
from fuselab.magics.arguments import parsed
from fuselab.magics.base import SessionMagics


def dimensions(text: str) -> dict[str, tuple[int, ...]]:
    """Read dimensions of tensors: ``x:0,x:1,y:0``."""
    found: dict[str, tuple[int, ...]] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, number = part.partition(":")
        if not name.isidentifier() or not number.isdigit():
            raise argparse.ArgumentTypeError(
                f"{part!r} is not a dimension of a tensor, such as x:0"
            )
        found[name] = (*found.get(name, ()), int(number))
    return found


@magics_class
class PackageMagics(SessionMagics):
    """``%fuse_package``."""

    @line_magic
    @magic_arguments()
    @argument("name", help="Of the file: NAME.fuse, or NAME-CELL.fuse for several cells.")
    @argument(
        "cells",
        nargs="*",
        help="The cells' names; without one, the cell that is called NAME, or the latest.",
    )
    @argument(
        "--dynamic",
        type=dimensions,
        default={},
        metavar="DIMS",
        help="Dimensions whose sizes stay dynamic: x:0,y:0.",
    )
    @argument(
        "--weights",
        choices=("inside", "reference"),
        default="inside",
        help="Tensors that the cell's modules hold: in the file, or in a .safetensors beside it.",
    )
    @argument(
        "--binaries",
        metavar="KINDS",
        help="For which processors, such as x86-64-v3,aarch64; this one and plainer ones by "
        "default.",
    )
    def fuse_package(self, line: str) -> None:
        """Write cells as packages that load without compiling, edits and tuning included.

        A package is a function of the tensors and numbers that the cell reads, and
        returns what the cell assigns, by name: fusec.load("NAME.fuse")(x=x)["y"].
        """
        args = parsed(self.fuse_package, "%fuse_package", line)
        from fusec.packages.runtime import PackageError
        from fuselab.session.packaging import package_cells  # imports the compiler

        options: dict[str, Any] = {"dynamic": args.dynamic, "weights": args.weights}
        if args.binaries:
            options["binaries"] = tuple(args.binaries.split(","))
        try:
            name = args.name.removesuffix(".fuse")
            # Who writes a cell's name alone means that cell, not the latest one.
            own = [name] if name in self.session.cells else [None]
            cells = [self.session.cell(each) for each in args.cells or own]
            written = package_cells(self.session, name, cells, **options)
        except (UnknownName, FuselabError, FusecError, PackageError, OSError) as error:
            raise UsageError(f"%fuse_package: {error}") from None
        rows = []
        for cell, each in zip(cells, written, strict=True):
            reasons = {r: None for found in each.needs_torch.values() for r in found}
            notes = [*(f"edited: {k}" for k in each.edited), *each.fixed]
            notes += [f"needs torch: {reason}" for reason in reasons]
            size = f"{each.size / 1e6:.2f} MB"
            said = "; ".join(notes if reasons else [*notes, "runs without torch"])
            calls = "; ".join(one.partition(": ")[2] for one in each.specializations)
            rows.append((cell.name, str(each.path), calls, size, ", ".join(each.binaries), said))
        head = ("cell", "written to", "for calls like", "size", "processors", "notes")
        display(Table(head, tuple(rows)))


__all__ = ["PackageMagics"]
