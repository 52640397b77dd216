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
import builtins
import dis
import linecache
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Literal, TypeGuard

from fusec.report import GraphBreak
from fuselab.cell.loops import Outliner, is_broken_loop
from fuselab.cell.scopes import Flow, bound_names, own_scope

Kind = Literal["plain", "fused", "loop"]

_OWN_NAMESPACE = frozenset({"exec", "eval", "globals", "locals", "vars", "dir"})
_DEFINITIONS = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
)


@dataclass(frozen=True)
class Segment:
    """A run of consecutive top-level statements that are executed together.

    Attributes:
        kind: ``plain`` runs as it stands, ``fused`` becomes one function, ``loop`` runs in
            Python with fused pieces in it (see ``fuselab.cell.loops``).
        first_line: 1-based, as the gutter shows it.
        last_line: Likewise.
        why: For a plain segment, why it is not fused.
        reads: Names it may read from the notebook, sorted.
        assigns: Names it binds or deletes in the notebook, sorted.
        unsure: Names among ``assigns`` that it may read before it has assigned them, sorted.
        statements: The statements themselves; the last expression is not among them when its
            value is the cell's.
        value: The last expression, where its value is the cell's.
        pieces: The fused parts of a loop.
        breaks: The graph breaks of a loop that are known before it runs.
    """

    kind: Kind
    first_line: int
    last_line: int
    why: str
    reads: tuple[str, ...]
    assigns: tuple[str, ...]
    unsure: tuple[str, ...]
    statements: tuple[ast.stmt, ...] = field(repr=False, compare=False)
    value: ast.expr | None = field(repr=False, compare=False)
    pieces: tuple[Segment, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()

    def __str__(self) -> str:
        lines = f"line {self.first_line}"
        if self.last_line != self.first_line:
            lines = f"lines {self.first_line}-{self.last_line}"
        how = f"as it stands, {self.why}" if self.why else "fused"
        if self.kind == "loop":
            count = len(self.pieces)
            how = f"a loop in Python, {count} fused piece{'s' if count != 1 else ''} in it"
        parts = [f"{lines}: {how}"]
        if self.reads:
            parts.append(f"reads {', '.join(self.reads)}")
        if self.assigns:
            parts.append(f"assigns {', '.join(self.assigns)}")
        if self.value is not None:
            parts.append("gives the cell's value")
        return "; ".join(parts)


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
    whole = compile(python, filename, "exec", dont_inherit=True)
    flags = whole.co_flags & _FUTURE_FLAGS
    segments = _split(tree.body, _Facts(filename, text, interactivity, flags, broken))
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
        defines=_defines(tree.body),
        notes=_notes(segments),
        flags=flags,
    )


def register_source(filename: str, text: str) -> None:
    """Let tracebacks and ``inspect`` find ``text`` under ``filename``."""
    # No modification time: `linecache.checkcache` then never drops the entry.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)


# --- splitting -------------------------------------------------------------------------------

# The flags that a code object records of its __future__ statements, all but those of
# nested_scopes and generators, whose bits mean something else by now.
_FUTURE_FLAGS = 0
for _feature in __future__.all_feature_names:
    if _feature not in {"nested_scopes", "generators"}:
        _FUTURE_FLAGS |= getattr(__future__, _feature).compiler_flag


@dataclass(frozen=True)
class _Facts:
    filename: str
    text: str
    interactivity: str
    flags: int
    broken: frozenset[int]


def _split(statements: list[ast.stmt], facts: _Facts) -> tuple[Segment, ...]:
    only_definitions = bool(_defines(statements))
    groups: list[tuple[Kind, tuple[str, ...], list[ast.stmt]]] = []
    for statement in statements:
        why = _why_plain(statement)
        if not why and only_definitions:
            why = "a constant beside definitions"
        kind: Kind = "plain" if why else "fused"
        if kind == "fused" and is_broken_loop(statement, facts.broken):
            kind = "loop"
        if groups and kind == groups[-1][0] != "loop":
            groups[-1] = (kind, (*groups[-1][1], why), [*groups[-1][2], statement])
        else:
            groups.append((kind, (why,), [statement]))
    segments: list[Segment] = []
    pieces = 0
    for index, (kind, reasons, group) in enumerate(groups):
        why = ", ".join(dict.fromkeys(reasons))
        if kind == "loop":
            segments.append(_loop(group[0], facts, pieces))
            pieces += len(segments[-1].pieces)
        else:
            segments.append(_segment(why, group, facts, last=index == len(groups) - 1))
    return tuple(segments)


def _loop(statement: ast.stmt, facts: _Facts, first: int) -> Segment:
    """Take apart a loop that cannot be captured as a whole."""
    outliner = Outliner(facts.filename, facts.text, _why_plain, facts.broken, first)
    skeleton = outliner.outline(statement)
    pieces = tuple(_segment("", run, facts, last=False) for run in skeleton.runs)
    whole = _segment("", [statement], facts, last=False)
    return replace(
        whole,
        kind="loop",
        statements=(skeleton.statement,),
        pieces=pieces,
        breaks=tuple(skeleton.breaks),
    )


def _segment(why: str, group: list[ast.stmt], facts: _Facts, *, last: bool) -> Segment:
    statements, value = list(group), None
    first_line, last_line = _first_line(group[0]), group[-1].end_lineno or group[-1].lineno
    if last and facts.interactivity != "none":
        final = statements[-1]
        if isinstance(final, ast.Expr):
            value = final.value
            statements.pop()
        elif facts.interactivity == "last_expr_or_assign":
            value = _assigned_value(final)
    if not why and value is None and all(_is_constant(item) for item in statements):
        why = "constants"
    assigns = bound_names([*statements, *([ast.Expr(value)] if value else [])])
    if not why:
        assigns -= _handler_names(group)
    flow = Flow(frozenset(assigns), tuple(statements), value)
    module = ast.Module([*group], [])
    code = compile(module, facts.filename, "exec", facts.flags, dont_inherit=True)
    unsure = {node.id for node in flow.unsure_nodes.values()}
    reads = {
        name
        for name in _global_reads(code)
        if (name not in assigns or name in unsure) and not hasattr(builtins, name)
    }
    return Segment(
        kind="plain" if why else "fused",
        first_line=first_line,
        last_line=last_line,
        why=why,
        reads=tuple(sorted(reads)),
        assigns=tuple(sorted(assigns)),
        unsure=tuple(sorted(unsure)),
        statements=tuple(statements),
        value=value,
    )


def _handler_names(statements: Iterable[ast.stmt]) -> set[str]:
    """Return names that only ``except ... as name`` binds and only its body reads.

    Python deletes such a name at the end of the handler, so it can stay local, and TorchDynamo
    cannot delete a global one.
    """
    inside: set[str] = set()
    outside: set[str] = set()

    def walk(node: ast.AST, handled: frozenset[str]) -> None:
        if isinstance(node, ast.ExceptHandler) and node.name:
            inside.add(node.name)
            handled = handled | {node.name}
        elif isinstance(node, ast.Name) and (
            node.id not in handled or not isinstance(node.ctx, ast.Load)
        ):
            outside.add(node.id)
        for child in ast.iter_child_nodes(node):
            walk(child, handled)

    for statement in statements:
        walk(statement, frozenset())
    return inside - outside


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(int(item.lineno) for item in decorators)])


def _assigned_value(statement: ast.stmt) -> ast.expr | None:
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        target = statement.target
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    return None


def _why_plain(statement: ast.stmt) -> str:
    """Return why a statement must run as it stands; empty where it can be fused."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return "imports"
    if isinstance(statement, (*_DEFINITIONS,)):
        return "definitions"
    if type(statement).__name__ == "TypeAlias":
        return "definitions"
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return "an annotation"
    for node in own_scope(statement):
        if isinstance(node, ast.ClassDef):
            return "a class inside a block"
        if isinstance(node, ast.ImportFrom) and any(item.name == "*" for item in node.names):
            return "imports"
        if _is_deleted(node) and hasattr(builtins, node.id):
            # What comes back into view is the built-in, not nothing.
            return "deletes a name that hides a built-in"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "get_ipython":
                return "a magic"
            if node.func.id in _OWN_NAMESPACE:
                return f"{node.func.id}() looks at the namespace itself"
    return ""


def _is_deleted(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del)


def _is_constant(statement: ast.stmt) -> bool:
    """Return whether a statement computes nothing: a literal, its assignment, or ``pass``."""
    if isinstance(statement, (ast.Pass, ast.Global)):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if statement.value is None or not all(isinstance(item, ast.Name) for item in targets):
            return False
        try:
            ast.literal_eval(statement.value)
        except (ValueError, TypeError, SyntaxError):
            return False
        return True
    return False


def _defines(statements: list[ast.stmt]) -> tuple[str, ...]:
    """Return what a cell of definitions defines; nothing for any other cell."""
    names = []
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            names.append(statement.name)
        elif not isinstance(statement, _DEFINITIONS) and not _is_constant(statement):
            return ()
    return tuple(dict.fromkeys(names))


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


def _global_reads(code: CodeType) -> set[str]:
    """Return every name that ``code`` or a function in it looks up in the notebook."""
    names = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname in {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_CLASSDEREF"}
        or step.opname.startswith("LOAD_FROM_DICT_OR_GLOBALS")
    }
    for item in code.co_consts:
        if isinstance(item, CodeType):
            names |= _global_reads(item)
    return names
