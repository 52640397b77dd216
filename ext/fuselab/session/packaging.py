"""Cells as packages: what a cell computes, with its kernels as they are in use, in one file.

A cell reads and assigns the notebook's names; a package's function takes and returns values. So
the cell becomes a function of the tensors and plain values that it reads, which returns what it
assigns by name. It is compiled once more, and every kernel that is as the cell's own was generated
takes over what is in use for that: edits, and what tuning found.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

import fusec
from fusec.errors import FusecError
from fusec.inspect.planner import Call
from fusec.kernel import Kernel
from fusec.packages.runtime import PackageError
from fuselab.errors import FuselabError

if TYPE_CHECKING:
    from fusec.packages.contents import Packaged
    from fuselab.session.fused_cell import FusedCell
    from fuselab.session.session import Session

VALUE = "value"  # what the cell's last expression is called in the result
_PLAIN = (torch.Tensor, bool, int, float, str, type(None))
_COMMENT = re.compile(r"//[^\n]*|#[^\n]*")


class NotPackaged(FuselabError):
    """A cell that cannot become a package."""


def package_cells(
    session: Session, name: str, cells: Sequence[FusedCell], **options: Any
) -> list[Packaged]:
    """Write a package of each cell.

    Args:
        session: Whose names the cells read.
        name: Of the file, without its suffix; of several cells each file has the cell's name, too.
        cells: They have run.
        **options: For ``fusec.package``.

    Raises:
        NotPackaged: A cell is no function of tensors.
        FusecError: It does what no package can hold.
    """
    written: list[Packaged] = []
    for cell in cells:
        stem = name if len(cells) == 1 else f"{name}-{cell.name}"
        path = Path(f"{stem}.fuse").expanduser()
        with cell.lock, _what_was_written(written):
            _require_one_graph(cell)
            function, arguments = cell_function(cell, session.namespace)
            prefix = next((f.options.name for f in cell.functions if f.options.name), "")
            compiled = fusec.compile(function, name=prefix, dynamic=False)
            call = Call((), arguments)

            def before_writing(made: fusec.CompiledFunction, cell: FusedCell = cell) -> None:
                take_over(cell, made.kernels)

            written.append(
                fusec.package(
                    compiled, [call], path, name=cell.name, before_writing=before_writing, **options
                )
            )
    return written


@contextlib.contextmanager
def _what_was_written(written: Sequence[Packaged]) -> Iterator[None]:
    """Add to an error which packages there are already."""
    try:
        yield
    except (FusecError, FuselabError, PackageError) as error:
        names = ", ".join(str(each.path) for each in written)
        if not names:
            raise
        hint = f"; {error.hint}" if error.hint else ""
        raise NotPackaged(error.message, f"{names} was written before{hint}") from None


def _require_one_graph(cell: FusedCell) -> None:
    """Refuse a cell of which it is known that Python runs in between, before it runs again."""
    for each in cell.breaks:
        if not each.expected:
            where = f" ({each.where})" if each.where is not None else ""
            raise NotPackaged(
                f"{cell.name} is more than one graph: {each.reason}{where}", each.hint
            )


def cell_function(
    cell: FusedCell, namespace: dict[str, Any]
) -> tuple[FunctionType, dict[str, Any]]:
    """Return a cell as a function, and arguments for it: the values that its names have now.

    Raises:
        NotPackaged: It cannot be one.
    """
    plan = cell.plan
    if plan is None or plan.defines:
        raise NotPackaged(
            f"{cell.name} defines functions, and does not say which call to package",
            "name one: fusec.package(FUNCTION.fused, [(x, y)], 'name.fuse')",
        )
    if not any(each.kind == "fused" for each in plan.segments):
        raise NotPackaged(f"{cell.name} computes nothing with tensors")
    if len(plan.segments) != 1 or plan.segments[0].kind != "fused":
        first = next((s for s in plan.segments if s.kind != "fused"), plan.segments[0])
        raise NotPackaged(f"{cell.name} is not fused as a whole: {first}", "package a smaller cell")
    (segment,) = plan.segments
    there = (n for n in segment.reads if n in namespace)
    given = {n: namespace[n] for n in there if isinstance(namespace[n], _PLAIN)}
    missing = [n for n in segment.reads if n not in namespace and not hasattr(builtins, n)]
    if missing:
        raise NotPackaged(
            f"{cell.name} reads {', '.join(missing)}, which is not there any more",
            "assign it again, or run the cell again",
        )
    results = tuple(plan.out) if plan.out is not None else segment.assigns
    body = list(segment.statements)
    if segment.value is not None:
        value = ast.Assign([ast.Name(VALUE, ast.Store())], segment.value)
        body.append(ast.copy_location(value, segment.value))
        results = (*results, VALUE)
    keys: list[ast.expr | None] = [ast.Constant(n) for n in results]
    pairs = ast.Dict(keys, [ast.Name(n, ast.Load()) for n in results])
    body.append(ast.copy_location(ast.Return(pairs), body[-1]))
    parameters = ast.arguments([], [ast.arg(n) for n in given], None, [], [], None, [])
    made = ast.FunctionDef(cell.name, parameters, body, [])
    made.lineno, made.col_offset = 1, 0
    if "type_params" in ast.FunctionDef._fields:  # from Python 3.12 on
        made.type_params = []  # type: ignore[attr-defined]
    module = ast.fix_missing_locations(ast.Module([made], []))
    space: dict[str, Any] = {}
    exec(compile(module, plan.filename, "exec", plan.flags, True), dict(namespace), space)
    code = space[cell.name].__code__
    return FunctionType(code, namespace, cell.name), given


def take_over(cell: FusedCell, kernels: Mapping[str, Kernel]) -> None:
    """Put in use for kernels what is in use for the cell's own that were generated alike.

    Raises:
        NotPackaged: An edit of the cell's has no kernel to go to.
    """
    left = {name: kernel for name, kernel in cell.kernels.items() if kernel.state != "generated"}
    for kernel in kernels.values():
        for name, own in list(left.items()):
            if _alike(kernel, own):
                kernel.adopt(own)
                del left[name]
                break
    if left:
        raise NotPackaged(
            f"{', '.join(left)} of {cell.name} is not as it was generated for the cell: "
            "dynamic sizes, or a name that has other sizes now, make another kernel",
            "package it without --dynamic, or run the cell again",
        )


def _alike(kernel: Kernel, own: Kernel) -> bool:
    """Whether two kernels were generated alike, but for the lines of the cell in comments."""
    same = kernel.signature.digest() == own.signature.digest()
    texts = [_COMMENT.sub("", each.heuristic.text) for each in (kernel, own)]
    entries = [each.heuristic.entry for each in (kernel, own)]
    return same and entries[0] == entries[1] and texts[0] == texts[1]


__all__ = ["NotPackaged", "cell_function", "package_cells", "take_over"]
