"""Statements to the code of one function whose names stay global; see ``fuselab.cell.plan``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, NoReturn

from fuselab.cell.scopes import Flow

if TYPE_CHECKING:
    from fuselab.cell.plan import CellPlan
    from fuselab.cell.segments import Segment

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
    unsure = Flow(frozenset(segment.assigns), segment.statements, segment.value).unsure_nodes
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
