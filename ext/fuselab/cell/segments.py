"""The stretches of a cell: which statements are compiled, and why others are not."""

from __future__ import annotations

import ast
import builtins
import dis
from collections.abc import Iterable
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
class CellSource:
    """A cell's text, and how a notebook runs it; ``broken`` are lines of loops left alone."""

    filename: str
    text: str
    interactivity: str
    flags: int
    broken: frozenset[int]


def split_cell(statements: list[ast.stmt], facts: CellSource) -> tuple[Segment, ...]:
    """Return a cell's statements as stretches of one kind each."""
    only_definitions = bool(is_definition(statements))
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


def _loop(statement: ast.stmt, facts: CellSource, first: int) -> Segment:
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


def _segment(why: str, group: list[ast.stmt], facts: CellSource, *, last: bool) -> Segment:
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


def is_definition(statements: list[ast.stmt]) -> tuple[str, ...]:
    """Return what a cell of definitions defines; nothing for any other cell."""
    names = []
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            names.append(statement.name)
        elif not isinstance(statement, _DEFINITIONS) and not _is_constant(statement):
            return ()
    return tuple(dict.fromkeys(names))


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


__all__ = ["CellSource", "Kind", "Segment", "is_definition", "split_cell"]
