"""Cell source to a plan: what runs as it stands, and what becomes one function to fuse.

A ``%%fuse`` cell behaves as the same cell without it, only faster.  The plan keeps that promise
by changing as little as possible:

* Definitions, imports and magics run as they stand, in order, in the notebook's namespace.
* Each run of other statements becomes **one function without parameters, whose names stay
  global**.  Free names are read from the notebook and assigned names are stored in it by the
  very instructions that a plain cell would use, so helpers that read a name which the cell has
  just assigned, conditional assignments, ``del``, aliases, walrus targets, in-place updates and
  what has landed when an exception stops the cell halfway are all exactly as in a plain cell.
* A loop that prints, reads numbers out of tensors or runs a backward pass stays a Python loop,
  and what is between the breaks is fused; see ``fuselab.cell.loops``.
* A cell of definitions only: its functions and its classes of modules become compiled ones.
* Line numbers are the gutter's: line 1 is the ``%%fuse`` line.

What TorchDynamo asks in return: it looks a global up before it looks at what was stored in it
during the trace, so a name that the cell assigns must exist before the function runs.  Missing
ones are seeded with ``UNBOUND`` and taken away again afterwards; wherever such a name might be
read before it is assigned, the function checks for ``UNBOUND`` and raises the ``NameError`` that
a plain cell would raise, on the same line (`Flow` finds those places).  ``del name`` becomes
``name = UNBOUND`` for the same reason.

Known differences from a plain cell: the annotation in ``name: annotation = value`` is not
evaluated; top-level ``await`` is a syntax error; a function that the cell calls and that asks
whether a global exists which the cell assigns only later finds ``UNBOUND`` there.
"""

from __future__ import annotations
import __future__

import ast
import linecache
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from fusec.report import GraphBreak
from fuselab.cell.segments import CellSource, Segment, is_definition, split_cell


@dataclass(frozen=True)
class CellPlan:
    """How a cell is run.  ``str()`` of it is the text that a reader sees.

    Attributes:
        name: The cell's name; also the name of its functions.
        filename: What tracebacks, guards and kernel comments call the cell.
        text: The whole cell with its ``%%fuse`` line, if any, as registered with ``linecache``.
        segments: What runs, in order.
        out: The only names that land, or None where all assigned names do.
        carried: With ``out``: names that do not land but that several segments share; they
            stand in the notebook while the cell runs and are taken back after it.
        defines: For a cell of definitions only: the functions and classes to compile.
        notes: Hints for the user, a line each.
        flags: Compiler flags from ``__future__`` imports.
    """

    name: str
    filename: str
    text: str = field(repr=False)
    segments: tuple[Segment, ...]
    out: tuple[str, ...] | None = None
    carried: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    flags: int = 0

    @property
    def assigns(self) -> tuple[str, ...]:
        """Every name that the cell binds, sorted."""
        return tuple(sorted({name for segment in self.segments for name in segment.assigns}))

    @property
    def breaks(self) -> tuple[GraphBreak, ...]:
        """The graph breaks that are known before the cell runs."""
        return tuple(found for segment in self.segments for found in segment.breaks)

    def locals_of(self, segment: Segment) -> tuple[str, ...]:
        """Return the names that ``segment`` assigns and keeps to itself."""
        if self.out is None or segment.kind != "fused":
            return ()
        kept = {*self.out, *self.carried}
        return tuple(name for name in segment.assigns if name not in kept)

    def headed(self, header: str | None) -> CellPlan:
        """Return the plan with another first line: options that change nothing of the code.

        Args:
            header: The ``%%fuse`` line as it stands now; None where the cell has none.
        """
        before, line, body = self.text.partition("\n")
        if header is None or header == before:
            return self
        register_source(self.filename, text := header + line + body)
        return replace(self, text=text)

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.filename})"]
        lines += [f"  {segment}" for segment in self.segments]
        if self.defines:
            lines.append(f"  compiled when called: {', '.join(self.defines)}")
        if self.out is not None:
            lines.append(f"  only these names land: {', '.join(self.out)}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def plan_cell(
    body: str,
    *,
    name: str = "cell",
    filename: str = "<fuse cell>",
    header: str | None = "%%fuse",
    out: Iterable[str] | None = None,
    transform: Callable[[str], str] | None = None,
    transform_ast: Callable[[ast.Module], ast.Module] | None = None,
    interactivity: str = "last_expr",
    broken: frozenset[int] = frozenset(),
) -> CellPlan:
    """Split a cell into segments and register its text for tracebacks.

    Args:
        body: The cell without its ``%%fuse`` line.
        name: A Python identifier.
        filename: What tracebacks call the cell; its text is registered under that name.
        header: The ``%%fuse`` line itself, line 1 of the cell; None where ``body`` is all.
        out: The only names that land, or None for all.
        transform: IPython's ``transform_cell``, which turns magics into Python.
        transform_ast: IPython's ``transform_ast``.
        interactivity: IPython's ``ast_node_interactivity``.
        broken: Lines at which TorchDynamo found a graph break in a loop.

    Raises:
        SyntaxError: With the cell's own line, column and text.
        ValueError: ``out`` names something that the cell does not assign.
    """
    blank = len(body) - len(body.lstrip("\n"))
    text = body if header is None else f"{header}\n{body}"
    register_source(filename, text)
    python = transform(body) if transform is not None else body
    # The transformation drops leading blank lines; the gutter does not.
    python = "\n" * (blank + (header is not None)) + python.lstrip("\n")
    tree = ast.parse(python, filename)
    if transform_ast is not None:
        tree = transform_ast(tree)
    # Compiling the whole cell finds the errors that parsing does not (`return` outside a
    # function, `break` outside a loop), and the flags of its __future__ imports.
    try:
        whole = compile(python, filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _described(error, python) from None
    flags = whole.co_flags & _FUTURE_FLAGS
    segments = split_cell(tree.body, CellSource(filename, text, interactivity, flags, broken))
    wanted = None if out is None else tuple(dict.fromkeys(out))
    carried: tuple[str, ...] = ()
    if wanted is not None:
        assigned = {item for segment in segments for item in segment.assigns}
        unknown = [item for item in wanted if item not in assigned]
        if unknown:
            raise ValueError(
                f"--out names {', '.join(unknown)}, which the cell does not assign"
                f" (it assigns {', '.join(sorted(assigned)) or 'nothing'})"
            )
        carried = _shared(segments, wanted)
    return CellPlan(
        name=name,
        filename=filename,
        text=text,
        segments=segments,
        out=wanted,
        carried=carried,
        defines=is_definition(tree.body),
        notes=_notes(segments),
        flags=flags,
    )


def register_source(filename: str, text: str) -> None:
    """Let tracebacks and ``inspect`` find ``text`` under ``filename``."""
    # No modification time: `linecache.checkcache` then never drops the entry.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)


_AWAITS = re.compile(r"'await' outside|asynchronous comprehension outside|'async \w+' outside")
_NO_AWAIT = (
    "await, async for and async with cannot stand in a %%fuse cell outside of a function: await in"
    " a cell of its own, and fuse what comes after it"
)


def _described(error: SyntaxError, text: str) -> SyntaxError:
    """Return an error of Python's compiler with its line, which only the parser's have."""
    lines = text.splitlines()
    number = error.lineno or 0
    line = error.text or (lines[number - 1] if 0 < number <= len(lines) else "")
    # Python has one type for all of these
    said = _NO_AWAIT if _AWAITS.search(str(error.msg)) else error.msg
    return SyntaxError(said, (error.filename, error.lineno, error.offset, line))


# --- splitting -------------------------------------------------------------------------------

# The flags that a code object records of its __future__ statements, all but those of
# nested_scopes and generators, whose bits mean something else by now.
_FUTURE_FLAGS = 0
for _feature in __future__.all_feature_names:
    if _feature not in {"nested_scopes", "generators"}:
        _FUTURE_FLAGS |= getattr(__future__, _feature).compiler_flag


def _shared(segments: tuple[Segment, ...], out: tuple[str, ...]) -> tuple[str, ...]:
    """Return names that do not land but are used beyond the segment that assigns them."""
    shared = set()
    for index, segment in enumerate(segments):
        if segment.kind == "plain":
            continue
        for name in segment.assigns:
            others = segments[:index] + segments[index + 1 :]
            used = any(name in (*s.reads, *s.assigns) for s in others)
            if name not in out and (used or segment.kind == "loop"):
                shared.add(name)
    return tuple(sorted(shared))


def _notes(segments: tuple[Segment, ...]) -> tuple[str, ...]:
    notes = []
    for before, middle, after in zip(segments, segments[1:], segments[2:], strict=False):
        if before.kind == after.kind == "fused" and middle.kind == "plain":
            notes.append(
                f"line {middle.first_line} ({middle.why}) runs as it stands and separates what is"
                " before it from what is after it: put it first to fuse them together"
            )
    return tuple(notes)
