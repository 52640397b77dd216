"""Cell source to a plan: what runs as it stands, and what becomes one function to fuse.

A ``%%fuse`` cell behaves as the same cell without it, only faster.  The plan keeps that promise
by changing as little as possible:

* Definitions, imports and magics run as they stand, in order, in the notebook's namespace.
* Each run of other statements becomes **one function without parameters, whose names stay
  global**.  Free names are read from the notebook and assigned names are stored in it by the
  very instructions that a plain cell would use, so helpers that read a name which the cell has
  just assigned, conditional assignments, ``del``, aliases, walrus targets, in-place updates and
  what has landed when an exception stops the cell halfway are all exactly as in a plain cell.
* Line numbers are the gutter's: line 1 is the ``%%fuse`` line.

What TorchDynamo asks in return: it looks a global up before it looks at what was stored in it
during the trace, so a name that the cell assigns must exist before the function runs.  Missing
ones are seeded with ``UNBOUND`` and taken away again afterwards; wherever such a name might be
read before it is assigned, the function checks for ``UNBOUND`` and raises the ``NameError`` that
a plain cell would raise, on the same line (`_Flow` finds those places).  ``del name`` becomes
``name = UNBOUND`` for the same reason.

Known differences from a plain cell: the annotation in ``name: annotation = value`` is not
evaluated, and top-level ``await`` is a syntax error.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import linecache
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Literal, NoReturn

Kind = Literal["plain", "fused"]

_OWN_NAMESPACE = frozenset({"exec", "eval", "globals", "locals", "vars", "dir"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DEFINITIONS = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
)
SENTINEL = "__unbound__"
_ALIAS = "__fuse_local_"
# TorchDynamo's own name for the module in the namespaces of the functions that it compiles.
TORCH = "__import_torch"


class Unbound:
    """Stands in the namespace for a name that the cell assigns but has not assigned yet."""

    def __call__(self, name: str) -> NoReturn:
        """Raise what a plain cell raises where ``name`` is read."""
        raise NameError(f"name {name!r} is not defined", name=name)

    def __repr__(self) -> str:
        return "<not assigned yet>"


UNBOUND = Unbound()


@dataclass(frozen=True)
class Segment:
    """A run of consecutive top-level statements that are executed together.

    Attributes:
        kind: ``plain`` runs as it stands, ``fused`` becomes one function.
        first_line: 1-based, as the gutter shows it.
        last_line: Likewise.
        why: For a plain segment, why it is not fused.
        reads: Names it may read from the notebook, sorted.
        assigns: Names it binds or deletes in the notebook, sorted.
        unsure: Names among ``assigns`` that it may read before it has assigned them, sorted.
        statements: The statements themselves; the last expression is not among them when its
            value is the cell's.
        value: The last expression, where its value is the cell's.
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

    def __str__(self) -> str:
        lines = f"line {self.first_line}"
        if self.last_line != self.first_line:
            lines = f"lines {self.first_line}-{self.last_line}"
        parts = [f"{lines}: {'as it stands, ' + self.why if self.why else 'fused'}"]
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

    def locals_of(self, segment: Segment) -> tuple[str, ...]:
        """Return the names that ``segment`` assigns and keeps to itself."""
        if self.out is None or segment.kind == "plain":
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
    segments = _split(tree.body, _Facts(filename, interactivity, flags))
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


def function_code(
    plan: CellPlan, segment: Segment, *, guard: frozenset[str], parameters: Sequence[str]
) -> CodeType:
    """Compile a fused segment into the code of one function.

    Args:
        plan: The cell.
        segment: One of its fused segments.
        guard: Names in ``segment.unsure`` that are missing from the notebook: reading one of
            them checks that it has been assigned.  If there are any, the function's last
            parameter is the ``UNBOUND`` object.
        parameters: With ``--out``: local names whose value comes from the notebook.
    """
    local = set(plan.locals_of(segment))
    landing = [name for name in segment.assigns if name not in local]
    unsure = _Flow(frozenset(segment.assigns), segment.statements, segment.value).unsure_nodes
    rewrite = _Rewrite(landing=frozenset(landing), guard=guard, unsure=unsure)
    # A fresh tree: the plan's own must stay as it is for the next variant.
    source = ast.Module([*segment.statements], [])
    body = rewrite.statements(source.body)
    if segment.value is not None:
        value = rewrite.visit(segment.value)
        body.append(ast.copy_location(ast.Return(value), segment.value))
    needs_sentinel = rewrite.used_sentinel
    names = [*parameters, *([SENTINEL] if needs_sentinel else [])]
    head = (segment.statements or (segment.value,))[0]
    assert head is not None
    if landing:
        body.insert(0, ast.copy_location(ast.Global(landing), head))
    # Parsed rather than put together: which fields a definition has depends on the version.
    function = ast.parse(f"def {plan.name}({', '.join(names)}): pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body = body
    _move(function, head)
    module = ast.fix_missing_locations(ast.Module([function], []))
    code = compile(module, plan.filename, "exec", plan.flags, dont_inherit=True)
    made = next(item for item in code.co_consts if isinstance(item, CodeType))
    # What follows a graph break is compiled only if it holds a tensor in a local variable, of
    # which there are none here, or names a global that is torch's. This makes it name one.
    return made.replace(
        co_names=(*made.co_names, TORCH),
        co_varnames=tuple(name.removeprefix(_ALIAS) for name in made.co_varnames),
    )


def wants_sentinel(code: CodeType) -> bool:
    """Return whether ``code`` takes the ``UNBOUND`` object as its last parameter."""
    return SENTINEL in code.co_varnames[: code.co_argcount]


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
    interactivity: str
    flags: int


def _split(statements: list[ast.stmt], facts: _Facts) -> tuple[Segment, ...]:
    only_definitions = bool(_defines(statements))
    groups: list[tuple[str, list[ast.stmt]]] = []
    for statement in statements:
        why = _why_plain(statement)
        if not why and only_definitions:
            why = "a constant beside definitions"
        if groups and bool(groups[-1][0]) == bool(why):
            known = groups[-1][0]
            groups[-1] = (known if why in known else f"{known}, {why}", [*groups[-1][1], statement])
        else:
            groups.append((why, [statement]))
    segments = []
    for index, (why, group) in enumerate(groups):
        last = index == len(groups) - 1
        segments.append(_segment(why, group, facts, last=last))
    return tuple(segments)


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
    flow = _Flow(frozenset(assigns), tuple(statements), value)
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
    for node in _own_scope(statement):
        if isinstance(node, ast.ClassDef):
            return "a class inside a block"
        if isinstance(node, ast.ImportFrom) and any(item.name == "*" for item in node.names):
            return "imports"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "get_ipython":
                return "a magic"
            if node.func.id in _OWN_NAMESPACE:
                return f"{node.func.id}() looks at the namespace itself"
    return ""


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
            if name not in out and any(name in (*s.reads, *s.assigns) for s in others):
                shared.add(name)
    return tuple(sorted(shared))


def _notes(segments: tuple[Segment, ...]) -> tuple[str, ...]:
    notes = []
    for before, middle, after in zip(segments, segments[1:], segments[2:], strict=False):
        if before.kind == after.kind == "fused":
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


# --- scopes ----------------------------------------------------------------------------------


def _own_scope(node: ast.AST) -> Iterable[ast.AST]:
    """Walk ``node`` without the bodies of functions and classes in it."""
    yield node
    if isinstance(node, _SCOPES):
        return
    for child in ast.iter_child_nodes(node):
        yield from _own_scope(child)


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


class _Flow:
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
    every = {n.target.id for n in _own_scope(node) if isinstance(n, ast.NamedExpr)}
    return frozenset(every) - _maybe_walrus(node)


def _maybe_walrus(node: ast.AST) -> frozenset[str]:
    """Return the walrus targets in ``node`` that a condition or an empty loop may skip."""
    skippable = (ast.BoolOp, ast.IfExp, ast.Compare, ast.Assert, *_COMPREHENSIONS)
    return frozenset(
        inner.target.id
        for outer in _own_scope(node)
        if isinstance(outer, skippable)
        for inner in _own_scope(outer)
        if isinstance(inner, ast.NamedExpr)
    )


def _deleted(statements: Iterable[ast.stmt]) -> frozenset[str]:
    names = set()
    for statement in statements:
        for node in _own_scope(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
                names.add(node.id)
            elif isinstance(node, ast.ExceptHandler) and node.name:
                names.add(node.name)
    return frozenset(names)


def _sure(statements: Iterable[ast.stmt]) -> frozenset[str]:
    """Return names that plain assignments at the top of a block bind."""
    simple = [item for item in statements if isinstance(item, (ast.Assign, ast.AugAssign))]
    return frozenset(bound_names(simple))


# --- rewriting -------------------------------------------------------------------------------


class _Rewrite(ast.NodeTransformer):
    """Copies statements into the form that works inside a function with global names."""

    def __init__(
        self, *, landing: frozenset[str], guard: frozenset[str], unsure: dict[int, ast.Name]
    ) -> None:
        self.landing = landing
        self.guard = guard
        self.unsure = unsure
        self.used_sentinel = False

    def statements(self, statements: Iterable[ast.stmt]) -> list[ast.stmt]:
        """Return rewritten copies; the originals are left alone."""
        done: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            done += result if isinstance(result, list) else [result]
        return done

    def generic_visit(self, node: ast.AST) -> ast.AST:
        # The base class edits in place; the plan's tree is shared, so copy instead.
        fields = {}
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                copied: list[object] = []
                for item in value:
                    result = self.visit(item) if isinstance(item, ast.AST) else item
                    copied += result if isinstance(result, list) else [result]
                fields[name] = copied
            else:
                fields[name] = self.visit(value) if isinstance(value, ast.AST) else value
        return ast.copy_location(type(node)(**fields), node)

    def visit_Global(self, node: ast.Global) -> ast.stmt:
        # At the top level it says nothing; in the function its place would be an error.
        return ast.copy_location(ast.Pass(), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node  # its body is another scope

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]
    visit_ClassDef = visit_FunctionDef  # type: ignore[assignment]
    visit_Lambda = visit_FunctionDef  # type: ignore[assignment]

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and self._checked(node):
            return self._check(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | list[ast.AST]:
        if isinstance(node.target, ast.Name) and node.value is not None:
            # `global x` and an annotated x exclude each other.
            return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.AST]:
        """Store through a local variable of the same name, and only then in the notebook.

        TorchDynamo names a value for the local variable that it is first stored in, and kernels
        take their names from there.  Bytecode may well have a local and a global of one name;
        the source may not, so the local one gets its name after compilation.
        """
        done = self.generic_visit(node)
        assert isinstance(done, ast.Assign)
        targets = [t for target in done.targets for t in _flat(target)]
        if not all(isinstance(t, ast.Name) and t.id in self.landing for t in targets):
            return done
        landed: list[ast.AST] = []
        for target in dict.fromkeys(t.id for t in targets if isinstance(t, ast.Name)):
            alias = ast.copy_location(ast.Name(_ALIAS + target, ast.Load()), node)
            store = ast.copy_location(ast.Name(target, ast.Store()), node)
            landed.append(ast.copy_location(ast.Assign([store], alias), node))
        done.targets = [_aliased(target) for target in done.targets]
        return [done, *landed]

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | list[ast.AST]:
        done = self.generic_visit(node)
        if isinstance(node.target, ast.Name) and self._checked(node.target):
            return [ast.copy_location(ast.Expr(self._check(node.target)), node), done]
        return done

    def visit_Delete(self, node: ast.Delete) -> list[ast.AST]:
        done: list[ast.AST] = []
        targets = list(node.targets)
        while targets:
            target = targets.pop(0)
            if isinstance(target, (ast.Tuple, ast.List)):
                targets[:0] = target.elts
            elif isinstance(target, ast.Name) and target.id in self.landing:
                if self._checked(target):
                    done.append(ast.copy_location(ast.Expr(self._check(target)), target))
                self.used_sentinel = True
                gone = ast.Assign([_name(target, ast.Store())], _name(target, id=SENTINEL))
                done.append(ast.copy_location(gone, node))
            else:
                copied = ast.Delete([self.visit(target)])
                done.append(ast.copy_location(copied, node))
        return done

    def _checked(self, node: ast.Name) -> bool:
        return id(node) in self.unsure and node.id in self.guard and node.id in self.landing

    def _check(self, node: ast.Name) -> ast.expr:
        """Return ``UNBOUND("x") if x is UNBOUND else x`` in the place of ``x``."""
        self.used_sentinel = True
        missing = ast.Call(_name(node, id=SENTINEL), [ast.Constant(node.id)], [])
        test = ast.Compare(_name(node), [ast.Is()], [_name(node, id=SENTINEL)])
        return ast.copy_location(ast.IfExp(test, missing, _name(node)), node)


def _flat(target: ast.expr) -> list[ast.expr]:
    """Return the targets of an unpacking that binds all of them or none."""
    return target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]


def _aliased(target: ast.expr) -> ast.expr:
    if isinstance(target, (ast.Tuple, ast.List)):
        names = [_aliased(item) for item in target.elts]
        return ast.copy_location(type(target)(names, ast.Store()), target)
    assert isinstance(target, ast.Name)
    return ast.copy_location(ast.Name(_ALIAS + target.id, ast.Store()), target)


def _name(
    like: ast.Name, context: ast.expr_context | None = None, id: str | None = None
) -> ast.Name:
    return ast.copy_location(ast.Name(id or like.id, context or ast.Load()), like)


def _move(node: ast.FunctionDef, like: ast.AST) -> None:
    """Give a definition and its parameters, but not its statements, the place of ``like``."""
    ast.copy_location(node, like)
    for child in ast.walk(node.args):
        ast.copy_location(child, like)
