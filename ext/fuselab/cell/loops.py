"""Loops with a graph break in them: the loop runs in Python, what is between the breaks fuses.

TorchDynamo unrolls a loop that it can capture, and gives the whole function up where the loop
prints, reads a number out of a tensor or runs a backward pass: it cannot resume inside a loop.
Training loops do all of that.  Names of a fused cell are global, so such a loop can be taken
apart without changing what it does: its skeleton (the loop, branches, ``break``, the breaking
statements) runs as it stands, and each run of statements in between becomes a fused function.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fusec.report import GraphBreak, SourceLine
from fuselab.cell.scopes import own_scope

# What surely breaks the graph, and how to mend it.
_CALLS = {
    "print": "collect what you want to see and print it after the loop",
    "display": "collect what you want to see and display it after the loop",
    "input": "ask before the loop",
}
_METHODS = {
    "item": "keep the value in a tensor and read it after the loop",
    "tolist": "keep the values in a tensor and read them after the loop",
    "numpy": "keep the values in a tensor and convert it after the loop",
    "backward": "",  # nothing to mend: forward and backward pass are compiled, each by itself
}
_LOOPS = (ast.For, ast.While)
_BLOCKS = (ast.If, ast.With, ast.Try, *_LOOPS)


def piece_name(number: int) -> str:
    """Return the name under which a loop finds its n-th fused piece while it runs."""
    return f"__fuse_piece_{number}__"


@dataclass
class Skeleton:
    """A loop taken apart.

    Attributes:
        statement: The loop, with a call in the place of each run that is fused.
        runs: The runs, in the order of their numbers.
        breaks: The breaking statements that stay in the skeleton.
    """

    statement: ast.stmt
    runs: list[list[ast.stmt]] = field(default_factory=list)
    breaks: list[GraphBreak] = field(default_factory=list)


def breaks_in(statement: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls in a statement that surely break the graph, with their names."""
    for node in own_scope(statement):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in _CALLS:
                yield node, node.func.id
            elif isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
                yield node, node.func.attr


def is_broken_loop(statement: ast.stmt, lines: frozenset[int]) -> bool:
    """Return whether a statement is a loop to take apart.

    Args:
        statement: One at the top level of a cell.
        lines: Where TorchDynamo found a graph break in a loop when the cell ran before.
    """
    if not isinstance(statement, _LOOPS):
        return False
    last = statement.end_lineno or statement.lineno
    found = any(statement.lineno <= line <= last for line in lines)
    return found or next(breaks_in(statement), None) is not None


class Outliner:
    """Takes one loop apart.

    Args:
        filename: The cell's.
        text: The cell's lines, for the reports of breaks.
        must_stay: Returns why a statement must run as it stands; empty where it can be fused.
        lines: Where TorchDynamo found a graph break in a loop when the cell ran before.
        first: The number of the first piece.
    """

    def __init__(
        self,
        filename: str,
        text: str,
        must_stay: Callable[[ast.stmt], str],
        lines: frozenset[int],
        first: int,
    ) -> None:
        self._filename = filename
        self._text = text.splitlines()
        self._must_stay = must_stay
        self._lines = lines
        self._first = first

    def outline(self, loop: ast.stmt) -> Skeleton:
        """Return the loop's skeleton and its pieces; the loop itself is left alone."""
        self._result = Skeleton(loop)
        self._result.statement = self._statement(loop)
        return self._result

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        run: list[ast.stmt] = []

        def flush() -> None:
            if run:
                done.append(self._piece(list(run)))
                run.clear()

        for statement in statements:
            if self._stays(statement):
                flush()
                done.append(self._statement(statement))
            else:
                run.append(statement)
        flush()
        return done

    def _stays(self, statement: ast.stmt) -> bool:
        """Return whether a statement belongs to the skeleton."""
        if isinstance(statement, (ast.Break, ast.Continue, ast.Pass)):
            return True
        if next(breaks_in(statement), None) is not None or self._must_stay(statement):
            return True
        if is_broken_loop(statement, self._lines):
            return True
        if not isinstance(statement, _BLOCKS):
            # A statement that TorchDynamo itself stumbled over.
            last = statement.end_lineno or statement.lineno
            return any(statement.lineno <= line <= last for line in self._lines)
        inner = any(statement.lineno <= line <= (statement.end_lineno or 0) for line in self._lines)
        return inner or _controls_outer_loop(statement)

    def _statement(self, statement: ast.stmt) -> ast.stmt:
        """Return a statement of the skeleton, with what can be fused inside it taken out."""
        if not isinstance(statement, _BLOCKS) or self._must_stay(statement):
            self._note(statement)
            return statement
        values = dict(ast.iter_fields(statement))
        for name in ("body", "orelse", "finalbody"):
            if values.get(name):
                values[name] = self._block(values[name])
        if isinstance(statement, ast.Try):
            values["handlers"] = [self._handler(handler) for handler in statement.handlers]
        return ast.copy_location(type(statement)(**values), statement)

    def _handler(self, handler: ast.ExceptHandler) -> ast.ExceptHandler:
        # What a handler does is for the rare case: it stays as it is.
        for statement in handler.body:
            self._note(statement)
        return handler

    def _note(self, statement: ast.stmt) -> None:
        for call, name in breaks_in(statement):
            line = call.lineno
            text = self._text[line - 1].strip() if line <= len(self._text) else ""
            called = f"{name}()" if name in _CALLS else f".{name}()"
            hint = _CALLS[name] if name in _CALLS else _METHODS[name]
            reason = f"{called} runs between the compiled parts of the loop"
            if hint:
                reason = f"{called} in a loop runs in Python, between the fused parts of the loop"
            where = SourceLine(self._filename, line, text)
            self._result.breaks.append(GraphBreak(reason, hint, where, expected=not hint))

    def _piece(self, run: list[ast.stmt]) -> ast.stmt:
        name = piece_name(self._first + len(self._result.runs))
        self._result.runs.append(run)
        call = ast.Expr(ast.Call(ast.Name(name, ast.Load()), [], []))
        return ast.fix_missing_locations(ast.copy_location(call, run[0]))


def _controls_outer_loop(statement: ast.AST) -> bool:
    """Return whether a block has a ``break`` or ``continue`` of the loop around it."""
    if isinstance(statement, _LOOPS):
        return any(_controls_outer_loop(inner) for inner in statement.orelse)
    if isinstance(statement, (ast.Break, ast.Continue)):
        return True
    return any(
        _controls_outer_loop(child)
        for child in ast.iter_child_nodes(statement)
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
        and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    )
