"""Names and scopes: what statements bind, and where a name may be read before it is bound."""

from __future__ import annotations

import ast
from collections.abc import Iterable

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def own_scope(node: ast.AST) -> Iterable[ast.AST]:
    """Walk ``node`` without the bodies of functions and classes in it."""
    yield node
    if isinstance(node, _SCOPES):
        return
    for child in ast.iter_child_nodes(node):
        yield from own_scope(child)


def bound_names(statements: Iterable[ast.stmt]) -> set[str]:
    """Return the names that the statements bind or delete in their own scope."""
    collector = _Bindings()
    for statement in statements:
        collector.visit(statement)
    return collector.names


class _Bindings(ast.NodeVisitor):
    """Collects the names bound in one scope, in whatever way Python binds a name."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._comprehension = 0

    def visit_Name(self, node: ast.Name) -> None:
        # A comprehension's own targets are local to it; a walrus inside one is not.
        if not isinstance(node.ctx, ast.Load) and not self._comprehension:
            self.names.add(node.id)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.names.add(node.target.id)
        self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.names.add(node.name)
        for item in [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults]:
            if item is not None:
                self.visit(item)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.add(node.name)
        for item in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(item)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for item in [*node.args.defaults, *node.args.kw_defaults]:
            if item is not None:
                self.visit(item)

    def generic_visit(self, node: ast.AST) -> None:
        inside = isinstance(node, _COMPREHENSIONS)
        self._comprehension += inside
        if isinstance(node, ast.alias):
            self.names.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            self.names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            self.names.add(node.rest)
        super().generic_visit(node)
        self._comprehension -= inside


class Flow:
    """Finds where a name might be read before it was assigned.

    A definite-assignment analysis that errs on one side only: a place that it does not report
    is reached with the name assigned.  A place it does report costs one identity test, and
    only where the name is missing from the notebook.
    """

    def __init__(
        self, names: frozenset[str], statements: tuple[ast.stmt, ...], value: ast.expr | None
    ) -> None:
        self.names = names
        self.unsure_nodes: dict[int, ast.Name] = {}
        state = self._block(statements, frozenset())
        if value is not None:
            self._expression(value, state)

    def _expression(self, node: ast.AST | None, state: frozenset[str] | None) -> None:
        if node is None or state is None or isinstance(node, _SCOPES):
            return
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load) and node.id in self.names and node.id not in state:
                self.unsure_nodes[id(node)] = node
            return
        if isinstance(node, _COMPREHENSIONS):
            own = {
                name.id
                for generator in node.generators
                for name in ast.walk(generator.target)
                if isinstance(name, ast.Name)
            }
            state = state | own
        for child in ast.iter_child_nodes(node):
            self._expression(child, state)

    def _block(
        self, statements: Iterable[ast.stmt], state: frozenset[str] | None
    ) -> frozenset[str] | None:
        for statement in statements:
            if state is None:
                break  # nothing after a raise, break or continue is reached
            state = self._statement(statement, state)
        return state

    def _statement(self, node: ast.stmt, state: frozenset[str]) -> frozenset[str] | None:
        if isinstance(node, (ast.Break, ast.Continue)):
            return None
        if isinstance(node, ast.Raise):
            self._expression(node, state)
            return None
        if isinstance(node, ast.If):
            self._expression(node.test, state)
            state = state | _walrus(node.test)
            return _meet(self._block(node.body, state), self._block(node.orelse, state))
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            return self._loop(node, state)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            return self._with(node, state)
        if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            return self._try(node, state)  # type: ignore[arg-type]
        if isinstance(node, ast.Match):
            return self._match(node, state)
        return self._simple(node, state)

    def _simple(self, node: ast.stmt, state: frozenset[str]) -> frozenset[str]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return state | {node.name}
        self._expression(node, state)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            name = node.target
            if name.id in self.names and name.id not in state:
                self.unsure_nodes[id(name)] = name
        if isinstance(node, ast.Delete):
            gone = [item for item in ast.walk(node) if isinstance(item, ast.Name)]
            gone = [item for item in gone if isinstance(item.ctx, ast.Del)]
            for name in gone:
                if name.id not in state:
                    self.unsure_nodes[id(name)] = name
            return state - {name.id for name in gone}
        return state | bound_names([node]) - _maybe_walrus(node)

    def _loop(
        self, node: ast.For | ast.AsyncFor | ast.While, state: frozenset[str]
    ) -> frozenset[str] | None:
        # What the body deletes may be gone at the start of the next round and after the loop.
        around = state - _deleted(node.body)
        if isinstance(node, ast.While):
            self._expression(node.test, around)
            inside = around | _walrus(node.test)
        else:
            self._expression(node.iter, state)
            self._expression(node.target, around)
            inside = around | bound_names([ast.Expr(node.target)])
        self._block(node.body, inside)
        self._block(node.orelse, around)
        return around - _deleted(node.orelse)

    def _with(self, node: ast.With | ast.AsyncWith, state: frozenset[str]) -> frozenset[str] | None:
        for item in node.items:
            self._expression(item, state)
            if item.optional_vars is not None:
                state = state | bound_names([ast.Expr(item.optional_vars)])
        after = self._block(node.body, state)
        # A context manager may swallow an exception, and then the body ended anywhere; those
        # of torch do not.
        if all(ast.unparse(item.context_expr).startswith("torch.") for item in node.items):
            return after
        return state - _deleted(node.body)

    def _try(self, node: ast.Try, state: frozenset[str]) -> frozenset[str] | None:
        after = self._block(node.body, state)
        if after is not None:
            after = self._block(node.orelse, after)
        broken = state - _deleted(node.body)
        for handler in node.handlers:
            self._expression(handler.type, broken)
            own = {handler.name} if handler.name else set()
            ended = self._block(handler.body, broken | own)
            after = _meet(after, None if ended is None else ended - own)
        if node.finalbody:
            # Reached with whatever the rest left behind, so only the entry state is sure ...
            everything = [*node.body, *node.orelse, *(s for h in node.handlers for s in h.body)]
            self._block(node.finalbody, state - _deleted(everything))
            if after is not None:
                after = (after | _sure(node.finalbody)) - _deleted(node.finalbody)
        return after

    def _match(self, node: ast.Match, state: frozenset[str]) -> frozenset[str] | None:
        self._expression(node.subject, state)
        # Without a case that surely matches, nothing may have happened at all.
        after: frozenset[str] | None = state
        for case in node.cases:
            pattern = _Bindings()
            pattern.visit(case.pattern)
            inside = state | pattern.names
            self._expression(case.guard, inside)
            ended = self._block(case.body, inside)
            after = _meet(after, ended)
        return after


def _meet(one: frozenset[str] | None, two: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or two is None:
        return one if two is None else two
    return one & two


def _walrus(node: ast.AST) -> frozenset[str]:
    """Return the walrus targets in ``node`` that are bound whatever else it computes."""
    every = {n.target.id for n in own_scope(node) if isinstance(n, ast.NamedExpr)}
    return frozenset(every) - _maybe_walrus(node)


def _maybe_walrus(node: ast.AST) -> frozenset[str]:
    """Return the walrus targets in ``node`` that a condition or an empty loop may skip."""
    skippable = (ast.BoolOp, ast.IfExp, ast.Compare, ast.Assert, *_COMPREHENSIONS)
    return frozenset(
        inner.target.id
        for outer in own_scope(node)
        if isinstance(outer, skippable)
        for inner in own_scope(outer)
        if isinstance(inner, ast.NamedExpr)
    )


def _deleted(statements: Iterable[ast.stmt]) -> frozenset[str]:
    names = set()
    for statement in statements:
        for node in own_scope(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
                names.add(node.id)
            elif isinstance(node, ast.ExceptHandler) and node.name:
                names.add(node.name)
    return frozenset(names)


def _sure(statements: Iterable[ast.stmt]) -> frozenset[str]:
    """Return names that plain assignments at the top of a block bind."""
    simple = [item for item in statements if isinstance(item, (ast.Assign, ast.AugAssign))]
    return frozenset(bound_names(simple))
