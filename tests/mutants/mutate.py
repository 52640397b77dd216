"""Finds what can be got wrong in a source text: small changes of one place each.

A change replaces a span of the text and keeps its line breaks, so that every other line keeps its
number.  What is only said (annotations, docstrings, f-strings, messages of errors) is left alone.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
COMPUTED: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.Mod: "//",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
EXCHANGED = {"min": "max", "max": "min", "any": "all", "all": "any"}
Span = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    """A source text with one mistake in it.

    Attributes:
        file: The file, from the root.
        where: Qualified name of the function or class around it; empty on module level.
        kind: What was done: ``comparison``, ``constant`` ...
        original: The lines that it is in, as they were, with single spaces.
        mutated: The same lines afterwards.
        number: Which of the function's places that read the same.
        imported: Whether it runs when the module is imported.
        lines: First and last line of what runs differently.
        span: What is replaced, in bytes.
        text: What by.
    """

    file: str
    where: str
    kind: str
    original: str
    mutated: str
    number: int
    imported: bool
    lines: tuple[int, int]
    span: Span
    text: str

    @property
    def key(self) -> str:
        """A short name that stays the same while nobody changes these lines."""
        parts = (self.file, self.where, self.original, self.mutated, str(self.number))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]

    def applied(self, source: str) -> str:
        """Return the source with the mistake in it."""
        raw = source.encode()
        return (raw[: self.span[0]] + self.text.encode() + raw[self.span[1] :]).decode()

    def is_valid(self, source: str) -> bool:
        """Whether what comes out is a program at all."""
        try:
            compile(self.applied(source), self.file, "exec", dont_inherit=True)
        except SyntaxError:
            return False
        return True


def mutants(file: str, source: str) -> list[Mutant]:
    """Return every mutant of a source text, in order of place.

    Args:
        file: What the file is called.
        source: Its text.
    """
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    counts: Counter[tuple[str, ...]] = Counter()
    found = []
    for change in sorted(finder.found, key=lambda c: (c.span, c.kind, c.text)):
        original, mutated = finder.lines_of(change)
        known = (change.where, original, mutated)
        counts[known] += 1
        found.append(
            replace(change, file=file, original=original, mutated=mutated, number=counts[known] - 1)
        )
    return found


class _Finder(ast.NodeVisitor):
    """Visits what runs, and keeps the changes found."""

    def __init__(self, source: str) -> None:
        self.raw = source.encode()
        self.starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.names: list[str] = []
        self.functions = 0  # round the place where it is
        self.found: list[Mutant] = []

    # -- places -----------------------------------------------------------------------------

    def span(self, node: Any) -> Span:
        first = self.starts[node.lineno - 1] + node.col_offset
        return first, self.starts[node.end_lineno - 1] + node.end_col_offset

    def code(self, span: Span) -> str:
        return self.raw[slice(*span)].decode()

    def lines_of(self, change: Mutant) -> tuple[str, str]:
        """Return the whole lines of a change, before and after, with single spaces."""
        first = self.raw.rfind(b"\n", 0, change.span[0]) + 1
        last = self.raw.find(b"\n", change.span[1])
        last = len(self.raw) if last < 0 else last
        before = self.raw[first:last].decode()
        after = self.code((first, change.span[0])) + change.text + self.code((change.span[1], last))
        return " ".join(before.split()), " ".join(after.split())

    def change(self, kind: str, node: ast.AST, span: Span, text: str) -> None:
        """Keep a change; the text gets the line breaks of what it replaces."""
        missing = self.code(span).count("\n") - text.count("\n")
        if missing > 0:
            text = f"({text}" + "\n" * missing + ")"
        lines = (node.lineno, node.end_lineno or node.lineno)  # type: ignore[attr-defined]
        self.found.append(
            Mutant("", ".".join(self.names), kind, "", "", 0, not self.functions, lines, span, text)
        )

    def between(self, left: ast.AST, right: ast.AST, text: str) -> tuple[Span, str] | None:
        """Return the span of the operator between two operands, and its replacement."""
        first, last = self.span(left)[1], self.span(right)[0]
        inner = self.code((first, last))
        bare = inner.strip("() \n\t\\")
        if "#" in inner or not bare:
            return None
        at = first + len(inner[: inner.index(bare)].encode())
        return (at, at + len(bare.encode())), text

    # -- what is left alone -----------------------------------------------------------------

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Say nothing: before Python 3.12 the places inside are not known."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assertion holds; what is asked there changes nothing."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """Messages are for people."""

    def visit_keyword(self, node: ast.keyword) -> None:
        """Leave out ``strict``: what it asserts holds."""
        if node.arg != "strict":
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit the value alone."""
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Visit all but lists of names, and look for passes."""
        targets = [t.id for t in node.targets if isinstance(t, ast.Name)]
        if "__all__" in targets:
            return
        value = node.value
        given = value.args[0] if isinstance(value, ast.Call) and value.args else None
        if isinstance(given, ast.Name) and targets == [given.id]:  # program = simpler(program)
            self.change("pass left out", node, self.span(value), given.id)
        self.generic_visit(node)

    # -- scopes -----------------------------------------------------------------------------

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Go into a class."""
        self._scope(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Go into a function; its annotations are left alone."""
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        self.functions += 1
        self._scope(node)
        self.functions -= 1

    def _scope(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        self.names.append(node.name)
        for statement in node.body:
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                self.visit(statement)
        self.names.pop()

    # -- statements -------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> None:
        """Condition, and an early return that is left out."""
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._condition(node.test)
        if len(node.body) == 1 and isinstance(node.body[0], ast.Return):
            self.change("return left out", node.body[0], self.span(node.body[0]), "pass")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        """The condition is not made true: that hangs, and says nothing of the tests."""
        self._condition(node.test, values=("False",))
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """As for the statement."""
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """What is taken, and what is not."""
        for condition in node.ifs:
            self._condition(condition)
        self.generic_visit(node)

    def _condition(self, test: ast.expr, values: tuple[str, ...] = ("True", "False")) -> None:
        span = self.span(test)
        self.change("condition negated", test, span, f"(not ({self.code(span)}))")
        for value in values:
            self.change("condition fixed", test, span, value)

    def visit_Expr(self, node: ast.Expr) -> None:
        """A call for its effect, left out."""
        if isinstance(node.value, ast.Call):
            self.change("call left out", node, self.span(node), "None")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        """Left out."""
        self.change("continue left out", node, self.span(node), "pass")

    def visit_Break(self, node: ast.Break) -> None:
        """Left out."""
        self.change("break left out", node, self.span(node), "pass")

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Another operator."""
        other = COMPUTED.get(type(node.op))
        operator = self.between(node.target, node.value, f"{other}=")
        if other and operator:
            self.change("arithmetic", node, *operator)
        self.generic_visit(node)

    # -- expressions ------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        """Another comparison."""
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            operator = self.between(left, right, COMPARED[type(op)])
            if operator:
                self.change("comparison", node, *operator)
            left = right
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Another operator, but not between texts or types."""
        texts = (ast.JoinedStr, ast.Constant)
        sides = (node.left, node.right)
        said = any(
            isinstance(s, ast.JoinedStr) or (isinstance(s, texts) and isinstance(s.value, str))
            for s in sides
        )
        other = COMPUTED.get(type(node.op))
        operator = self.between(node.left, node.right, other or "")
        if other and operator and not said and not isinstance(node.left, ast.List):
            self.change("arithmetic", node, *operator)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """``and`` for ``or``: all of one expression, as it reads."""
        other = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in zip(node.values, node.values[1:], strict=False):
            operator = self.between(left, right, other)
            if operator:
                self.change("and or", node, *operator)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """``not`` or a sign left out."""
        if isinstance(node.op, (ast.Not, ast.USub)) and not isinstance(node.operand, ast.Constant):
            kind = "not left out" if isinstance(node.op, ast.Not) else "arithmetic"
            self.change(kind, node, self.span(node), f"({self.code(self.span(node.operand))})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """An integer off by one, a truth value turned round."""
        if isinstance(node.value, bool):
            self.change("truth value", node, self.span(node), str(not node.value))
        elif isinstance(node.value, int):
            for value in (node.value + 1, node.value - 1):
                if value >= 0:
                    self.change("constant", node, self.span(node), str(value))

    def visit_Call(self, node: ast.Call) -> None:
        """``min`` for ``max``, and the first two arguments exchanged."""
        function = node.func
        if isinstance(function, ast.Name) and function.id in EXCHANGED:
            self.change("min max", node, self.span(function), EXCHANGED[function.id])
        elif len(node.args) >= 2 and not any(isinstance(a, ast.Starred) for a in node.args[:2]):
            first, second = self.span(node.args[0]), self.span(node.args[1])
            if self.code(first) != self.code(second) and not _said(function):
                middle = self.code((first[1], second[0]))
                text = self.code(second) + middle + self.code(first)
                self.change("arguments exchanged", node, (first[0], second[1]), text)
        self.generic_visit(node)


def _said(function: ast.expr) -> bool:
    """Whether a call is about types, where its arguments' order is no mistake that anyone makes."""
    return isinstance(function, ast.Name) and function.id in ("isinstance", "getattr", "cast")


__all__ = ["Mutant", "mutants"]
